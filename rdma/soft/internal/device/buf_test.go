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
)

// TestBuffers: memory that the device allocates is registered by parts, in the domain that it is of, and can be freed
// before its regions.
func TestBuffers(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	handle := new(ibv.Ptr[ibv.Buf])
	nothing, err := verbs.AllocBuf(s.pd[1], 0, handle)
	require.NoError(t, err)
	_, err = verbs.RegBufMR(s.pd[1], handle.Deref(), nothing, 1, everything)
	assert.ErrorIs(t, err, syscall.EINVAL, "it has no bytes")
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
	at, err := verbs.AllocBuf(s.pd[1], size, handle)
	require.NoError(t, err)
	b := handle.Deref()
	assert.Zero(t, at%pageSize)
	assert.Equal(t, 1, s.fabric.Resources()["buf"])

	register := func(pd *ibv.PD, offset, length uint64) (*ibv.MR, error) {
		return verbs.RegBufMR(pd, b, uintptr(uint64(at)+offset), length, everything)
	}
	for _, bad := range [][2]uint64{{1, size}, {size + 1, 1}, {size, 1}, {^uint64(0), 2}, {0, size + 1},
		{4096, ^uint64(0)}} {
		_, err = register(s.pd[1], bad[0], bad[1])
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", bad)
	}
	_, err = register(s.pd[0], 0, 64)
	assert.ErrorIs(t, err, syscall.EINVAL, "of another domain")
	mr, err := register(s.pd[1], 4096, 64)
	require.NoError(t, err)
	extended, err := verbs.RegMREx(s.pd[1], &ibv.MRInitAttr{
		Length: size, Access: everything, Addr: at, Buf: ibv.PtrTo(b),
		CompMask: ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_BUF,
	})
	require.NoError(t, err)
	_, err = verbs.RegMREx(s.pd[1],
		&ibv.MRInitAttr{Length: size, Access: everything, Buf: ibv.PtrTo(b), CompMask: ibv.REG_MR_MASK_BUF})
	assert.ErrorIs(t, err, syscall.EINVAL, "without an address")

	memory := find[buf](uint64(*handle)).memory
	require.NoError(t, verbs.FreeBuf(b))
	assert.NoError(t, verbs.FreeBuf(b), "it is gone")
	_, err = register(s.pd[1], 0, 64)
	assert.ErrorIs(t, err, syscall.EINVAL)
	copy(s.here.bytes, "into a buffer")
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.here.sge(0, 13))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: uint64(at) + 4096, RKey: mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, "into a buffer", string(mem.List[byte](uint64(at)+4096, 13)), "a region keeps it")
	require.NoError(t, verbs.DeregMR(mr))
	assert.NotZero(t, memory.Address(), "one more region has it")
	require.NoError(t, verbs.DeregMR(extended))
	assert.Zero(t, memory.Address())
	assert.Equal(t, before, s.fabric.Resources())
}
