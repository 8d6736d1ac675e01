// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// pendingEvent is an object with an event that the program received and has not acknowledged.
type pendingEvent struct {
	kind        string
	destroy     func() error
	acknowledge func()
}

// cqWithEvent returns a completion queue with an unacknowledged event.
func (r *testbed) cqWithEvent() pendingEvent {
	ch, err := verbs.CreateCompChannel(r.context[0])
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyCompChannel(ch)) })
	cq, err := verbs.CreateCQ(r.context[0], 4, 0, ch, 0)
	require.NoError(r.t, err)
	require.NoError(r.t, verbs.ReqNotifyCQ(cq, 0))
	r.postLoopback(cq, nil, r.send(1, ibv.WR_RDMA_WRITE))
	r.cqEvent(ch)
	return pendingEvent{"cq", func() error { return verbs.DestroyCQ(cq) }, func() { verbs.AckCQEvents(cq, 1) }}
}

// srqWithEvent returns a shared receive queue with an unacknowledged limit event.
func (r *testbed) srqWithEvent() pendingEvent {
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(r.t, err)
	return pendingEvent{"srq", func() error { return verbs.DestroySRQ(srq) }, r.limitReached(srq)}
}

func (r *testbed) limitReached(srq *ibv.SRQ) (acknowledge func()) {
	require.NoError(r.t, verbs.PostSRQRecv(srq, &offHeap[ibv.RecvWR](r, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
	require.NoError(r.t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 1}, ibv.SRQ_LIMIT))
	r.postLoopback(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	return r.event(ibv.EVENT_SRQ_LIMIT_REACHED)
}

// qpWithEvent returns a queue pair with an unacknowledged event for a request that it rejected.
func (r *testbed) qpWithEvent() pendingEvent {
	cq := r.cq(0, 4)
	qp := r.loopback(cq, nil)
	require.NoError(r.t, verbs.ModifyQP(qp, &ibv.QPAttr{}, ibv.QP_ACCESS_FLAGS))
	require.NoError(r.t, r.post(qp, r.send(1, ibv.WR_RDMA_READ)))
	return pendingEvent{"qp", func() error { return verbs.DestroyQP(qp) }, r.event(ibv.EVENT_QP_REQ_ERR)}
}

// loopback creates a queue pair connected to itself; postLoopback posts a request to one, then destroys it.
func (r *testbed) loopback(cq *ibv.CQ, srq *ibv.SRQ) *ibv.QP {
	qp, err := verbs.CreateQP(r.pd[0],
		&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), SRQ: ibv.PtrTo(srq),
			Cap: testCaps})
	require.NoError(r.t, err)
	r.connect(qp, 0, qp.QPNum)
	return qp
}

func (r *testbed) postLoopback(cq *ibv.CQ, srq *ibv.SRQ, wr *ibv.SendWR) {
	qp := r.loopback(cq, srq)
	require.NoError(r.t, r.post(qp, wr))
	require.NoError(r.t, verbs.DestroyQP(qp))
}

// event receives the next event, and returns a function that acknowledges it.
func (r *testbed) event(want ibv.EventType) (acknowledge func()) {
	event := r.asyncEvent(0, want)
	return func() { verbs.AckAsyncEvent(event) }
}

// TestConcurrentDestroy: two goroutines destroy an object with an unacknowledged event. Both wait for the
// acknowledgement; then one call succeeds and the other returns EINVAL.
func TestConcurrentDestroy(t *testing.T) {
	for _, create := range []func(*testbed) pendingEvent{
		(*testbed).cqWithEvent, (*testbed).srqWithEvent, (*testbed).qpWithEvent,
	} {
		r := newTestbed(t, Options{})
		o := create(r)
		t.Run(o.kind, func(t *testing.T) {
			before := r.fabric.Resources()[o.kind]
			results := destroyAsync(o, 2)
			select {
			case err := <-results:
				t.Fatalf("destroy returned %v before the event was acknowledged", err)
			case <-time.After(20 * time.Millisecond):
			}
			o.acknowledge()
			errs := []error{<-results, <-results}
			if errs[0] != nil {
				errs[0], errs[1] = errs[1], errs[0]
			}
			assert.NoError(t, errs[0])
			assert.ErrorIs(t, errs[1], syscall.EINVAL)
			assert.Equal(t, before-1, r.fabric.Resources()[o.kind])
			for range 8 { // memory that was freed twice would be allocated twice
				r.cq(0, 1)
			}
		})
	}
}

// destroyAsync destroys an object on several goroutines.
func destroyAsync(o pendingEvent, times int) <-chan error {
	results := make(chan error, times)
	for range times {
		go func() { results <- o.destroy() }()
	}
	return results
}

// TestUseDuringDestroy: destroying a queue fails if a queue pair starts to use it in the meantime.
func TestUseDuringDestroy(t *testing.T) {
	r := newTestbed(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	acknowledge := r.limitReached(srq)
	results := destroyAsync(pendingEvent{destroy: func() error { return verbs.DestroySRQ(srq) }}, 1)
	time.Sleep(20 * time.Millisecond)
	qp := r.loopback(r.cq(0, 4), srq)
	acknowledge()
	assert.ErrorIs(t, <-results, syscall.EBUSY)
	require.NoError(t, verbs.DestroyQP(qp))
	require.NoError(t, verbs.DestroySRQ(srq))
}

// TestExcessAcknowledgements: destroying a queue does not block after too many events were acknowledged.
func TestExcessAcknowledgements(t *testing.T) {
	r := newTestbed(t, Options{})
	o := r.cqWithEvent()
	o.acknowledge()
	o.acknowledge()
	select {
	case err := <-destroyAsync(o, 1):
		assert.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("destroy blocks")
	}
}
