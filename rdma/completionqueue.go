// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// CompletionQueue polls a completion queue. Any number of goroutines may use it at once.
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue struct {
	// What every poll uses comes first.
	poll    runtime.Bound // of C
	c       *ibv.CQ
	tracked trackedTable // guarded by mu
	tracks  atomic.Bool  // polls hold mu: queues are tracked, or the queue has an owner
	direct  bool         // polls may call C by runtime.CallDirect
	// guarded by mu: polls are direct, or by a path of the queue's own; nothing refuses them, and nothing is put aside
	// or marked
	plain bool
	mu    lock.Lock // held to poll while queues are tracked: completions are retired in their order
	owned bool      // by a CQ: polls always hold mu, so that closing it waits for them

	route
	path   Path
	arm    Path
	notify error       // why there is no ibv_req_notify_cq
	armed  atomic.Bool // an event may come, or have come: since the last one was read, somebody asked

	// mu guards these, of an owned queue.
	onSilent func(id uint64) // of a Poller; or nil
	refusal  error           // why nothing can be polled any more
	programs error           // why programs alone can poll, or nil
	pending  []ibv.WC        // what was polled while queue pairs were drained, for the next poll
	// that completes here by itself, under the number of whichever queue pair took its receive; or nil
	srq     *RecvQueue
	markers map[uint64]chan struct{} // of the work requests that drains wait for, by wr_id; closed when they complete
}

// NewCompletionQueue returns the queue that polls a completion queue of C, which has to outlive it. Of the options,
// Way, Providers and Path have an effect. It needs no lock: nothing else has the queue yet.
func NewCompletionQueue(cq *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	if cq == nil || cq.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_poll_cq", Argument: "cq"}
	}
	ops := &cq.Context.Deref().Ops
	q := &CompletionQueue{c: cq, poll: runtime.Bound{Fn: uintptr(ops.PollCQ), Object: uintptr(unsafe.Pointer(cq))}}
	q.tracked.init()
	var err error
	if q.route, q.path, err = newRoute(ops.PollCQ, provider.Poll, "ibv_poll_cq", &o); err != nil {
		return nil, err
	}
	q.direct = q.callsC(q.path)
	_, q.arm, q.notify = newRoute(ops.ReqNotifyCQ, provider.ReqNotify, "ibv_req_notify_cq", &o)
	q.updatePlain()
	return q, nil
}

// noCompletionQueue is in place of a completion queue that must not be polled: every poll fails with the error.
func noCompletionQueue(why error) *CompletionQueue {
	q := &CompletionQueue{refusal: why}
	q.tracks.Store(true)
	return q
}

// newOwnCompletionQueue returns a completion queue that has an owner: polls always hold its lock, so that closing the
// owner waits for them.
func newOwnCompletionQueue(c *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	q, err := NewCompletionQueue(c, o)
	if err == nil {
		q.owned = true
		q.tracks.Store(true)
		if own := queueOf(q.path); own != nil {
			own.Held(&q.mu)
		}
	}
	return q, err
}

// usual keeps whether polls are plain. The caller holds CompletionQueue.mu.
func (q *CompletionQueue) updatePlain() {
	// Other paths may panic, and mu has to be released.
	_, own := q.path.(datapath.Queue)
	q.plain = q.refusal == nil && q.programs == nil && len(q.pending) == 0 && len(q.markers) == 0 && (own || q.direct)
}

// Track gives the slots of checked queues back as Poll finds their completions. Either queue may be nil; of queue pairs
// that share a receive queue, each is tracked with it. A tracked queue pair must not be destroyed before Untrack.
//
// A failed completion does not distinguish sends from receives, so the wr_ids of the two queues of a queue pair should
// differ: where they do not, the send queue takes it. With a shared receive queue, track a checked send queue as well,
// or failed sends give its slots back.
func (q *CompletionQueue) Track(qpNum uint32, send *SendQueue, recv *RecvQueue) {
	q.trackAll(qpNum, trackedQueues{Send: send, Recv: recv})
}

func (q *CompletionQueue) trackAll(qpNum uint32, t trackedQueues) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tracked.set(qpNum, t)
	q.tracks.Store(true)
	t.observe(q.onSilent)
}

// observe sets the function that is called for requests that complete without a completion of their own. The caller
// holds CompletionQueue.mu.
func (t *trackedQueues) observe(given func(id uint64)) {
	if t.Send != nil {
		t.Send.onSilent = given
	}
	if t.Recv != nil && !t.Recv.anyOrder {
		t.Recv.onSilent = given
	}
}

// observeAll is observe for all tracked queues, present and future.
func (q *CompletionQueue) observeAll(given func(id uint64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.onSilent = given
	for t := range q.tracked.all() {
		t.observe(given)
	}
}

// silent returns the number of a queue pair that completes here and whose outstanding requests were all posted without
// asking for a completion, and how many those are, or 0. They have one if they fail.
func (q *CompletionQueue) silent() (qpNum uint32, n int) {
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

// Untrack ends what Track began.
func (q *CompletionQueue) Untrack(qpNum uint32) {
	q.whileNotPolling(func() {
		q.tracked.remove(qpNum)
		q.tracks.Store(q.owned || q.tracked.count > 0)
	})
}

// Poll takes up to len(dst) completions out of the queue. dst is the caller's; an array on the goroutine's stack moves
// to the heap. Of a failed completion only wr_id, status, qp_num and vendor_err mean something.
func (q *CompletionQueue) Poll(dst []ibv.WC) (n int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_poll_cq")
	}
	tracks := q.tracks.Load()
	if tracks {
		q.mu.Lock()
		if !q.plain {
			return q.pollLocked(dst[:len(dst):len(dst)], 1)
		}
	}
	if q.direct {
		n = int(runtime.CallDirect(&q.poll, uintptr(len(dst)), uintptr(unsafe.Pointer(unsafe.SliceData(dst)))))
	} else {
		n = int(q.path.Poll(q.c, dst))
	}
	if uint(n) <= uint(len(dst)) {
		if tracks {
			if n > 0 {
				q.retireAll(dst[:n])
			}
			q.mu.Unlock()
		}
		return n, nil
	}
	return 0, q.pollFailed(n, tracks)
}

// pollHeld polls up to so many times until there is something, and gives back slots. The caller holds
// CompletionQueue.mu; pollHeld releases it.
func (q *CompletionQueue) pollLocked(dst []ibv.WC, times int) (n int, err error) {
	defer q.mu.Unlock()
	if q.refusal != nil || q.programs != nil || len(dst) == 0 {
		return 0, cmp.Or(q.refusal, q.programs)
	}
	if len(q.pending) > 0 {
		n = copy(dst, q.pending)
		q.pending = q.pending[n:]
		q.updatePlain()
		return n, nil
	}
	return q.pollPath(dst, times)
}

// take polls, gives back slots, and removes the completions of drains. The caller holds CompletionQueue.mu.
func (q *CompletionQueue) pollPath(dst []ibv.WC, times int) (n int, err error) {
	r := q.path.Poll(q.c, dst)
	for ; r == 0 && times > 1; times-- {
		r = q.path.Poll(q.c, dst)
	}
	if uint(r) > uint(len(dst)) {
		return 0, pollFailed(q.path, q.c, int(r))
	}
	wcs := dst[:r]
	if len(q.markers) > 0 {
		wcs = slices.DeleteFunc(wcs, func(wc ibv.WC) bool { return q.marked(wc.WRID) })
	}
	q.retireAll(wcs)
	return len(wcs), nil
}

// retireAll frees the slots of completed requests. The caller holds CompletionQueue.mu.
func (q *CompletionQueue) retireAll(wcs []ibv.WC) {
	for i := 0; i < len(wcs); {
		first, num := i, wcs[i].QPNum
		p := q.tracked.place(q.tracked.hash(num))
		if p.num == uint64(num)|used && p.Send == nil && p.Recv == nil && p.NoSRQ { // nothing is counted
			i++
			continue
		}
		if p.num != uint64(num)|used || p.Send == nil {
			q.retireFrom(q.tracked.find(num), &wcs[i])
			i++
			continue
		}
		// the usual completions: successful ones of the next requests of one send queue
		s := &p.Send.slots
		retired, posted, mixed := s.retired.Load(), s.posted.Load(), s.mixed.Load()
		next := retired
		for ; i < len(wcs); i++ {
			wc := &wcs[i]
			if wc.QPNum != s.num || wc.Status != ibv.WC_SUCCESS || !isSendCompletion(wc.Opcode) {
				break
			}
			if next == posted { // it stands for no request of the queue
				continue
			}
			at := next
			if mixed {
				word, bit := s.signals(next)
				at += uint32(bits.TrailingZeros64(word.Load() >> bit)) // 64 where there is none
				if at != next && (at == next+64 || s.onSilent != nil || int32(posted-at) <= 0) {
					break
				}
			}
			if *s.id(at) != wc.WRID {
				break
			}
			next = at + 1
		}
		if next != retired {
			lock.StoreRelease32(&s.retired, next)
		}
		if i == first {
			q.retireFrom(&p.trackedQueues, &wcs[i])
			i++
		}
	}
}

// retireOf gives a completion to a queue that completes under its number; t may be nil. The caller holds
// CompletionQueue.mu.
func (q *CompletionQueue) retireFrom(t *trackedQueues, wc *ibv.WC) {
	of := trackedQueues{Recv: q.srq}
	if t != nil {
		of.Send = t.Send
		if t.Recv != nil || t.NoSRQ {
			of.Recv = t.Recv
		}
	}
	of.retire(wc)
}

// retire passes a completion to one of the queues. A failed completion does not name its queue: it is the send queue's
// if its wr_id is outstanding there.
func (t *trackedQueues) retire(wc *ibv.WC) {
	if (t.Send == nil || !t.Send.retireWC(wc)) && t.Recv != nil {
		t.Recv.retireWC(wc)
	}
}

// countSRQ gives back the slots of a shared receive queue that completes here by itself, if it counts them: of one and
// no more.
func (q *CompletionQueue) countSRQ(srq *RecvQueue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case srq.capacity == 0:
		return nil
	case q.srq != nil:
		return &runtime.CallError{Function: "ibv_create_srq_ex", Errno: syscall.EINVAL}
	}
	q.srq = srq
	return nil
}

// forgetSRQ ends what countSRQ began.
func (q *CompletionQueue) forgetSRQ(srq *RecvQueue) {
	q.whileNotPolling(func() {
		if q.srq == srq {
			q.srq = nil
		}
	})
}

// quiet calls f while nothing is polled, and then decides whether polls are plain.
func (q *CompletionQueue) whileNotPolling(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.updatePlain()
	f()
}

// marked reports whether a completion is of a drain's work request, and ends the wait for it. The caller holds
// CompletionQueue.mu.
func (q *CompletionQueue) marked(id uint64) bool {
	done := q.markers[id]
	if done != nil {
		delete(q.markers, id)
		q.updatePlain()
		close(done)
	}
	return done != nil
}

// mark returns an id for a work request that a drain will post, and a channel that is closed at its completion.
func (q *CompletionQueue) mark() (id uint64, done <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.markers == nil {
		q.markers = map[uint64]chan struct{}{}
	}
	for id == 0 || q.markers[id] != nil {
		id = rand.Uint64() // nothing that a user would think of
	}
	c := make(chan struct{})
	q.markers[id] = c
	q.updatePlain()
	return id, c
}

// unmark forgets a work request that was marked.
func (q *CompletionQueue) unmark(id uint64) { q.whileNotPolling(func() { delete(q.markers, id) }) }

// onlyPrograms makes every poll fail but those by a [PollProgram], or none with nil.
func (q *CompletionQueue) requirePrograms(why error) { q.whileNotPolling(func() { q.programs = why }) }

// collect polls all completions and keeps them for the next poll. Completions that arrive while it polls may stay in
// the queue: other goroutines may post without end.
func (q *CompletionQueue) pollAside() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.updatePlain()
	if q.programs != nil {
		return q.programs
	}
	some := 1 // the queue is mostly empty
	for most := int(atomic.LoadInt32(&q.c.CQE)); ; some = 32 {
		at := len(q.pending)
		q.pending = append(q.pending, make([]ibv.WC, some)...)
		n, err := q.pollPath(q.pending[at:], 1)
		q.pending = q.pending[:at+n]
		if most -= n; err != nil || n == 0 || most < 0 {
			return err
		}
	}
}

// ReqNotify requests one event, for the next completion or only for a solicited or failed one. Poll again afterwards:
// earlier completions cause no event.
func (q *CompletionQueue) ReqNotify(solicitedOnly bool) error {
	const verb = "ibv_req_notify_cq"
	if q.notify != nil {
		return q.notify
	}
	q.armed.Store(true)
	r := q.arm.Arm(q.c, solicitedOnly)
	if r != 0 {
		var reason string
		if q.whileNotPolling(func() { reason = misused(q.arm, false) }); reason != "" {
			return &VerbError{Verb: verb, Errno: syscall.EBUSY, Reason: reason}
		}
	}
	return callError(verb, r)
}

// pollFailed is the error of a Poll with this result. It releases CompletionQueue.mu, if Poll holds it.
func (q *CompletionQueue) pollFailed(result int, held bool) error {
	if held {
		defer q.mu.Unlock()
	}
	return pollFailed(q.path, q.c, result)
}

// pollFailed returns the error for a result that is not a number of completions. The caller holds CompletionQueue.mu, if
// polls do. For a provider without ibv_poll_cq,
// libibverbs returns EOPNOTSUPP, a positive number.
func pollFailed(p Path, c *ibv.CQ, result int) error {
	if result > 0 {
		return &runtime.CallError{Function: "ibv_poll_cq", Errno: runtime.Errno(result)}
	}
	if reason := misused(p, false); reason != "" {
		return &VerbError{Verb: "ibv_poll_cq", Object: fmt.Sprintf("CQ %d", c.Handle), Errno: syscall.EBUSY,
			Reason: reason}
	}
	return errPoll
}

var errPoll = error(&VerbError{Verb: "ibv_poll_cq", Errno: syscall.EIO,
	Reason: "the completion queue is broken, or the call failed without a reason"})

// refuse makes polls fail from now on, or succeed again with nil; none is under way when it returns.
func (q *CompletionQueue) refuse(err error) { q.whileNotPolling(func() { q.refusal = err }) }

// trackedQueues is the queues that complete in a completion queue under the number of a queue pair; either may be nil.
type trackedQueues struct {
	Send  *SendQueue
	Recv  *RecvQueue
	NoSRQ bool // none of the completions are of a shared receive queue that is not named here
}

// trackedTable finds what completes under the number of a queue pair. It is a table with open addressing: a completion
// touches one cache line of it, however many queue pairs there are. init comes before any other method.
type trackedTable struct {
	first unsafe.Pointer // of mask + 1 places, a power of two, of which at most three quarters are taken
	mask  uint32
	shift uint32 // of a hash of 32 bits, which then is a place
	count int
}

// trackedPlace is 32 bytes on 64-bit machines, so that none is in two cache lines.
type trackedPlace struct {
	trackedQueues
	num uint64 // of the queue pair, and taken; or 0
}

const (
	used      = 1 << 32 // a bit that no number has
	minPlaces = 4       // at first; no hash may be shifted away, so there are two at least
)

func (t *trackedTable) init() { t.resize(minPlaces) }

func (t *trackedTable) place(at uint32) *trackedPlace {
	return (*trackedPlace)(unsafe.Add(t.first, uintptr(at)*unsafe.Sizeof(trackedPlace{})))
}

// home is the place of a number, unless it was taken before: the number times 2³² divided by the golden ratio spreads
// numbers whatever their distance is.
func (t *trackedTable) hash(num uint32) uint32 { return num * 0x9e3779b1 >> (t.shift & 31) }

// find is what completes under a number, or nil.
func (t *trackedTable) find(num uint32) *trackedQueues {
	for at := t.hash(num); ; at = (at + 1) & t.mask {
		switch p := t.place(at); p.num {
		case uint64(num) | used:
			return &p.trackedQueues
		case 0:
			return nil
		}
	}
}

// set keeps what completes under a number.
func (t *trackedTable) set(num uint32, is trackedQueues) {
	if p := t.find(num); p != nil {
		*p = is
		return
	}
	if size := int(t.mask) + 1; 4*(t.count+1) > 3*size {
		t.resize(2 * size)
	}
	t.count++
	t.put(trackedPlace{is, uint64(num) | used})
}

// put takes a place for a number that has none. One is free.
func (t *trackedTable) put(is trackedPlace) {
	at := t.hash(uint32(is.num))
	for t.place(at).num != 0 {
		at = (at + 1) & t.mask
	}
	*t.place(at) = is
}

// remove forgets a number.
func (t *trackedTable) remove(num uint32) {
	if t.find(num) == nil {
		return
	}
	t.count--
	hole := t.hash(num)
	for t.place(hole).num != uint64(num)|used {
		hole = (hole + 1) & t.mask
	}
	for at := (hole + 1) & t.mask; t.place(at).num != 0; at = (at + 1) & t.mask {
		// another number moves to the hole if a search for it passes there
		if p := t.place(at); (at-t.hash(uint32(p.num)))&t.mask >= (at-hole)&t.mask {
			*t.place(hole) = *p
			hole = at
		}
	}
	*t.place(hole) = trackedPlace{}
	if size := int(t.mask) + 1; size > minPlaces && 8*t.count < size {
		t.resize(size / 4)
	}
}

// resize changes the number of places.
func (t *trackedTable) resize(size int) {
	size = max(size, minPlaces)
	old := *t
	t.first = unsafe.Pointer(unsafe.SliceData(make([]trackedPlace, size)))
	t.mask, t.shift = uint32(size-1), uint32(32-bits.Len(uint(size-1)))
	if old.first == nil {
		return
	}
	for i := range old.mask + 1 {
		if p := old.place(i); p.num != 0 {
			t.put(*p)
		}
	}
}

// all is what completes under any number.
func (t *trackedTable) all() iter.Seq[*trackedQueues] {
	return func(yield func(*trackedQueues) bool) {
		for i := range t.mask + 1 {
			if p := t.place(i); p.num != 0 && !yield(&p.trackedQueues) {
				return
			}
		}
	}
}
