// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestBuffers: parts of a buffer from ibv_alloc_buf are registered in its protection domain. The buffer can be freed
// before its regions.
func TestBuffers(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	handle := new(ibv.Ptr[ibv.Buf])
	empty, err := verbs.AllocBuf(s.pd[1], 0, handle)
	require.NoError(t, err)
	_, err = verbs.RegBufMR(s.pd[1], handle.Deref(), empty, 1, allAccess)
	assert.ErrorIs(t, err, syscall.EINVAL, "empty buffer")
	require.NoError(t, verbs.FreeBuf(handle.Deref()))
	_, err = verbs.AllocBuf(s.pd[1], 1<<62, handle)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	before := s.fabric.Resources()
	pd, err := verbs.AllocPD(s.context[1])
	require.NoError(t, err)
	_, err = verbs.AllocBuf(pd, 1, handle)
	require.NoError(t, err)
	assert.ErrorIs(t, verbs.DeallocPD(pd), syscall.EBUSY)
	require.NoError(t, verbs.FreeBuf(handle.Deref()))
	require.NoError(t, verbs.DeallocPD(pd))

	const size = 10_000
	addr, err := verbs.AllocBuf(s.pd[1], size, handle)
	require.NoError(t, err)
	b := handle.Deref()
	assert.Zero(t, addr%impl.PageSize)
	assert.Equal(t, 1, s.fabric.Resources()["buf"])

	register := func(pd *ibv.PD, offset, length uint64) (*ibv.MR, error) {
		return verbs.RegBufMR(pd, b, uintptr(uint64(addr)+offset), length, allAccess)
	}
	for _, bad := range [][2]uint64{{1, size}, {size + 1, 1}, {size, 1}, {^uint64(0), 2}, {0, size + 1},
		{4096, ^uint64(0)}} {
		_, err = register(s.pd[1], bad[0], bad[1])
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", bad)
	}
	_, err = register(s.pd[0], 0, 64)
	assert.ErrorIs(t, err, syscall.EINVAL, "another protection domain")
	mr, err := register(s.pd[1], 4096, 64)
	require.NoError(t, err)
	extended, err := verbs.RegMREx(s.pd[1], &ibv.MRInitAttr{
		Length: size, Access: allAccess, Addr: addr, Buf: ibv.PtrTo(b),
		CompMask: ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_BUF,
	})
	require.NoError(t, err)
	_, err = verbs.RegMREx(s.pd[1],
		&ibv.MRInitAttr{Length: size, Access: allAccess, Buf: ibv.PtrTo(b), CompMask: ibv.REG_MR_MASK_BUF})
	assert.ErrorIs(t, err, syscall.EINVAL, "no address")

	memory := impl.Find[impl.Buf](uint64(*handle)).Memory
	require.NoError(t, verbs.FreeBuf(b))
	assert.NoError(t, verbs.FreeBuf(b), "already freed")
	_, err = register(s.pd[1], 0, 64)
	assert.ErrorIs(t, err, syscall.EINVAL)
	copy(s.bufA.bytes, "into a buffer")
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 13))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: uint64(addr) + 4096, RKey: mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, "into a buffer", string(mem.List[byte](uint64(addr)+4096, 13)), "a region keeps the memory")
	require.NoError(t, verbs.DeregMR(mr))
	assert.NotZero(t, memory.Address(), "another region keeps the memory")
	require.NoError(t, verbs.DeregMR(extended))
	assert.Zero(t, memory.Address())
	assert.Equal(t, before, s.fabric.Resources())
}
