// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"io"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

func TestDeviceMemoryBounds(t *testing.T) {
	f, d, pd := fakePD(t)
	memory := make([]byte, 16)
	bytes := func(p uintptr, n uintptr) []byte { return unsafe.Slice(ibv.Ptr[byte](p).Deref(), n) }
	f.Do["alloc_dm"] = func(a []uintptr) uintptr {
		assert.EqualValues(t, 16, ibv.Ptr[ibv.AllocDMAttr](a[1]).Deref().Length)
		m := fakedevice.Object[ibv.DM](f)
		m.Context, m.Handle, m.MemcpyToDM, m.MemcpyFromDM = ibv.PtrTo(&f.Context.Context), 3, f.Slot("to"),
			f.Slot("from")
		return address(m)
	}
	f.Do["to"] = func(a []uintptr) uintptr { copy(memory[a[1]:], bytes(a[2], a[3])); return 0 }
	f.Do["from"] = func(a []uintptr) uintptr { copy(bytes(a[0], a[3]), memory[a[2]:]); return 0 }
	m, err := d.AllocDM(&ibv.AllocDMAttr{Length: 16})
	require.NoError(t, err)
	var _ interface {
		io.ReaderAt
		io.WriterAt
	} = m
	n, err := m.WriteAt([]byte("0123456789"), 2)
	require.NoError(t, err)
	assert.Equal(t, 10, n)
	n, err = m.WriteAt([]byte("0123456789"), 10)
	assert.Equal(t, 6, n)
	assert.ErrorIs(t, err, io.ErrShortWrite)
	assert.ErrorIs(t, err, syscall.EINVAL)
	got, err := io.ReadAll(io.NewSectionReader(m, 0, 100))
	require.NoError(t, err)
	assert.Equal(t, "\x00\x0001234567012345", string(got))
	_, err = m.ReadAt(got, -1)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = m.ReadAt(got, 16)
	assert.Equal(t, io.EOF, err)

	mr, err := pd.RegDMMR(m, 4, 8, ibv.ACCESS_ZERO_BASED|ibv.ACCESS_REMOTE_READ)
	require.NoError(t, err)
	assert.Zero(t, mr.Address())
	assert.EqualValues(t, 8, mr.Len())
	err = m.Close()
	assert.ErrorIs(t, err, ErrInUse)
	assert.ErrorContains(t, err, "DM 3 on fake: needed by MR")
	require.NoError(t, mr.Close())
	f.Do["ibv_dm_export_dmabuf_fd"] = func([]uintptr) uintptr { return 42 }
	fd, err := m.ExportDMABuf()
	require.NoError(t, err)
	assert.Equal(t, 42, fd)
	require.NoError(t, m.Close())
	_, err = m.ReadAt(got, 0)
	assert.ErrorIs(t, err, ErrClosed)
	imported, err := d.ImportDM(7)
	require.NoError(t, err)
	require.NoError(t, imported.Close())
	assert.Equal(t, []string{"alloc_dm", "to", "to", "from", "reg_dm_mr", "ibv_dereg_mr", "ibv_dm_export_dmabuf_fd",
		"free_dm", "ibv_import_dm", "ibv_unimport_dm"}, f.Took())
}

func TestProviderBuffer(t *testing.T) {
	f, _, pd := fakePD(t)
	memory := fakedevice.Object[[64]byte](f)
	f.Do["ibv_alloc_buf"] = func(a []uintptr) uintptr {
		assert.EqualValues(t, 64, a[1])
		*ibv.Ptr[ibv.Ptr[[8]byte]](a[2]).Deref() = ibv.PtrTo(fakedevice.Object[[8]byte](f))
		return address(memory)
	}
	b, err := pd.AllocBuf(64)
	require.NoError(t, err)
	b.Bytes()[5] = 9
	assert.EqualValues(t, 9, memory[5])
	_, err = pd.RegBufMR(b, 60, 8, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorContains(t, err, "8 bytes at offset 60 are not inside buffer of 64 bytes")
	mr, err := pd.RegBufMR(b, 32, 8, ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	assert.Equal(t, uint64(address(memory)+32), mr.Address())
	assert.Len(t, mr.Bytes(), 8)
	assert.ErrorIs(t, b.Close(), ErrInUse)
	require.NoError(t, mr.Close())
	other, err := pd.RegMREx(&ibv.MRInitAttr{Buf: b.Ptr(), Addr: address(memory), Length: 64,
		CompMask: ibv.REG_MR_MASK_BUF | ibv.REG_MR_MASK_ADDR})
	require.NoError(t, err)
	assert.ErrorIs(t, b.Close(), ErrInUse)
	require.NoError(t, other.Close())
	require.NoError(t, b.Close())
	_, err = b.ExportDMABuf()
	assert.ErrorIs(t, err, ErrClosed)
	_, err = pd.AllocBuf(0)
	assert.ErrorIs(t, err, syscall.EINVAL)
}
