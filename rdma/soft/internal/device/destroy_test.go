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

// told is an object that a program got an event of.
type told struct {
	kind        string
	destroy     func() error
	acknowledge func()
}

// toldCQ gets the event of a completion.
func (r *rig) toldCQ() told {
	ch, err := verbs.CreateCompChannel(r.context[0])
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyCompChannel(ch)) })
	cq, err := verbs.CreateCQ(r.context[0], 4, 0, ch, 0)
	require.NoError(r.t, err)
	require.NoError(r.t, verbs.ReqNotifyCQ(cq, 0))
	r.toItself(cq, nil, r.send(1, ibv.WR_RDMA_WRITE))
	r.cqEvent(ch)
	return told{"cq", func() error { return verbs.DestroyCQ(cq) }, func() { verbs.AckCQEvents(cq, 1) }}
}

// toldSRQ gets the event of its limit.
func (r *rig) toldSRQ() told {
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(r.t, err)
	return told{"srq", func() error { return verbs.DestroySRQ(srq) }, r.limitReached(srq)}
}

func (r *rig) limitReached(srq *ibv.SRQ) (acknowledge func()) {
	require.NoError(r.t, verbs.PostSRQRecv(srq, &outside[ibv.RecvWR](r, 1)[0], &outside[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
	require.NoError(r.t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 1}, ibv.SRQ_LIMIT))
	r.toItself(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	return r.event(ibv.EVENT_SRQ_LIMIT_REACHED)
}

// toldQP gets the event of a request that it refused.
func (r *rig) toldQP() told {
	cq := r.cq(0, 4)
	qp := r.itself(cq, nil)
	require.NoError(r.t, verbs.ModifyQP(qp, &ibv.QPAttr{}, ibv.QP_ACCESS_FLAGS))
	require.NoError(r.t, r.post(qp, r.send(1, ibv.WR_RDMA_READ)))
	return told{"qp", func() error { return verbs.DestroyQP(qp) }, r.event(ibv.EVENT_QP_REQ_ERR)}
}

// itself is a queue pair that is its own peer; toItself makes one send a request, then destroys it.
func (r *rig) itself(cq *ibv.CQ, srq *ibv.SRQ) *ibv.QP {
	qp, err := verbs.CreateQP(r.pd[0],
		&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), SRQ: ibv.PtrTo(srq),
			Cap: testCaps})
	require.NoError(r.t, err)
	r.connect(qp, 0, qp.QPNum)
	return qp
}

func (r *rig) toItself(cq *ibv.CQ, srq *ibv.SRQ, wr *ibv.SendWR) {
	qp := r.itself(cq, srq)
	require.NoError(r.t, r.post(qp, wr))
	require.NoError(r.t, verbs.DestroyQP(qp))
}

// event gets the next event, and acknowledges it when it is called.
func (r *rig) event(want ibv.EventType) (acknowledge func()) {
	event := r.asyncEvent(0, want)
	return func() { verbs.AckAsyncEvent(event) }
}

// TestDestroyedTwice: two goroutines destroy an object with an event that was not acknowledged. Both wait; then one
// destroys it, and the other gets an error because it is gone.
func TestDestroyedTwice(t *testing.T) {
	for _, make := range []func(*rig) told{(*rig).toldCQ, (*rig).toldSRQ, (*rig).toldQP} {
		r := newRig(t, Options{})
		o := make(r)
		t.Run(o.kind, func(t *testing.T) {
			before := r.fabric.Resources()[o.kind]
			ended := destroying(o, 2)
			select {
			case err := <-ended:
				t.Fatalf("%v, and the event was not acknowledged", err)
			case <-time.After(20 * time.Millisecond):
			}
			o.acknowledge()
			errs := []error{<-ended, <-ended}
			if errs[0] != nil {
				errs[0], errs[1] = errs[1], errs[0]
			}
			assert.NoError(t, errs[0])
			assert.ErrorIs(t, errs[1], syscall.EINVAL)
			assert.Equal(t, before-1, r.fabric.Resources()[o.kind])
			for range 8 { // memory that was freed twice would be given to two
				r.cq(0, 1)
			}
		})
	}
}

// destroying destroys an object, on several goroutines.
func destroying(o told, times int) <-chan error {
	ended := make(chan error, times)
	for range times {
		go func() { ended <- o.destroy() }()
	}
	return ended
}

// TestUsedWhileItGoes: a queue that comes into use while it waits to be destroyed stays.
func TestUsedWhileItGoes(t *testing.T) {
	r := newRig(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	acknowledge := r.limitReached(srq)
	ended := destroying(told{destroy: func() error { return verbs.DestroySRQ(srq) }}, 1)
	time.Sleep(20 * time.Millisecond)
	qp := r.itself(r.cq(0, 4), srq)
	acknowledge()
	assert.ErrorIs(t, <-ended, syscall.EBUSY)
	require.NoError(t, verbs.DestroyQP(qp))
	require.NoError(t, verbs.DestroySRQ(srq))
}

// TestTooManyAcknowledged: acknowledging more events than there were does not block for ever.
func TestTooManyAcknowledged(t *testing.T) {
	r := newRig(t, Options{})
	o := r.toldCQ()
	o.acknowledge()
	o.acknowledge()
	select {
	case err := <-destroying(o, 1):
		assert.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits")
	}
}
