// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

func TestQueries(t *testing.T) {
	r := testbed.Open(t)
	attr := new(ibv.DeviceAttr)
	require.NoError(t, verbs.QueryDevice(r.Context, attr))
	assert.EqualValues(t, 1, attr.PhysPortCnt)
	assert.Equal(t, ibv.ATOMIC_HCA, attr.AtomicCap)
	assert.Greater(t, attr.MaxQP, int32(100))
	more := new(ibv.DeviceAttrEx)
	require.NoError(t, verbs.QueryDeviceEx(r.Context, nil, more))
	assert.Equal(t, *attr, more.OrigAttr)
	assert.ErrorIs(t, verbs.QueryDeviceEx(r.Context, &ibv.QueryDeviceExInput{CompMask: 1}, more), syscall.EINVAL)

	assert.Equal(t, ibv.PORT_ACTIVE, r.Port.State)
	assert.Equal(t, ibv.LINK_LAYER_ETHERNET, r.Port.LinkLayer)
	assert.ErrorIs(t, verbs.QueryPort(r.Context, 9, new(ibv.PortAttr)), syscall.EINVAL)

	gid := new(ibv.GID)
	require.NoError(t, verbs.QueryGID(r.Context, testbed.PortNum, int(r.Index), gid))
	assert.Equal(t, r.GID, *gid)
	assert.Error(t, verbs.QueryGID(r.Context, testbed.PortNum, 1<<20, gid))
	entry := new(ibv.GIDEntry)
	require.NoError(t, verbs.QueryGIDEx(r.Context, testbed.PortNum, uint32(r.Index), entry, 0))
	assert.Equal(t, ibv.GID_TYPE_ROCE_V2, entry.GIDType)
	assert.ErrorIs(t, verbs.QueryGIDEx(r.Context, testbed.PortNum, 1<<20, entry, 0), syscall.EINVAL)
	pkey := new(ibv.BE16)
	require.NoError(t, verbs.QueryPKey(r.Context, testbed.PortNum, 0, pkey))
	assert.EqualValues(t, 0xffff, pkey.Host())
	index, err := verbs.GetPKeyIndex(r.Context, testbed.PortNum, *pkey)
	require.NoError(t, err)
	assert.Zero(t, index)
}

// TestSharedReceives checks that two queue pairs share receives, and that an event is raised below the limit.
func TestSharedReceives(t *testing.T) {
	r := testbed.Open(t)
	srq, err := verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	_, err = verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 1 << 30, MaxSGE: 1}})
	assert.ErrorIs(t, err, syscall.EINVAL)
	attr := new(ibv.SRQAttr)
	require.NoError(t, verbs.QuerySRQ(srq, attr))
	assert.GreaterOrEqual(t, attr.MaxWR, uint32(8))
	buffer := r.Buffer(4096, ibv.ACCESS_LOCAL_WRITE)
	wrs, sges, bad := testbed.Records[ibv.RecvWR](r, 4), testbed.Records[ibv.SGE](r, 4),
		&testbed.Records[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	for i := range wrs {
		sges[i] = buffer.SGE(i*64, 64)
		wrs[i] = ibv.RecvWR{WRID: uint64(i), SGList: ibv.PtrTo(&sges[i]), NumSGE: 1}
		if i+1 < len(wrs) {
			wrs[i].Next = ibv.PtrTo(&wrs[i+1])
		}
	}
	require.NoError(t, verbs.PostSRQRecv(srq, &wrs[0], bad))
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 4}, ibv.SRQ_LIMIT))
	assert.ErrorIs(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 1 << 20}, ibv.SRQ_LIMIT), syscall.EINVAL)

	send, recv := r.CQ(16), r.CQ(16)
	from := r.QP(ibv.QPT_RC, send, send)
	to, err := verbs.CreateQP(r.PD,
		&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(recv), RecvCQ: ibv.PtrTo(recv), SRQ: ibv.PtrTo(srq),
			Cap: testbed.Caps})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
	r.Connect(from, to)
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND, ibv.SEND_SIGNALED, buffer.SGE(2048, 32)
	_, err = l.Post(from)
	require.NoError(t, err)
	assert.Equal(t, ibv.WC_SUCCESS, r.Completion(send).Status)
	wc := r.Completion(recv)
	assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
	assert.EqualValues(t, 32, wc.ByteLen)
	event := &testbed.Records[ibv.AsyncEvent](r, 1)[0]
	require.NoError(t,
		testbed.Within("IBV_EVENT_SRQ_LIMIT_REACHED", func() error { return verbs.GetAsyncEvent(r.Context, event) }))
	assert.Equal(t, ibv.EVENT_SRQ_LIMIT_REACHED, event.EventType)
	assert.Equal(t, ibv.PtrTo(srq), *event.Element.SRQ())
	require.NoError(t, verbs.AckAsyncEvent(event))
	assert.Error(t, verbs.DestroySRQ(srq), "in use by a queue pair")
}

// TestBusy checks that an object that is in use cannot be destroyed and remains usable.
func TestBusy(t *testing.T) {
	r := testbed.Open(t)
	r.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, verbs.DeallocPD(r.PD), syscall.EBUSY)
	r.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
}
