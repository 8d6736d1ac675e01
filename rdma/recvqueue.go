// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// RecvQueue posts to the receive queue of a queue pair or to a shared receive queue. It is safe for concurrent use, if
// each goroutine has its own batch.
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue struct {
	queue
	rules recvRules

	_ [56 - unsafe.Sizeof(uintptr(0))]byte // pads to a size class that is aligned to cache lines
}

// recvRules holds the C object of a receive queue and the checks of its requests.
type recvRules struct {
	srq    *ibv.SRQ // of a shared receive queue, or nil
	wq     *ibv.WQ  // of a work queue, or nil
	states uint32   // bit set of ibv.QPState in which requests may be posted
	sges   uint32   // maximum number of entries
	least  uint32   // minimum number of entries
}

// NewRecvQueue returns the receive queue of a C queue pair, which must outlive it. Queue pairs that use a shared
// receive queue have none.
func NewRecvQueue(qp *ibv.QP, o QueueOptions) (*RecvQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_recv", Argument: "qp"}
	}
	if qp.SRQ != 0 && !o.Unchecked {
		return nil, invalid("", "", "QP %#x receives from a shared receive queue", qp.QPNum)
	}
	q := new(RecvQueue)
	q.qp, q.num, q.verb, q.rules.states = qp, qp.QPNum, "ibv_post_recv", statesFor(ibv.WorkQueueRecv)
	return q, q.make(qp.Context.Deref().Ops.PostRecv, unsafe.Pointer(qp), qp.Context, &o)
}

// NewSharedRecvQueue returns the queue of a C shared receive queue, which must outlive it. Cap.MaxRecvWR and
// Cap.MaxRecvSGE are max_wr and max_sge of ibv_srq_attr; the other capacities are ignored.
func NewSharedRecvQueue(srq *ibv.SRQ, o QueueOptions) (*RecvQueue, error) {
	if srq == nil || srq.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_srq_recv", Argument: "srq"}
	}
	q := new(RecvQueue)
	q.verb, q.rules.srq, q.anyOrder = "ibv_post_srq_recv", srq, true
	return q, q.make(srq.Context.Deref().Ops.PostSRQRecv, unsafe.Pointer(srq), srq.Context, &o)
}

// newWorkQueue returns the queue of a C work queue. It has an owner and does not count slots.
func newWorkQueue(c *ibv.WQ, o QueueOptions) (*RecvQueue, error) {
	q := new(RecvQueue)
	q.verb, q.rules.wq = "ibv_post_wq_recv", c
	o.Unchecked = true
	if err := q.make(c.PostRecv, unsafe.Pointer(c), c.Context, &o); err != nil {
		return nil, err
	}
	q.useLock()
	return q, nil
}

// resizeWith changes the capacity of a shared receive queue while no post is in progress. change resizes it in C; its
// argument is the number of outstanding receives, or 0 if they are not counted.
func (q *RecvQueue) resizeWith(n int, change func(outstanding int) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := change(q.outstanding())
	if err == nil && q.capacity > 0 {
		q.resize(n) // C may have allocated more
	}
	return err
}

func (q *RecvQueue) make(fn ibv.FuncPtr, object unsafe.Pointer, c ibv.Ptr[ibv.Context], o *QueueOptions) error {
	q.recv = &q.rules
	if err := q.init(fn, object, provider.PostRecv, o); err != nil || o.Unchecked {
		return err
	}
	o.restrict(driverOf(q.provider, c))
	if q.rules.sges = o.Cap.MaxRecvSGE; o.narrow {
		q.rules.least = min(1, q.rules.sges)
	}
	return q.count(int(o.Cap.MaxRecvWR), true)
}

// Post posts the whole batch in one call. Its results are those of [SendQueue.Post].
func (q *RecvQueue) Post(b *RecvBatch) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_recv")
	}
	if b == nil {
		return 0, q.batchError(errBatchNil)
	}
	return q.postAll(&b.batch)
}

// PostRange is [SendQueue.PostRange].
func (q *RecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_recv")
	}
	if b == nil {
		return 0, q.batchError(errBatchNil)
	}
	return q.post(&b.batch, from, to)
}

// inState reports whether the queue pair's state permits receives.
func (r *recvRules) inState(qp *ibv.QP) bool { return qp == nil || r.states>>(qp.State&31)&1 != 0 }

// wrongSGEs returns the index of the first request with too many or too few entries, or -1.
func (r *recvRules) wrongSGEs(b *batch, from, to int) int {
	most := r.sges - r.least
	for i := from; i < to; i++ {
		if uint32(b.wr(i).NumSGE)-r.least > most {
			return i
		}
	}
	return -1
}

// explain returns the index of the first request that breaks a rule and the reason, or from and "".
func (r *recvRules) explain(qp *ibv.QP, b *batch, from, to int) (index int, reason string) {
	if !r.inState(qp) {
		return from, stateReason(qp.State, ibv.WorkQueueRecv)
	}
	switch i := r.wrongSGEs(b, from, to); {
	case i < 0:
		return from, ""
	case uint32(b.wr(i).NumSGE) < r.least:
		return i, "no entries; the device's library would count the receive but never pass it to the device: add an " +
			"entry"
	default:
		return i, fmt.Sprintf("%d entries exceed the queue's limit of %d", b.wr(i).NumSGE, r.sges)
	}
}

// Retire frees one slot for each completion of the queue. It ignores completions of other queues. A shared receive
// queue cannot recognize those: it counts every completion except successful sends, so do not pass failed sends to it.
// A [CompletionQueue] that tracks the queue together with the send queue distinguishes them by wr_id.
func (q *RecvQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retireWC(&wcs[i])
	}
}

// retireWC retires one completion.
func (q *RecvQueue) retireWC(wc *ibv.WC) {
	if (q.qp == nil || wc.QPNum == q.num) && isRecvCompletion(wc) {
		q.retire(wc.WRID, wc.Status == ibv.WC_SUCCESS)
	}
}

// isRecvCompletion reports whether a completion consumed a posted receive. Completions of tag matching did not, because a
// tagged message goes to the buffer of its tag, unless the message matched no tag.
func isRecvCompletion(wc *ibv.WC) bool {
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
