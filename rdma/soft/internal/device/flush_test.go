// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestFlushAccess: the queue pair and the region must allow the placement type of a flush, and the range must be inside
// the region. A flush of an entire region ignores the range.
func TestFlushAccess(t *testing.T) {
	const global, persistent = uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_PERSISTENT)
	const part, entire = uint8(ibv.FLUSH_RANGE), uint8(ibv.FLUSH_MR)
	const both = ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_FLUSH_PERSISTENT
	for name, c := range map[string]struct {
		region, queue    ibv.AccessFlags
		offset           int
		length           uint64
		placement, level uint8
		want             ibv.WCStatus
	}{
		"complete range":               {both, both, 0, 4096, global | persistent, part, ibv.WC_SUCCESS},
		"entire region, range ignored": {both, both, 9000, 1 << 40, global | persistent, entire, ibv.WC_SUCCESS},
		"beyond the region":            {both, both, 1, 4096, global, part, ibv.WC_REM_ACCESS_ERR},
		"maximum length":               {both, both, 1, ^uint64(0), global, part, ibv.WC_REM_ACCESS_ERR},
		"region not global":            {ibv.ACCESS_FLUSH_PERSISTENT, both, 0, 8, global, part, ibv.WC_REM_ACCESS_ERR},
		"region not persistent":        {ibv.ACCESS_FLUSH_GLOBAL, both, 0, 8, persistent, part, ibv.WC_REM_ACCESS_ERR},
		"entire region not persistent": {ibv.ACCESS_FLUSH_GLOBAL, both, 0, 8, global | persistent, entire,
			ibv.WC_REM_ACCESS_ERR},
		"queue pair without global": {both, ibv.ACCESS_FLUSH_PERSISTENT, 0, 8, global, part,
			ibv.WC_REM_INV_REQ_ERR},
		"queue pair without persistent": {both, ibv.ACCESS_FLUSH_GLOBAL, 0, 8, persistent, part,
			ibv.WC_REM_INV_REQ_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestbed(t, Options{Virtual: true, Devices: []DeviceOptions{{}, {Persistent: true}}})
			send, recv := r.cq(0, 16), r.cq(1, 16)
			a, x := r.newWithBuilders(ibv.QPT_RC, ibv.QP_EX_WITH_FLUSH, send)
			b := r.qp(1, ibv.QPT_RC, testCaps, recv, recv)
			r.connect(a, 1, b.QPNum)
			r.connect(b, 0, a.QPNum)
			require.NoError(t, verbs.ModifyQP(b, &ibv.QPAttr{QPAccessFlags: c.queue}, ibv.QP_ACCESS_FLAGS))
			bufB := r.buffer(1, 4096, c.region)
			require.NoError(t, verbs.WRStart(x))
			x.WRFlags = ibv.SEND_SIGNALED
			require.NoError(t, verbs.WRFlush(x, bufB.mr.RKey, uint64(mem.AddressOf(&bufB.bytes[0]))+uint64(c.offset),
				c.length, c.placement, c.level))
			require.NoError(t, verbs.WRComplete(x))
			assert.Equal(t, c.want, r.poll(send).Status)
		})
	}
	r := newTestbed(t, Options{})
	_, err := verbs.RegMR(r.pd[0], pointerTo(&offHeap[byte](r, 64)[0]), 64, ibv.ACCESS_FLUSH_PERSISTENT)
	assert.ErrorIs(t, err, syscall.EINVAL, "device without persistent memory")
}

// TestCapabilityBits compares the bits that verbs.h does not define with the kernel's header, which the package does
// not import.
func TestCapabilityBits(t *testing.T) {
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL, uint64(impl.FlushGlobal))
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT, uint64(impl.FlushPersistent))
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_ATOMIC_WRITE, uint64(impl.AtomicWrite))
}
