// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// keep closes an object when the test ends.
func keep[T interface{ Close() error }](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

func softPD(t testing.TB) *PD {
	t.Helper()
	f, err := soft.Default()
	require.NoError(t, err)
	d, err := OpenOn(f, "soft0")
	d = keep(t, d, err)
	pd, err := d.AllocPD()
	return keep(t, pd, err)
}

// softPeer is a queue pair of the software device with its completion queue and memory.
type softPeer struct {
	t  testing.TB
	cq *CQ
	qp *QP
	mr *MR
}

const everyAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_MW_BIND

func newSoftPeer(t testing.TB, pd *PD, kind ibv.QPType) *softPeer {
	t.Helper()
	e := &softPeer{t: t}
	cq, err := pd.Device().CreateCQ(64, nil, 0)
	e.cq = keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: kind, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{})
	e.qp = keep(t, qp, err)
	mr, err := pd.RegMR(make([]byte, 4096), everyAccess)
	e.mr = keep(t, mr, err)
	return e
}

func connectSoft(t testing.TB, a, b *QP) {
	t.Helper()
	for _, ends := range [][2]*QP{{a, b}, {b, a}} {
		peer, err := ends[1].Endpoint()
		require.NoError(t, err)
		require.NoError(t, ends[0].Connect(peer))
	}
}

// post posts the requests that fill builds and returns their completion.
func (e *softPeer) post(fill func(b *SendBatch)) ibv.WC {
	e.t.Helper()
	b := sendBatch(e.t, 4, 1, 0)
	fill(b)
	_, err := e.qp.PostSend(b)
	require.NoError(e.t, err)
	return e.completion()
}

func (e *softPeer) completion() ibv.WC {
	e.t.Helper()
	return softCompletion(e.t, e.cq)
}

func softCompletion(t testing.TB, cq *CQ) ibv.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wcs := make([]ibv.WC, 1)
	_, err := cq.WaitBusy(ctx, wcs)
	require.NoError(t, err)
	return wcs[0]
}

// TestWaitingWithAVirtualClock: a wait for completions advances the virtual clock, even to timers of requests posted
// during the wait.
func TestWaitingWithAVirtualClock(t *testing.T) {
	f, err := soft.New(soft.Options{Virtual: true, Faults: soft.Faults{Delay: 1, Late: time.Hour}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	d, err := OpenOn(f, "soft0")
	d = keep(t, d, err)
	pd, err := d.AllocPD()
	pd = keep(t, pd, err)
	ch, err := d.CreateCompChannel()
	ch = keep(t, ch, err)
	cq, err := d.CreateCQ(8, ch, 0)
	cq = keep(t, cq, err)
	ends := make([]*QP, 2)
	for i := range ends {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{})
		ends[i] = keep(t, qp, err)
	}
	connectSoft(t, ends[0], ends[1])
	cq.SetBusyPoll(0)
	recvs, err := NewRecvBatch(1, 1)
	recvs = keep(t, recvs, err)
	recvs.Recv(1)
	_, err = ends[1].PostRecv(recvs)
	require.NoError(t, err)

	got := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := cq.Wait(ctx, make([]ibv.WC, 1))
		got <- err
	}()
	time.Sleep(100 * time.Millisecond) // until it sleeps
	b := sendBatch(t, 1, 1, 0)
	b.Send(2)
	_, err = ends[0].PostSend(b)
	require.NoError(t, err)
	assert.NoError(t, <-got)
}
