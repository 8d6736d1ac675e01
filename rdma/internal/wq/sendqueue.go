package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// SendQueue posts to the send queue of a queue pair. Any number of goroutines may use it at once, each with its own batch.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	slot
	poster runtime.Poster // of an unchecked queue makes the call by itself, of a checked one it does postAll
	behind runtime.Poster // of a locked queue: what posts behind the lock and the checks
	locked bool           // posts hold mu: the queue is checked, or an object's
	qp     *ibv.QP
	num    uint32      // of the queue pair, which may be gone
	checks *sendChecks // nil: unchecked
	slots  slots

	mu      runtime.Lock // of who posts to a locked queue
	refusal error        // under mu: why the queue takes nothing now: an exclusive handle is in use, or its queue pair is closed
}

// NewSendQueue is the send queue of a queue pair, which has to outlive it. The slot is read now: providers fill in the functions of a
// context when they open it, and never change them.
func NewSendQueue(qp *ibv.QP, o QueueOptions) (*SendQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_send", Argument: "qp"}
	}
	s, err := newSlot(qp.Context.Deref().Ops.PostSend, uintptr(unsafe.Pointer(qp)), VerbPostSend, "ibv_post_send", &o)
	if err != nil {
		return nil, err
	}
	q := &SendQueue{slot: s, qp: qp, num: qp.QPNum}
	if !o.Unchecked {
		q.checks = newSendChecks(qp.QPType, &o)
		err = q.slots.init(int(o.Cap.MaxSendWR), o.SQSigAll)
	}
	q.poster = runtime.NewPoster(q.fn, q.object, q.shared == runtime.System)
	q.poster.Unusual, q.poster.Failed = postBy(q.PostRange), q.failure
	if q.checks != nil {
		q.lock()
	}
	return q, err
}

// lock lets posts hold mu, so that they can be counted, and closing the queue pair waits for them.
func (q *SendQueue) lock() {
	if q.locked {
		return
	}
	q.locked = true
	q.behind = q.poster
	q.behind.Unusual = q.postOn(nil)
	q.poster = runtime.NewPoster(0, 0, false)
	q.poster.Unusual = q.postAll
}

// limitMessages makes the checks refuse longer messages.
func (q *SendQueue) limitMessages(most uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks != nil {
		o := q.checks.options
		o.MaxMessage = most
		q.checks = newSendChecks(q.qp.QPType, &o)
	}
}

// refuse makes the queue take nothing from now on, or again with nil; no post is under way when it returns. It fails while an exclusive
// handle is in use.
func (q *SendQueue) refuse(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal == errExclusive {
		return errExclusive
	}
	q.refusal = err
	return nil
}

// lent says that an exclusive handle is in use.
func (q *SendQueue) lent() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal == errExclusive {
		return errExclusive
	}
	return nil
}

// refused is why the queue takes nothing now, or nil.
func (q *SendQueue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

func (q *SendQueue) idle() bool { return q.slots.outstanding() == 0 }

// postBy posts a whole batch, given its chain.
func postBy(postRange func(b *SendBatch, from, to int) (int, error)) func(*runtime.Chain) error {
	return func(c *runtime.Chain) error {
		b := sendBatchOf(c)
		posted, err := postRange(b, 0, c.Len)
		b.took(posted)
		return err
	}
}

// postOn posts a whole batch that PostRange has closed, on a private stack where there is one.
func (q *SendQueue) postOn(stack *runtime.Stack) func(*runtime.Chain) error {
	return func(c *runtime.Chain) error {
		b := sendBatchOf(c)
		posted, err := q.post(stack, b, 0, c.Len)
		b.took(posted)
		return err
	}
}

// sendBatchOf is the batch that a chain is the first member of.
func sendBatchOf(c *runtime.Chain) *SendBatch { return (*SendBatch)(unsafe.Pointer(c)) }

var _ [0]byte = [unsafe.Offsetof(SendBatch{}.chain)]byte{}

// failure is failed, given the chain.
func (q *SendQueue) failure(c *runtime.Chain, result int32) error {
	b := sendBatchOf(c)
	posted, err := q.failed(b, 0, c.Len, result)
	b.took(posted)
	return err
}

// Way is how the queue is called.
func (q *SendQueue) Way() runtime.Way { return q.shared }

// Provider is the name of the provider that the queue's code belongs to, "software" for a software backend, or "" when it was not
// recognised.
func (q *SendQueue) Provider() string { return q.provider }

// Post posts the whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an error those
// before the one that failed. The error is a [*PostError], or that of the batch.
func (q *SendQueue) Post(b *SendBatch) (posted int, err error) {
	err = q.poster.Post(&b.chain)
	return b.posted, err
}

// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
func (q *SendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	if b.chain.Len >= len(b.wrs) || b.lacks != 0 || from == to {
		return 0, b.Err()
	}
	b.endAt(from, to)
	if q.locked {
		return q.postShared(b, from, to)
	}
	return q.post(nil, b, from, to)
}

// postShared posts to a locked queue, one goroutine at a time: slots are counted in the order in which C takes the requests.
func (q *SendQueue) postShared(b *SendBatch, from, to int) (posted int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return 0, q.refusal
	}
	return q.postChecked(nil, b, from, to)
}

// postAll is postLocked, given the batch's chain.
func (q *SendQueue) postAll(c *runtime.Chain) error {
	_, err := q.postLocked(sendBatchOf(c))
	return err
}

// postLocked is Post to a locked queue: postShared of a whole batch.
func (q *SendQueue) postLocked(b *SendBatch) (posted int, err error) {
	c := &b.chain
	if c.Len != c.Closed || q.provider == software { // Go's functions may panic, and the lock has to be given back
		posted, err = q.PostRange(b, 0, c.Len)
		b.took(posted)
		return posted, err
	}
	q.mu.Lock()
	if q.refusal != nil {
		err = q.refusal
		b.took(0)
	} else if q.checks == nil {
		err = q.behind.Post(c)
	} else if m, ok := q.take(b.wrs[:c.Len]); !ok {
		err = q.explain(b.wrs[:c.Len], 0)
		b.took(0)
	} else if err = q.behind.Post(c); err != nil {
		q.undo(m, b.posted, err)
	}
	q.mu.Unlock()
	return b.posted, err
}

// postChecked posts behind the checks and with accounting, if the queue has them, for one caller at a time.
func (q *SendQueue) postChecked(stack *runtime.Stack, b *SendBatch, from, to int) (posted int, err error) {
	if q.checks == nil {
		return q.post(stack, b, from, to)
	}
	wrs := b.wrs[from:to]
	m, ok := q.take(wrs)
	if !ok {
		return 0, q.explain(wrs, from)
	}
	if posted, err = q.post(stack, b, from, to); err != nil {
		q.undo(m, posted, err)
	}
	return posted, err
}

// take checks a list and takes slots for it.
func (q *SendQueue) take(wrs []ibv.SendWR) (m mark, ok bool) {
	if !q.checks.inState(q.qp) {
		return m, false
	}
	return q.slots.takeSend(wrs, q.checks)
}

// undo gives slots back that a failed post did not need, unless any of them may have been posted.
func (q *SendQueue) undo(m mark, posted int, err error) {
	if err.(*PostError).Index >= 0 {
		q.slots.undo(m, posted)
	}
}

// post makes the call, on a private stack where there is one. The chain ends at to.
func (q *SendQueue) post(stack *runtime.Stack, b *SendBatch, from, to int) (posted int, err error) {
	*b.chain.Bad = 0
	if r := q.call(stack, b.chain.First+uintptr(from)*unsafe.Sizeof(ibv.SendWR{}), uintptr(unsafe.Pointer(b.chain.Bad))); r != 0 {
		return q.failed(b, from, to, r)
	}
	return to - from, nil
}

// failed says what the call did: *bad_wr is where it stopped.
func (q *SendQueue) failed(b *SendBatch, from, to int, result int32) (posted int, err error) {
	e := &PostError{Verb: "ibv_post_send", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: b.badIndex(), Errno: errnoOf(result)}
	if e.Index < from || e.Index >= to {
		e.Index = -1
		return 0, e
	}
	e.WRID = b.wrs[e.Index].WRID
	return e.Index - from, e
}

// badIndex is the index of the work request that *bad_wr points to, or -1.
func (b *SendBatch) badIndex() int {
	if at := *b.chain.Bad - b.chain.First; at < uintptr(b.chain.Len)*unsafe.Sizeof(ibv.SendWR{}) {
		return int(at / unsafe.Sizeof(ibv.SendWR{}))
	}
	return -1
}

// explain says why a list is not posted: because of a rule, or because there are no slots for it.
func (q *SendQueue) explain(wrs []ibv.SendWR, from int) error {
	if e := q.checks.refuse(q.qp, wrs, from); e != nil {
		return e
	}
	return &PostError{Verb: "ibv_post_send", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: from, WRID: wrs[0].WRID, Errno: enomem, Reason: q.slots.reason(len(wrs))}
}

// Retire gives back the slots that completions tell of: of a successful one, those of its work request and of all before it; likewise
// of a failed one. Completions of other queues are passed over. A [CompletionQueue] that tracks the queue does this by itself; who
// polls in another way hands over all completions of the queue here, in the order in which they were polled: one caller at a time.
// A failed completion does not tell sends from receives, so wr_ids of the queue pair's two queues should differ.
func (q *SendQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retire(&wcs[i])
	}
}

// retire is Retire of one completion, and says whether it was of the queue.
func (q *SendQueue) retire(wc *ibv.WC) bool {
	succeeded := wc.Status == ibv.WC_SUCCESS
	if wc.QPNum != q.num || succeeded && !ofSend(wc.Opcode) {
		return false
	}
	return q.slots.retire(wc.WRID, succeeded)
}

// Free is the number of slots that can be posted to now. An unchecked queue does not know, and says 0.
func (q *SendQueue) Free() int { return q.slots.free() }

// Reset forgets what is outstanding: the queue pair was moved to RESET, which drops it without completions. No completion of the queue may be
// retired meanwhile, and no exclusive handle used.
func (q *SendQueue) Reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slots.reset()
}
