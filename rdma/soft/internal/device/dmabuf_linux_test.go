// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

const fileAccessOfTests = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC

// memoryFile is a file of memory, and its bytes as another mapping has them.
func memoryFile(t *testing.T, size int) (file int, bytes []byte) {
	file, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(file, int64(size)))
	return file, mapped(t, file, size)
}

func mapped(t *testing.T, file, size int) []byte {
	bytes, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(bytes) })
	return bytes
}

// crossing writes to a region by its key, and reads that back.
func (s *stage) crossing(rkey uint32, address uint64, text string) {
	s.t.Helper()
	copy(s.here.bytes, text)
	for _, opcode := range []ibv.WROpcode{ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
		wr := s.send(1, opcode, s.here.sge(0, len(text)))
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: address, RKey: rkey}
		require.NoError(s.t, s.post(s.p.a, wr))
		require.Equal(s.t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
		require.Equal(s.t, text, string(s.here.bytes[:len(text)]))
		clear(s.here.bytes)
	}
}

// TestRegionsOfAFile: peers write to memory that others have mapped; the descriptor may be closed, and the region keeps
// the file.
func TestRegionsOfAFile(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	file, bytes := memoryFile(t, 3*os.Getpagesize())
	const offset, length, iova = 4096 + 100, 1000, 7<<40 + 100
	mr, err := verbs.RegDMABufMR(s.pd[1], offset, length, iova, file, fileAccessOfTests)
	require.NoError(t, err)
	extended, err := verbs.RegMREx(s.pd[1], &ibv.MRInitAttr{Length: length, Access: fileAccessOfTests, IOVA: iova,
		FD: int32(file), FDOffset: offset,
		CompMask: ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET | ibv.REG_MR_MASK_IOVA})
	require.NoError(t, err)
	require.NoError(t, unix.Close(file))
	assert.EqualValues(t, length, mr.Length)
	assert.EqualValues(t, offset, mr.Addr)
	s.crossing(mr.RKey, iova+5, "through a descriptor")
	assert.Equal(t, "through a descriptor", string(bytes[offset+5:offset+25]))
	s.crossing(extended.RKey, iova+length-4, "last")
	assert.Equal(t, "last", string(bytes[offset+length-4:offset+length]))

	for _, outside := range []uint64{iova - 1, iova + length - 3, offset, 0} {
		place, ok := find[region](mem.AddressOf(mr)).Locate(outside, 4, 0)
		assert.False(t, ok, "%#x is at %v", outside, place)
	}
	code, err := verbs.ReregMR(mr, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, err, syscall.EINVAL, "%v", code)
	at := find[region](mem.AddressOf(mr)).Base
	require.NoError(t, verbs.DeregMR(mr))
	require.NoError(t, verbs.DeregMR(extended))
	assert.ErrorIs(t, unix.Madvise(unsafe.Slice((*byte)(mem.Pointer(at&^4095)), os.Getpagesize()), unix.MADV_NORMAL),
		unix.ENOMEM, "nothing is mapped there any more")
}

// TestFilesThatAreNoMemory: errors are those of the kernel.
func TestFilesThatAreNoMemory(t *testing.T) {
	r := newRig(t, Options{})
	size := uint64(2 * os.Getpagesize())
	file, _ := memoryFile(t, int(size))
	defer unix.Close(file)
	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer directory.Close()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	reads, err := unix.Open(fmt.Sprint("/proc/self/fd/", file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(reads)
	for _, c := range []struct {
		what                 string
		file                 int
		offset, length, iova uint64
		access               ibv.AccessFlags
		errno                error
	}{
		{"no descriptor", -1, 0, 1, 0, 0, syscall.EBADF},
		{"a closed one", 1 << 20, 0, 1, 0, 0, syscall.EBADF},
		{"a directory", int(directory.Fd()), 0, 1, 0, 0, syscall.EINVAL},
		{"a pipe", pipe[0], 0, 1, 0, 0, syscall.EINVAL},
		{"no bytes", file, 0, 0, 0, 0, syscall.EINVAL},
		{"one byte too many", file, 0, size + 1, 0, 0, syscall.EINVAL},
		{"behind the end", file, size, 1, 0, 0, syscall.EINVAL},
		{"far behind", file, 1 << 63, 1, 0, 0, syscall.EINVAL},
		{"all there is", file, 1, ^uint64(0), 1, 0, syscall.EINVAL},
		{"another place in the page", file, 100, 1, 0, 0, syscall.EINVAL},
		{"windows", file, 0, 1, 0, ibv.ACCESS_MW_BIND, syscall.EINVAL},
		{"on demand", file, 0, 1, 0, ibv.ACCESS_ON_DEMAND, syscall.EINVAL},
		{"remote writes alone", file, 0, 1, 0, ibv.ACCESS_REMOTE_WRITE, syscall.EINVAL},
		{"only to be read", reads, 0, 1, 0, ibv.ACCESS_LOCAL_WRITE, syscall.EACCES},
	} {
		_, err := verbs.RegDMABufMR(r.pd[0], c.offset, c.length, c.iova, c.file, c.access)
		assert.ErrorIs(t, err, c.errno, c.what)
	}
	mr, err := verbs.RegDMABufMR(r.pd[0], 0, size, 0, reads, ibv.ACCESS_REMOTE_READ)
	require.NoError(t, err)
	require.NoError(t, verbs.DeregMR(mr))
	for _, mask := range []ibv.MRInitAttrMask{ibv.REG_MR_MASK_FD, ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET,
		ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET | ibv.REG_MR_MASK_IOVA | ibv.REG_MR_MASK_ADDR} {
		_, err := verbs.RegMREx(r.pd[0], &ibv.MRInitAttr{Length: 1, FD: int32(file), CompMask: mask})
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", mask)
	}
}

// TestFileThatShrinks: access to memory that the owner truncates ends in a status and does not kill the process.
func TestFileThatShrinks(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	size := 4 * os.Getpagesize()
	file, _ := memoryFile(t, size)
	defer unix.Close(file)
	mr, err := verbs.RegDMABufMR(s.pd[1], 0, uint64(size), 0, file, fileAccessOfTests)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(file, 0))
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.here.sge(0, 64))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 0, RKey: mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.poll(s.p.aSend).Status)
	require.NoError(t, verbs.DeregMR(mr))
}

// TestExportedMemory: a buffer and memory of the device are the memory of the regions that import them, and outlive
// their objects with these.
func TestExportedMemory(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	before := s.fabric.Resources()
	handle := new(ibv.Ptr[ibv.Buf])
	at, err := verbs.AllocBuf(s.pd[0], 5000, handle)
	require.NoError(t, err)
	dm, err := verbs.AllocDM(s.context[0], &ibv.AllocDMAttr{Length: 5000})
	require.NoError(t, err)
	ofBuffer, err := verbs.ExportBufDMABufFD(handle.Deref())
	require.NoError(t, err)
	ofDevice, err := verbs.DMExportDMABufFD(dm)
	require.NoError(t, err)
	assert.ErrorIs(t, unix.Ftruncate(ofBuffer, 0), unix.EPERM, "nobody takes away what is in use")
	for i, file := range []int{ofBuffer, ofDevice} {
		mr, err := verbs.RegDMABufMR(s.pd[1], 0, 5000, 0, file, fileAccessOfTests)
		require.NoError(t, err)
		require.NoError(t, unix.Close(file))
		s.crossing(mr.RKey, 4990, "exported")
		got := outside[byte](s.rig, 12) // copies of a device's memory are of words
		if i == 0 {
			copy(got, mem.List[byte](uint64(at)+4988, len(got)))
			require.NoError(t, verbs.FreeBuf(handle.Deref()))
			_, err = verbs.ExportBufDMABufFD(handle.Deref())
		} else {
			require.NoError(t, verbs.MemcpyFromDM(pointerTo(&got[0]), dm, 4988, uint64(len(got))))
			require.NoError(t, verbs.FreeDM(dm))
			_, err = verbs.DMExportDMABufFD(dm)
		}
		assert.Equal(t, "exported", string(got[2:10]))
		assert.ErrorIs(t, err, syscall.EINVAL, "it is gone")
		s.crossing(mr.RKey, 0, "alive")
		require.NoError(t, verbs.DeregMR(mr))
	}
	assert.Equal(t, before, s.fabric.Resources())
}
