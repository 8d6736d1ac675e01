// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// What stands here is for the owner of a queue, an object that may be closed at any time: functions, since methods
// would be the users'.

// Postable is a send queue or a receive queue.
type Postable interface {
	lock()
	refuse(error)
	refused() error
	idle() bool
	positions() (done, posted, slots uint32)
}

// Own lets posts hold the queue's lock, so that closing the owner waits for them.
func Own(q Postable) { q.lock() }

// Refuse makes the queue take nothing from now on, or again with nil; no post is under way when it returns.
func Refuse(q Postable, err error) { q.refuse(err) }

// Refusal is why the queue takes nothing now, or nil.
func Refusal(q interface{ refused() error }) error { return q.refused() }

// Idle says whether nothing is outstanding in a checked queue.
func Idle(q Postable) bool { return q.idle() }

// Positions are how many requests were ever done and posted, both modulo 2³² and more than they were by a number that
// does not change, and how many the queue takes at once; 0: it does not count them.
func Positions(q Postable) (done, posted, slots uint32) { return q.positions() }

// Asked says which operations a queue pair was made for, with send_ops_flags: its queue's checks refuse all others, as
// libraries size their rings for what was asked for (ibv_wr_post(3)).
func Asked(o *QueueOptions, operations ibv.QPCreateSendOpsFlags) { o.unasked = ^uint16(operations) }

// LimitMessages makes the checks refuse messages of more bytes.
func LimitMessages(q *SendQueue, most uint32) {
	q.limit(func(o *QueueOptions) bool {
		o.MaxMessage = most
		return true
	})
}

// LimitReads makes the checks refuse reads and atomic operations if none may be under way at once, or take them again.
func LimitReads(q *SendQueue, atOnce uint8) {
	q.limit(func(o *QueueOptions) bool {
		before := o.noReads
		o.noReads = atOnce == 0
		return o.noReads != before
	})
}

// Resize changes how many receives a shared receive queue holds, while nobody posts: change does it in C, given how
// many receives are outstanding, as far as they are counted.
func Resize(q *RecvQueue, n int, change func(outstanding int) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	outstanding := q.outstanding() // 0 of an unchecked queue
	err := change(outstanding)
	if err == nil && q.capacity > 0 {
		q.resize(n) // though C may have made more of it
	}
	return err
}

// NoSendQueue is in place of the send queue of a queue pair that has none: it takes nothing, and says why. It needs no
// lock: nobody posts yet.
func NoSendQueue(qp *ibv.QP, why error) *SendQueue {
	q := new(SendQueue)
	q.qp, q.num, q.kind = qp, qp.QPNum, q
	q.locked, q.refusal = true, why
	return q
}

// NoCompletionQueue is in place of a completion queue that must not be polled: it gives nothing, and says why.
func NoCompletionQueue(why error) *CompletionQueue { return &CompletionQueue{refusal: why} }

// NewWorkQueue is the queue behind a work queue of C. It counts nothing, and has an owner.
func NewWorkQueue(c *ibv.WQ, o QueueOptions) (*RecvQueue, error) {
	q := &RecvQueue{verb: "ibv_post_wq_recv", wq: c}
	o.Unchecked = true
	if err := q.make(c.PostRecv, unsafe.Pointer(c), &o); err != nil {
		return nil, err
	}
	q.lock()
	return q, nil
}

// NewOwnCompletionQueue is a completion queue that has an owner: polls always hold its lock, so that closing the owner
// waits for them.
func NewOwnCompletionQueue(c *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	q, err := NewCompletionQueue(c, o)
	if err == nil {
		q.owned = true
		q.tracks.Store(true)
	}
	return q, err
}

// Track is [CompletionQueue.Track] of all there is to know.
func Track(q *CompletionQueue, qpNum uint32, t Tracking) { q.trackAll(qpNum, t) }

// Tell sets what is told of requests that are done without a completion of their own, of all queues that complete here,
// those of later on as well; nil: nothing.
func Tell(q *CompletionQueue, given func(id uint64)) { q.tellAll(given) }

// Silent returns the number of a queue pair that completes here and whose outstanding requests were all posted without
// asking for a completion, and how many those are, or 0. They have one if they fail.
func Silent(q *CompletionQueue) (qpNum uint32, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for t := range q.tracked.all() {
		if t.Send != nil {
			if n = t.Send.silent(); n > 0 {
				return t.Send.num, n
			}
		}
	}
	return 0, 0
}

// PollOften polls up to so many times in a row, until there is something.
func PollOften(q *CompletionQueue, dst []ibv.WC, times int) (n int, err error) {
	return q.poll(q.path, dst, times)
}

// PollBy polls a queue that has an owner, an extended one, by a program, and gives back slots.
func PollBy(q *CompletionQueue, ex *ibv.CQEx, p *PollProgram) ([]Completion, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.refusal != nil:
		return nil, q.refusal
	case p.all == nil:
		return nil, errProgramClosed
	case p.cq != uintptr(unsafe.Pointer(ex)):
		return nil, ErrOtherQueue
	}
	return q.pollProgram(p)
}

// Polled returns what the program has read last.
func Polled(p *PollProgram) []Completion { return p.all[:p.state.n] }

// ErrOtherQueue is what polling by a program of another completion queue gives.
var ErrOtherQueue = errors.New("the program polls another completion queue")

// Armed says whether an event may come, or have come: since the last one was read, somebody asked.
func Armed(q *CompletionQueue) *atomic.Bool { return &q.armed }

// RefusePolls makes polls fail from now on, or succeed again with nil; none is under way when it returns.
func RefusePolls(q *CompletionQueue, err error) { q.refuse(err) }

// Quiet calls f while nobody retires completions.
func Quiet(q *CompletionQueue, f func()) { q.quiet(f) }

// Still calls f while nobody posts. Either queue may be nil.
func Still(send *SendQueue, recv *RecvQueue, f func() error) error {
	if send != nil {
		send.mu.Lock()
		defer send.mu.Unlock()
	}
	if recv != nil {
		recv.mu.Lock()
		defer recv.mu.Unlock()
	}
	return f()
}

// Mark gives a work request that a drain will post an id, and says when its completion has come, which no poll gives to
// users.
func Mark(q *CompletionQueue) (id uint64, done <-chan struct{}) { return q.mark() }

// Unmark forgets a work request that was marked.
func Unmark(q *CompletionQueue, id uint64) { q.unmark(id) }

// Collect polls all completions and keeps them for the next poll.
func Collect(q *CompletionQueue) error { return q.collect() }

// OnlyPrograms has all polls fail but those by a [PollProgram], and says why; or none, for nil.
func OnlyPrograms(q *CompletionQueue, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.programs = why
	q.usual()
}

// CountSRQ gives back the slots of a shared receive queue that completes here by itself, if it counts them: of one and
// no more.
func CountSRQ(q *CompletionQueue, srq *RecvQueue) error { return q.countSRQ(srq) }

// ForgetSRQ ends what CountSRQ began.
func ForgetSRQ(q *CompletionQueue, srq *RecvQueue) { q.forgetSRQ(srq) }

// Fail puts an error in the request's program, unless there is one.
func Fail(r WRRequest, err error) { r.p.fail(err) }

// QPOf is the queue pair of the request's program.
func QPOf(r WRRequest) *ibv.QPEx { return r.p.qp }

// CallSetter appends a call of a provider's own setter to the last request, with an object and arguments. fn is 0 where
// the queue pair was not created for it.
func CallSetter(r WRRequest, name string, fn ibv.FuncPtr, object uintptr, args ...uint64) WRRequest {
	switch p := r.p; {
	case r.index != len(p.wrs)-1 || p.closed:
		p.fail(invalid("WR %d: %s for a request that others follow", r.index, name))
	case fn == 0:
		p.fail(&runtime.NotSupportedError{Function: name, Missing: "the queue pair was created without it"})
	default:
		p.noList(name)
		p.program.Call(uintptr(fn), append([]uint64{uint64(object)}, args...)...)
	}
	return r
}

// Tracked is what completes in the queue under the number of a queue pair.
func Tracked(q *CompletionQueue, qpNum uint32) Tracking {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.tracked.find(qpNum); t != nil {
		return *t
	}
	return Tracking{}
}

// Marked is how many work requests are marked.
func Marked(q *CompletionQueue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.markers)
}

// ReplacePath has the queue polled another way, for tests, and returns the way before.
func ReplacePath(q *CompletionQueue, p Path) (before Path) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, q.path = q.path, p
	q.usual()
	return before
}
