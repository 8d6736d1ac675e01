// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Numbers that overflow C's types, with or without the additional slots for drains, are rejected and not truncated.
func TestNumbersThatOverflowC(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	cq, err := d.CreateCQ(100, nil, 0)
	closeAtEnd(t, cq, err)
	for _, wide := range []int64{math.MinInt, -1, 0, math.MaxInt32 - 1, math.MaxInt32, math.MaxUint32,
		math.MaxUint32 + 6, math.MaxInt} {
		n := int(wide)
		if int64(n) != wide {
			continue // overflows a 32-bit int
		}
		_, err := d.CreateCQ(n, nil, 0)
		assert.ErrorIs(t, err, syscall.EINVAL, n)
		if wide >= 0 && wide <= math.MaxUint32 {
			_, err = d.CreateCQEx(&ibv.CQInitAttrEx{CQE: uint32(n)})
			assert.ErrorIs(t, err, syscall.EINVAL, n)
		}
		assert.ErrorIs(t, cq.Resize(n), syscall.EINVAL, n)
		assert.Equal(t, 100, cq.Len())
	}
	assert.ErrorContains(t, cq.Resize(math.MaxInt32-2), "max_cqe")
	caps, err := d.Query()
	require.NoError(t, err)
	require.NoError(t, cq.Resize(int(caps.MaxCQE)),
		"the maximum leaves no room for the reserve, as in CreateCQ")
	assert.EqualValues(t, caps.MaxCQE, cq.Len())
	require.NoError(t, cq.Resize(100))
	assert.Equal(t, 100, cq.Len())
	for want, cap := range map[string]ibv.QPCap{
		"max_send_wr is 4294967295, which exceeds": {MaxSendWR: math.MaxUint32, MaxRecvWR: 1, MaxSendSGE: 1,
			MaxRecvSGE: 1},
		"max_recv_wr is 4294967295, which exceeds": {MaxSendWR: 1, MaxRecvWR: math.MaxUint32, MaxSendSGE: 1,
			MaxRecvSGE: 1},
	} {
		_, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: cap},
			QueueOptions{Overcommit: true})
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, want)
	}
	_, err = pd.CreateSRQ(ibv.SRQAttr{MaxWR: math.MaxUint32, MaxSGE: 1}, QueueOptions{})
	assert.ErrorContains(t, err, "max_wr is 4294967295; it must be from 1 to the device's")
}

// Accessors of closed objects do not read C's memory.
func TestAccessorsOfClosedObjects(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	mw, err := e.pd.AllocMW(ibv.MW_TYPE_2)
	require.NoError(t, err)
	key := mw.NextRKey()
	mw.SetRKey(key)
	assert.Equal(t, key, mw.RKey())
	c := mw.C()
	require.NoError(t, mw.Close())
	c.RKey = 7 // simulates reuse of the memory
	mw.SetRKey(9)
	assert.Equal(t, key, mw.RKey())
	assert.EqualValues(t, 7, c.RKey)

	qp, err := e.pd.Device().CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
		Cap: smallCap, PD: e.pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ibv.QP_EX_WITH_SEND},
		QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, qp.Close())
	_, err = qp.NewWRProgram()
	assert.ErrorIs(t, err, ErrClosed)
}
