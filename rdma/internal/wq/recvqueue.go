package wq

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// RecvQueue posts to the receive queue of a queue pair, or to a shared one. Any number of goroutines may use it at once, each with its
// own batch.
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue struct {
	slot
	poster    runtime.Poster // of an unchecked queue, unless it blocks; the others post by PostRange
	verb      string
	qp        *ibv.QP  // or
	num       uint32   // of that, which may be gone
	srq       *ibv.SRQ // or
	wq        *ibv.WQ  // one of the three
	unchecked bool
	locked    bool   // posts hold mu: the queue is checked, or an object's
	states    uint32 // bit set of ibv.QPState in which work may be posted
	sges      uint32 // the most entries
	slots     slots

	mu      runtime.Lock // of who posts to a locked queue
	refusal error        // under mu: why the queue takes nothing now: an exclusive handle is in use, or its queue pair is closed
}

// NewRecvQueue is the receive queue of a queue pair, which has to outlive it. A queue pair with a shared receive queue has none of
// its own.
func NewRecvQueue(qp *ibv.QP, o QueueOptions) (*RecvQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_recv", Argument: "qp"}
	}
	if qp.SRQ != 0 && !o.Unchecked {
		return nil, fmt.Errorf("rdma: QP %#x receives from a shared receive queue: %w", qp.QPNum, einval)
	}
	q := &RecvQueue{verb: "ibv_post_recv", qp: qp, num: qp.QPNum, states: statesFor(ibv.WorkQueueRecv)}
	return q, q.init(qp.Context.Deref().Ops.PostRecv, uintptr(unsafe.Pointer(qp)), &o)
}

// NewSharedRecvQueue is a shared receive queue, which has to outlive it. Of Cap, MaxRecvWR and MaxRecvSGE count: max_wr and max_sge of
// ibv_srq_attr.
func NewSharedRecvQueue(srq *ibv.SRQ, o QueueOptions) (*RecvQueue, error) {
	if srq == nil || srq.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_srq_recv", Argument: "srq"}
	}
	q := &RecvQueue{verb: "ibv_post_srq_recv", srq: srq}
	q.slots.anyOrder = true
	return q, q.init(srq.Context.Deref().Ops.PostSRQRecv, uintptr(unsafe.Pointer(srq)), &o)
}

func (q *RecvQueue) init(fn ibv.FuncPtr, object uintptr, o *QueueOptions) (err error) {
	q.unchecked, q.sges = o.Unchecked, o.Cap.MaxRecvSGE
	if q.slot, err = newSlot(fn, object, VerbPostRecv, q.verb, o); err != nil {
		return err
	}
	q.locked = !q.unchecked
	q.poster = runtime.NewPoster(q.fn, q.object, q.unchecked && q.shared == runtime.System)
	q.poster.Unusual, q.poster.Failed = recvBy(q.PostRange), q.chainFailed
	if q.unchecked {
		return nil
	}
	return q.slots.init(int(o.Cap.MaxRecvWR), true)
}

// lock lets posts hold mu, so that closing the queue's object waits for them.
func (q *RecvQueue) lock() {
	if !q.locked {
		q.locked = true
		q.poster = runtime.NewPoster(0, 0, false)
		q.poster.Unusual, q.poster.Failed = recvBy(q.PostRange), q.chainFailed
	}
}

// refuse is [SendQueue.refuse].
func (q *RecvQueue) refuse(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal == errExclusive {
		return errExclusive
	}
	q.refusal = err
	return nil
}

// lent is [SendQueue.lent].
func (q *RecvQueue) lent() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal == errExclusive {
		return errExclusive
	}
	return nil
}

// refused is why the queue takes nothing now, or nil.
func (q *RecvQueue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

func (q *RecvQueue) idle() bool { return q.slots.outstanding() == 0 }

// recvBy posts a whole batch, given its chain.
func recvBy(postRange func(b *RecvBatch, from, to int) (int, error)) func(*runtime.Chain) error {
	return func(c *runtime.Chain) error {
		b := recvBatchOf(c)
		posted, err := postRange(b, 0, c.Len)
		b.took(posted)
		return err
	}
}

// recvBatchOf is the batch that a chain is the first member of.
func recvBatchOf(c *runtime.Chain) *RecvBatch { return (*RecvBatch)(unsafe.Pointer(c)) }

var _ [0]byte = [unsafe.Offsetof(RecvBatch{}.chain)]byte{}

// chainFailed is failed, given the chain.
func (q *RecvQueue) chainFailed(c *runtime.Chain, result int32) error {
	b := recvBatchOf(c)
	posted, err := q.failed(b, 0, c.Len, result)
	b.took(posted)
	return err
}

// Way is how the queue is called.
func (q *RecvQueue) Way() runtime.Way { return q.shared }

// Provider is [SendQueue.Provider].
func (q *RecvQueue) Provider() string { return q.provider }

// Post posts the whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an error those
// before the one that failed. The error is a [*PostError], or that of the batch.
func (q *RecvQueue) Post(b *RecvBatch) (posted int, err error) {
	err = q.poster.Post(&b.chain)
	return b.posted, err
}

// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
func (q *RecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	if b.chain.Len >= len(b.wrs) || b.lacks != 0 || from == to {
		return 0, b.Err()
	}
	b.endAt(from, to)
	if !q.locked {
		return q.post(nil, b, from, to)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return 0, q.refusal
	}
	return q.postChecked(nil, b, from, to)
}

// post makes the call, on a private stack where there is one. The chain ends at to.
func (q *RecvQueue) post(stack *runtime.Stack, b *RecvBatch, from, to int) (posted int, err error) {
	*b.chain.Bad = 0
	r := q.call(stack, b.chain.First+uintptr(from)*unsafe.Sizeof(ibv.RecvWR{}), uintptr(unsafe.Pointer(b.chain.Bad)))
	if r == 0 {
		return to - from, nil
	}
	return q.failed(b, from, to, r)
}

// failed says what the call did: *bad_wr is where it stopped.
func (q *RecvQueue) failed(b *RecvBatch, from, to int, result int32) (posted int, err error) {
	e := q.failure(-1, 0, errnoOf(result), "")
	const size = unsafe.Sizeof(ibv.RecvWR{})
	if at := *b.chain.Bad - b.chain.First; at >= uintptr(from)*size && at < uintptr(to)*size {
		e.Index = int(at / size)
		e.WRID = b.wrs[e.Index].WRID
		posted = e.Index - from
	}
	return posted, e
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

// postChecked is post behind the checks and with accounting, if the queue has them, for one caller at a time.
func (q *RecvQueue) postChecked(stack *runtime.Stack, b *RecvBatch, from, to int) (posted int, err error) {
	if q.unchecked {
		return q.post(stack, b, from, to)
	}
	wrs := b.wrs[from:to]
	if q.qp != nil && q.states>>(q.qp.State&31)&1 == 0 {
		return 0, q.failure(from, wrs[0].WRID, einval, stateReason(q.qp.State, ibv.WorkQueueRecv))
	}
	for i := range wrs {
		if uint32(wrs[i].NumSGE) > q.sges {
			return 0, q.failure(from+i, wrs[i].WRID, einval, fmt.Sprintf("%d entries, and the queue takes %d at most", wrs[i].NumSGE, q.sges))
		}
	}
	mark, ok := q.slots.takeRecv(wrs)
	if !ok {
		return 0, q.failure(from, wrs[0].WRID, enomem, q.slots.reason(len(wrs)))
	}
	posted, err = q.post(stack, b, from, to)
	if err != nil && err.(*PostError).Index >= 0 { // otherwise any of them may have been posted
		q.slots.undo(mark, posted)
	}
	return posted, err
}

// Retire gives back the slots that completions tell of, one each. Completions of other queues are passed over, but a shared receive
// queue cannot tell them: it takes every completion that is not a successful send's, so failed sends must not be handed to it. A
// [CompletionQueue] that tracks the queue with the send queue tells them apart by their wr_ids.
func (q *RecvQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retire(&wcs[i])
	}
}

// retire is Retire of one completion.
func (q *RecvQueue) retire(wc *ibv.WC) {
	succeeded := wc.Status == ibv.WC_SUCCESS
	if (q.qp == nil || wc.QPNum == q.num) && (!succeeded || ofRecv(wc.Opcode)) {
		q.slots.retire(wc.WRID, succeeded)
	}
}

// Free is the number of slots that can be posted to now. An unchecked queue does not know, and says 0.
func (q *RecvQueue) Free() int {
	if q.slots.anyOrder { // it can be resized
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	return q.slots.free()
}

// Reset forgets what is outstanding: the queue pair was moved to RESET, which drops it without completions. No completion of the queue may be
// retired meanwhile, and no exclusive handle used.
func (q *RecvQueue) Reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slots.reset()
}

// Exclusive is [SendQueue.Exclusive].
func (q *RecvQueue) Exclusive() (*ExclusiveRecvQueue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return nil, q.refusal
	}
	stack, err := q.newStack()
	if err != nil {
		return nil, err
	}
	q.refusal = errExclusive
	x := &ExclusiveRecvQueue{q: q, exclusive: exclusive{stack: stack}}
	x.poster = runtime.NewPosterOn(stack, q.fn, q.object, q.unchecked && stack != nil)
	x.poster.Unusual, x.poster.Failed = recvBy(x.PostRange), q.chainFailed
	return x, nil
}

// ExclusiveRecvQueue is a [RecvQueue] for the goroutine that uses it first, until that says Release. In another one its methods panic
// with runtime.ErrNotOwner, but only where calls are on a private stack: where Way is not exclusive, or runtime.PrivateStacks says no,
// nothing detects another goroutine, and what it does is a data race.
type ExclusiveRecvQueue struct {
	poster runtime.Poster // of an unchecked queue
	exclusive
	q *RecvQueue
}

// Way is how the queue is called.
func (x *ExclusiveRecvQueue) Way() runtime.Way { return x.q.way }

// Provider is [SendQueue.Provider].
func (x *ExclusiveRecvQueue) Provider() string { return x.q.provider }

// Post is [RecvQueue.Post].
func (x *ExclusiveRecvQueue) Post(b *RecvBatch) (posted int, err error) {
	err = x.poster.PostOwned(&b.chain)
	return b.posted, err
}

// PostRange is [RecvQueue.PostRange].
func (x *ExclusiveRecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	if b.chain.Len >= len(b.wrs) || b.lacks != 0 || from == to {
		return 0, b.Err()
	}
	if x.closed {
		return 0, errClosed
	}
	own(x.stack)
	b.endAt(from, to)
	if x.q.unchecked {
		return x.q.post(x.stack, b, from, to)
	}
	return x.q.postChecked(x.stack, b, from, to)
}

// Retire is [RecvQueue.Retire]; any goroutine may call it.
func (x *ExclusiveRecvQueue) Retire(wcs []ibv.WC) { x.q.Retire(wcs) }

// Close gives the queue back. No call may be under way. A second Close does nothing.
func (x *ExclusiveRecvQueue) Close() error { return x.giveBack(&x.q.mu, &x.q.refusal) }
