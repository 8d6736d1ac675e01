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
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

const fileAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC

// memoryFile creates a memfd, and returns its bytes through a separate mapping.
func memoryFile(t *testing.T, size int) (file int, bytes []byte) {
	file, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(file, int64(size)))
	return file, mapShared(t, file, size)
}

func mapShared(t *testing.T, file, size int) []byte {
	bytes, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(bytes) })
	return bytes
}

// writeAndRead writes to a region by its key, and reads the data back.
func (s *testPair) writeAndRead(rkey uint32, address uint64, text string) {
	s.t.Helper()
	copy(s.bufA.bytes, text)
	for _, opcode := range []ibv.WROpcode{ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
		wr := s.send(1, opcode, s.bufA.sge(0, len(text)))
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: address, RKey: rkey}
		require.NoError(s.t, s.post(s.p.a, wr))
		require.Equal(s.t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
		require.Equal(s.t, text, string(s.bufA.bytes[:len(text)]))
		clear(s.bufA.bytes)
	}
}

// TestRegDMABufMR: peers write to memory of a file that is also mapped elsewhere. The region keeps the file open after
// its descriptor is closed.
func TestRegDMABufMR(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	file, bytes := memoryFile(t, 3*os.Getpagesize())
	const offset, length, iova = 4096 + 100, 1000, 7<<40 + 100
	mr, err := verbs.RegDMABufMR(s.pd[1], offset, length, iova, file, fileAccess)
	require.NoError(t, err)
	extended, err := verbs.RegMREx(s.pd[1], &ibv.MRInitAttr{Length: length, Access: fileAccess, IOVA: iova,
		FD: int32(file), FDOffset: offset,
		CompMask: ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET | ibv.REG_MR_MASK_IOVA})
	require.NoError(t, err)
	require.NoError(t, unix.Close(file))
	assert.EqualValues(t, length, mr.Length)
	assert.EqualValues(t, offset, mr.Addr)
	s.writeAndRead(mr.RKey, iova+5, "through a descriptor")
	assert.Equal(t, "through a descriptor", string(bytes[offset+5:offset+25]))
	s.writeAndRead(extended.RKey, iova+length-4, "last")
	assert.Equal(t, "last", string(bytes[offset+length-4:offset+length]))

	for _, offHeap := range []uint64{iova - 1, iova + length - 3, offset, 0} {
		place, ok := impl.Find[impl.Region](mem.AddressOf(mr)).Locate(offHeap, 4, 0)
		assert.False(t, ok, "%#x is at %v", offHeap, place)
	}
	code, err := verbs.ReregMR(mr, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, err, syscall.EINVAL, "%v", code)
	at := impl.Find[impl.Region](mem.AddressOf(mr)).Base
	require.NoError(t, verbs.DeregMR(mr))
	require.NoError(t, verbs.DeregMR(extended))
	assert.ErrorIs(t, unix.Madvise(unsafe.Slice((*byte)(mem.Pointer(at&^4095)), os.Getpagesize()), unix.MADV_NORMAL),
		unix.ENOMEM, "the mapping is removed")
}

// TestRegDMABufMRErrors: invalid arguments fail with the errors of the kernel.
func TestRegDMABufMRErrors(t *testing.T) {
	r := newTestbed(t, Options{})
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
	readOnly, err := unix.Open(fmt.Sprint("/proc/self/fd/", file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(readOnly)
	for _, c := range []struct {
		name                 string
		file                 int
		offset, length, iova uint64
		access               ibv.AccessFlags
		errno                error
	}{
		{"negative descriptor", -1, 0, 1, 0, 0, syscall.EBADF},
		{"closed descriptor", 1 << 20, 0, 1, 0, 0, syscall.EBADF},
		{"directory", int(directory.Fd()), 0, 1, 0, 0, syscall.EINVAL},
		{"pipe", pipe[0], 0, 1, 0, 0, syscall.EINVAL},
		{"empty range", file, 0, 0, 0, 0, syscall.EINVAL},
		{"one byte too long", file, 0, size + 1, 0, 0, syscall.EINVAL},
		{"beyond the end", file, size, 1, 0, 0, syscall.EINVAL},
		{"far beyond the end", file, 1 << 63, 1, 0, 0, syscall.EINVAL},
		{"maximum length", file, 1, ^uint64(0), 1, 0, syscall.EINVAL},
		{"different offset in the page", file, 100, 1, 0, 0, syscall.EINVAL},
		{"memory windows", file, 0, 1, 0, ibv.ACCESS_MW_BIND, syscall.EINVAL},
		{"on demand", file, 0, 1, 0, ibv.ACCESS_ON_DEMAND, syscall.EINVAL},
		{"remote write without local write", file, 0, 1, 0, ibv.ACCESS_REMOTE_WRITE, syscall.EINVAL},
		{"write access to a read-only file", readOnly, 0, 1, 0, ibv.ACCESS_LOCAL_WRITE, syscall.EACCES},
	} {
		_, err := verbs.RegDMABufMR(r.pd[0], c.offset, c.length, c.iova, c.file, c.access)
		assert.ErrorIs(t, err, c.errno, c.name)
	}
	mr, err := verbs.RegDMABufMR(r.pd[0], 0, size, 0, readOnly, ibv.ACCESS_REMOTE_READ)
	require.NoError(t, err)
	require.NoError(t, verbs.DeregMR(mr))
	for _, mask := range []ibv.MRInitAttrMask{ibv.REG_MR_MASK_FD, ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET,
		ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET | ibv.REG_MR_MASK_IOVA | ibv.REG_MR_MASK_ADDR} {
		_, err := verbs.RegMREx(r.pd[0], &ibv.MRInitAttr{Length: 1, FD: int32(file), CompMask: mask})
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", mask)
	}
}

// TestTruncatedFile: access to memory of a truncated file fails with a completion status, not with a signal.
func TestTruncatedFile(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	size := 4 * os.Getpagesize()
	file, _ := memoryFile(t, size)
	defer unix.Close(file)
	mr, err := verbs.RegDMABufMR(s.pd[1], 0, uint64(size), 0, file, fileAccess)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(file, 0))
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 64))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 0, RKey: mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.poll(s.p.aSend).Status)
	require.NoError(t, verbs.DeregMR(mr))
}

// TestExportDMABuf: regions registered from an exported buffer or exported device memory share its memory, and keep it
// after the exporting object is destroyed.
func TestExportDMABuf(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	before := s.fabric.Resources()
	handle := new(ibv.Ptr[ibv.Buf])
	at, err := verbs.AllocBuf(s.pd[0], 5000, handle)
	require.NoError(t, err)
	dm, err := verbs.AllocDM(s.context[0], &ibv.AllocDMAttr{Length: 5000})
	require.NoError(t, err)
	bufferFD, err := verbs.ExportBufDMABufFD(handle.Deref())
	require.NoError(t, err)
	dmFD, err := verbs.DMExportDMABufFD(dm)
	require.NoError(t, err)
	assert.ErrorIs(t, unix.Ftruncate(bufferFD, 0), unix.EPERM, "a file in use cannot be truncated")
	for i, file := range []int{bufferFD, dmFD} {
		mr, err := verbs.RegDMABufMR(s.pd[1], 0, 5000, 0, file, fileAccess)
		require.NoError(t, err)
		require.NoError(t, unix.Close(file))
		s.writeAndRead(mr.RKey, 4990, "exported")
		got := offHeap[byte](s.testbed, 12) // device memory is copied in words
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
		assert.ErrorIs(t, err, syscall.EINVAL, "already freed")
		s.writeAndRead(mr.RKey, 0, "alive")
		require.NoError(t, verbs.DeregMR(mr))
	}
	assert.Equal(t, before, s.fabric.Resources())
}
