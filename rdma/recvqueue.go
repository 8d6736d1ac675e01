// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
)

// RecvQueue posts to the receive queue of a queue pair, or to a shared one. Any number of goroutines may use it at
// once, each with its own batch.
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue struct {
	queue
	verb   string   // of qp, or
	srq    *ibv.SRQ // or
	wq     *ibv.WQ  // one of the three
	states uint32   // bit set of ibv.QPState in which work may be posted
	sges   uint32   // the most entries
	least  uint32   // the fewest entries

	_ [28]byte // so that Go aligns it to cache lines
}

// NewRecvQueue returns the receive queue of a queue pair, which has to outlive it. A queue pair with a shared receive
// queue has none of its own.
func NewRecvQueue(qp *ibv.QP, o QueueOptions) (*RecvQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_recv", Argument: "qp"}
	}
	if qp.SRQ != 0 && !o.Unchecked {
		return nil, invalid("", "", "QP %#x receives from a shared receive queue", qp.QPNum)
	}
	q := &RecvQueue{verb: "ibv_post_recv", states: statesFor(ibv.WorkQueueRecv)}
	q.qp, q.num = qp, qp.QPNum
	return q, q.make(qp.Context.Deref().Ops.PostRecv, unsafe.Pointer(qp), &o)
}

// NewSharedRecvQueue returns a shared receive queue, which has to outlive it. Of Cap, it uses MaxRecvWR and MaxRecvSGE:
// max_wr and max_sge of ibv_srq_attr.
func NewSharedRecvQueue(srq *ibv.SRQ, o QueueOptions) (*RecvQueue, error) {
	if srq == nil || srq.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_srq_recv", Argument: "srq"}
	}
	q := &RecvQueue{verb: "ibv_post_srq_recv", srq: srq}
	q.anyOrder = true
	return q, q.make(srq.Context.Deref().Ops.PostSRQRecv, unsafe.Pointer(srq), &o)
}

// newWorkQueue returns the queue behind a work queue of C. It counts nothing, and has an owner.
func newWorkQueue(c *ibv.WQ, o QueueOptions) (*RecvQueue, error) {
	q := &RecvQueue{verb: "ibv_post_wq_recv", wq: c}
	o.Unchecked = true
	if err := q.make(c.PostRecv, unsafe.Pointer(c), &o); err != nil {
		return nil, err
	}
	q.lock()
	return q, nil
}

// resizeWith changes how many receives a shared receive queue holds, while nothing is posted: change does it in C,
// given how many receives are outstanding, as far as they are counted.
func (q *RecvQueue) resizeWith(n int, change func(outstanding int) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := change(q.outstanding()) // 0 of an unchecked queue
	if err == nil && q.capacity > 0 {
		q.resize(n) // though C may have made more of it
	}
	return err
}

func (q *RecvQueue) make(fn ibv.FuncPtr, object unsafe.Pointer, o *QueueOptions) error {
	q.sges = o.Cap.MaxRecvSGE
	if err := q.init(q, fn, object, provider.PostRecv, q.verb, o); err != nil || o.Unchecked {
		return err
	}
	o.knowing(q.provider)
	q.least = o.leastRecvSGE()
	return q.count(int(o.Cap.MaxRecvWR), true)
}

// Post posts the whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an
// error those before the one that failed. The error is a [*PostError], or says why the queue takes nothing; an empty
// batch is one.
func (q *RecvQueue) Post(b *RecvBatch) (posted int, err error) {
	err = q.poster.Post(&b.chain)
	return b.posted, err
}

// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
func (q *RecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	return q.post(&b.batch, from, to)
}

func (q *RecvQueue) sends() bool { return false }

func (q *RecvQueue) call(p Path, list, bad uintptr) int32 {
	first, refused := ibv.Ptr[ibv.RecvWR](list).Deref(), ibv.Ptr[ibv.Ptr[ibv.RecvWR]](bad).Deref()
	switch {
	case q.srq != nil:
		return p.PostSRQRecv(q.srq, first, refused)
	case q.wq != nil:
		return p.PostWQRecv(q.wq, first, refused)
	}
	return p.PostRecv(q.qp, first, refused)
}

// inState says whether the queue takes work now.
func (q *RecvQueue) inState() bool { return q.qp == nil || q.states>>(q.qp.State&31)&1 != 0 }

// unfit is the first request with more or fewer entries than the queue takes, or -1.
func (q *RecvQueue) unfit(b *batch, from, to int) int {
	most := q.sges - q.least
	for i := from; i < to; i++ {
		if uint32(b.wr(i).NumSGE)-q.least > most {
			return i
		}
	}
	return -1
}

func (q *RecvQueue) take(b *batch, from, to int) (m mark, ok bool) {
	if !q.inState() || q.unfit(b, from, to) >= 0 {
		return m, false
	}
	return q.takeRecv(b, from, to)
}

func (q *RecvQueue) explain(b *batch, from, to int) error {
	if !q.inState() {
		return q.failure(from, b.wr(from).WRID, einval, stateReason(q.qp.State, ibv.WorkQueueRecv))
	}
	if i := q.unfit(b, from, to); i >= 0 {
		w := b.wr(i)
		if uint32(w.NumSGE) < q.least {
			return q.failure(i, w.WRID, einval, "a receive without entries, which the device's library counts and "+
				"never gives to the device: give it an entry")
		}
		return q.failure(i, w.WRID, einval, fmt.Sprintf("%d entries, and the queue takes %d at most", w.NumSGE, q.sges))
	}
	errno, reason := q.noRoom(to - from)
	return q.failure(from, b.wr(from).WRID, errno, reason)
}

func (q *RecvQueue) failure(index int, id uint64, errno runtime.Errno, reason string) *PostError {
	e := &PostError{Verb: q.verb, Index: index, WRID: id, Errno: errno, Reason: reason}
	switch {
	case q.srq != nil:
		e.QPNum = q.srq.Handle
	case q.wq != nil:
		e.QPNum = q.wq.WQNum
	default:
		e.QPNum, e.QPType = q.qp.QPNum, q.qp.QPType
	}
	return e
}

// Retire gives back the slots that completions tell of, one each. Completions of other queues are passed over, but a
// shared receive queue cannot tell them: it takes every completion that is not a successful send's, so failed sends
// must not be handed to it. A [CompletionQueue] that tracks the queue with the send queue tells them apart by their
// wr_ids.
func (q *RecvQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retireWC(&wcs[i])
	}
}

// retireWC is Retire of one completion.
func (q *RecvQueue) retireWC(wc *ibv.WC) {
	if (q.qp == nil || wc.QPNum == q.num) && ofRecv(wc) {
		q.retire(wc.WRID, wc.Status == ibv.WC_SUCCESS)
	}
}

// ofRecv says whether a completion took a posted receive, if it is not of a send queue. Those of tag matching did not,
// because a tagged message goes to the buffer that its tag was added with; but one that matches no tag does take one.
func ofRecv(wc *ibv.WC) bool {
	switch wc.Status {
	case ibv.WC_SUCCESS:
	case ibv.WC_TM_ERR, ibv.WC_TM_RNDV_INCOMPLETE:
		return false
	default:
		return true
	}
	switch wc.Opcode {
	case ibv.WC_RECV, ibv.WC_RECV_RDMA_WITH_IMM, ibv.WC_TM_NO_TAG:
		return true
	case ibv.WC_TM_RECV:
		return wc.WCFlags&(ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID) == 0
	}
	return false
}
