// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// A bind occupies a slot of the send queue until it, or a later request, completes.
func TestBindMWIsCounted(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	var bound []uint64
	result := runtime.Errno(0)
	address, err := space.Slot(func(qp, mw, bind, _, _, _ uint64) (uint64, runtime.Errno) {
		assert.Equal(t, uint64(uintptr(unsafe.Pointer(&d.qp))), qp)
		if result == 0 {
			bound = append(bound, ibv.Ptr[ibv.MWBind](bind).Deref().WRID)
		}
		return uint64(result), 0
	})
	require.NoError(t, err)
	d.context.Ops.BindMW = ibv.FuncPtr(address)
	mw := &ibv.MW{Context: ibv.PtrTo(&d.context), Type: ibv.MW_TYPE_1}
	bind := func(id uint64, flags ibv.SendFlags) *ibv.MWBind { return &ibv.MWBind{WRID: id, SendFlags: flags} }

	q := sendQueue(t, d, options(3, 1, 0))
	require.NoError(t, q.BindMW(mw, bind(1, 0)))
	require.NoError(t, q.BindMW(mw, bind(2, ibv.SEND_SIGNALED)))
	assert.Equal(t, 1, q.Free())
	result = syscall.EPERM
	assert.ErrorIs(t, q.BindMW(mw, bind(3, ibv.SEND_SIGNALED)), syscall.EPERM)
	assert.Equal(t, 1, q.Free(), "the slot is free again")
	result = 0
	_, err = q.Post(writes(sendBatch(t, 1, 1, 0), 4, 1))
	require.NoError(t, err)
	err = q.BindMW(mw, bind(5, 0))
	assert.EqualError(t, err, "ibv_bind_mw: QP 0x12 (RC): WR 0 (id 0x5): a list of 1 does not fit: 0 of 3 slots are "+
		"free until completions are polled: cannot allocate memory")
	q.Retire([]ibv.WC{{WRID: 2, QPNum: 0x12, Opcode: ibv.WC_BIND_MW}})
	assert.Equal(t, 2, q.Free())

	assert.ErrorContains(t, q.BindMW(mw, bind(6, ibv.SEND_INLINE)),
		"ibv_bind_mw: QP 0x12 (RC): WR 0 (id 0x6): IBV_SEND_INLINE is not valid with IBV_WR_BIND_MW on RC")
	assert.ErrorIs(t, q.BindMW(mw, nil), syscall.EINVAL)
	assert.Equal(t, 2, q.Free())
	assert.Equal(t, []uint64{1, 2}, bound)

	o := options(3, 1, 0)
	o.Unchecked = true
	require.NoError(t, sendQueue(t, d, o).BindMW(mw, bind(10, 0)))
	assert.Equal(t, []uint64{1, 2, 10}, bound)
}
