// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// openSoft opens a device of a new software fabric.
func openSoft(t testing.TB) *Device {
	t.Helper()
	before := goleak.IgnoreCurrent()
	cleanups := goleak.IgnoreAnyFunction("runtime.runCleanups") // runs the cleanups
	t.Cleanup(func() { assert.NoError(t, goleak.Find(before, cleanups), "goroutines leaked by the test") })
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	return closeAtEnd(t, d, err)
}

// closeAtEnd closes an object when the test ends.
func closeAtEnd[T interface{ Close() error }](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

// testQP is a queue pair with the objects it uses.
type testQP struct {
	t       testing.TB
	pd      *PD
	channel *CompChannel
	cq      *CQ
	qp      *QP
	send    *SendBatch
	recv    *RecvBatch
	wcs     []ibv.WC
}

var smallCap = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}

func newTestQP(t testing.TB, pd *PD, kind ibv.QPType, srq *SRQ, o QueueOptions) *testQP {
	t.Helper()
	e := &testQP{t: t, pd: pd, wcs: make([]ibv.WC, 64)}
	channel, err := pd.Device().CreateCompChannel()
	e.channel = closeAtEnd(t, channel, err)
	cq, err := pd.Device().CreateCQ(64, e.channel, 0)
	e.cq = closeAtEnd(t, cq, err)
	cq.SetBusyPoll(0) // waits sleep
	e.qp = closeAtEnd(t, e.newQP(kind, srq, o), nil)
	send, err := NewSendBatch(16, 1, 0)
	e.send = closeAtEnd(t, send, err)
	recv, err := NewRecvBatch(16, 1)
	e.recv = closeAtEnd(t, recv, err)
	return e
}

// newQP creates another queue pair with the same completion queue.
func (e *testQP) newQP(kind ibv.QPType, srq *SRQ, o QueueOptions) *QP {
	e.t.Helper()
	attr := &ibv.QPInitAttr{QPType: kind, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(), Cap: smallCap}
	if srq != nil {
		attr.SRQ = srq.Ptr()
	}
	qp, err := e.pd.CreateQP(attr, o)
	require.NoError(e.t, err)
	return qp
}

// connectToSelf connects a queue pair to itself.
func connectToSelf(t testing.TB, qp *QP) *QP {
	t.Helper()
	if qp.Type() == ibv.QPT_UD {
		require.NoError(t, qp.Ready())
		return qp
	}
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
	return qp
}

// selfConnected returns a queue pair that is connected to itself.
func selfConnected(t testing.TB, kind ibv.QPType) *testQP {
	t.Helper()
	pd, err := openSoft(t).AllocPD()
	e := newTestQP(t, closeAtEnd(t, pd, err), kind, nil, QueueOptions{})
	connectToSelf(t, e.qp)
	return e
}

// write posts signaled empty writes, which access no memory.
func (e *testQP) write(from uint64, n int) {
	e.t.Helper()
	_, err := e.qp.PostSend(emptyWrites(e.send, from, n))
	require.NoError(e.t, err)
}

func emptyWrites(b *SendBatch, from uint64, n int) *SendBatch {
	b.Reset()
	for i := range uint64(n) {
		b.Write(from+i, 0, 0).Signaled()
	}
	return b
}

// receive posts empty receives.
func (e *testQP) receive(from uint64, n int) {
	e.t.Helper()
	e.recv.Reset()
	for i := range uint64(n) {
		e.recv.Recv(from + i)
	}
	_, err := e.qp.PostRecv(e.recv)
	require.NoError(e.t, err)
}

// timeout returns a context with a timeout that ends hanging tests. Many goroutines on a busy machine can take 20 s.
func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
