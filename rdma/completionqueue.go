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

// CompletionQueue polls a completion queue. It is safe for concurrent use.
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue struct {
	// Every poll uses the first fields.
	poll    runtime.Bound // C's ibv_poll_cq and the queue
	c       *ibv.CQ
	tracked trackedTable // guarded by mu
	tracks  atomic.Bool  // polls hold mu: queues are tracked, or the queue has an owner
	direct  bool         // polls may use runtime.CallDirect
	// guarded by mu: polls are direct or use the path that owns the queue, and refusal, programs, pending and markers
	// are empty
	plain bool
	mu    lock.Lock // held by polls while queues are tracked, so that completions are retired in order
	owned bool      // by a CQ: polls always hold mu, so that closing the CQ waits for them

	route
	path   Path
	arm    Path
	notify error       // why ibv_req_notify_cq cannot be called, or nil
	armed  atomic.Bool // an event was requested since the last one was read

	// mu guards the rest, which owned queues use.
	onSilent func(id uint64) // of a Poller, or nil
	refusal  error           // the error of every poll, or nil
	programs error           // the error of polls other than by programs, or nil
	pending  []ibv.WC        // completions polled while queue pairs were drained, for the next poll
	// the shared receive queue whose completions arrive here under the numbers of untracked queue pairs, or nil
	srq     *RecvQueue
	markers map[uint64]chan struct{} // by wr_id of a drain's request; closed when it completes
}

// NewCompletionQueue returns a queue that polls a C completion queue, which must outlive it. It uses the options Way,
// Providers and Path.
func NewCompletionQueue(cq *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	if cq == nil || cq.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_poll_cq", Argument: "cq"}
	}
	ops := &cq.Context.Deref().Ops
	q := &CompletionQueue{c: cq, poll: runtime.Bound{Fn: uintptr(ops.PollCQ), Object: uintptr(unsafe.Pointer(cq))}}
	q.tracked.resize(minPlaces)
	var err error
	if q.route, q.path, err = newRoute(ops.PollCQ, provider.Poll, "ibv_poll_cq", &o); err != nil {
		return nil, err
	}
	q.direct = q.callsC(q.path)
	_, q.arm, q.notify = newRoute(ops.ReqNotifyCQ, provider.ReqNotify, "ibv_req_notify_cq", &o)
	q.updatePlain()
	return q, nil
}

// noCompletionQueue returns a completion queue whose polls all fail with the error.
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

// updatePlain recomputes plain. The caller holds CompletionQueue.mu.
func (q *CompletionQueue) updatePlain() {
	// Other paths may panic, so mu must be unlocked by defer.
	_, own := q.path.(datapath.Queue)
	q.plain = q.refusal == nil && q.programs == nil && len(q.pending) == 0 && len(q.markers) == 0 && (own || q.direct)
}

// Track makes polls free the slots of checked queues when they find completions of queue pair qpNum. Either queue may
// be nil. Track every queue pair that uses a shared receive queue together with it. Call Untrack before destroying the
// queue pair.
//
// A failed completion does not record whether it belongs to a send or a receive, so the two queues of a queue pair
// should use different wr_ids; otherwise the send queue retires it. With a shared receive queue, track a checked send
// queue too, or failed sends free slots of the shared receive queue.
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

// observe sets the function that is called for requests that completed without a completion. The caller holds
// CompletionQueue.mu.
func (t *trackedQueues) observe(given func(id uint64)) {
	if t.Send != nil {
		t.Send.onSilent = given
	}
	if t.Recv != nil && !t.Recv.anyOrder {
		t.Recv.onSilent = given
	}
}

// observeAll calls observe for all tracked queues and for those tracked later.
func (q *CompletionQueue) observeAll(given func(id uint64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.onSilent = given
	for t := range q.tracked.all() {
		t.observe(given)
	}
}

// silent returns the number of a tracked queue pair whose outstanding requests are all unsignalled, and the number of
// those requests, or 0. They have completions only if they fail.
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

// Untrack reverses Track.
func (q *CompletionQueue) Untrack(qpNum uint32) {
	q.whileNotPolling(func() {
		q.tracked.remove(qpNum)
		q.tracks.Store(q.owned || q.tracked.count > 0)
	})
}

// Poll removes up to len(dst) completions from the queue, stores them in dst and returns their number. It does not
// block. In a failed completion, only wr_id, status, qp_num and vendor_err are valid.
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
	err = pollFailed(q.path, q.c, n)
	if tracks {
		q.mu.Unlock()
	}
	return 0, err
}

// pollLocked polls up to times times until it finds completions, and frees slots. The caller holds CompletionQueue.mu;
// pollLocked unlocks it.
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

// pollPath polls the path, frees slots, and removes completions of drains. The caller holds CompletionQueue.mu.
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
		if p.num == uint64(num)|used && p.Send == nil && p.Recv == nil && p.NoSRQ { // nothing to retire
			i++
			continue
		}
		if p.num != uint64(num)|used || p.Send == nil {
			q.retireFrom(q.tracked.find(num), &wcs[i])
			i++
			continue
		}
		// fast path: successful completions of the next requests of one send queue
		s := &p.Send.slots
		retired, posted, mixed := s.retired.Load(), s.posted.Load(), s.mixed.Load()
		next := retired
		for ; i < len(wcs); i++ {
			wc := &wcs[i]
			if wc.QPNum != s.num || wc.Status != ibv.WC_SUCCESS || !isSendCompletion(wc.Opcode) {
				break
			}
			if next == posted { // not of a posted request
				continue
			}
			at := next
			if mixed {
				word, bit := s.signals(next)
				at += uint32(bits.TrailingZeros64(word.Load() >> bit)) // 64 if there is none
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

// retireFrom retires a completion in the queues that are tracked under its number. t may be nil. The caller holds
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

// retire retires a completion in one of the queues. A failed completion does not name its queue: it belongs to the send
// queue if its wr_id is outstanding there.
func (t *trackedQueues) retire(wc *ibv.WC) {
	if (t.Send == nil || !t.Send.retireWC(wc)) && t.Recv != nil {
		t.Recv.retireWC(wc)
	}
}

// countSRQ makes polls free the slots of a shared receive queue that has its own completion queue. A completion queue
// supports only one.
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

// forgetSRQ reverses countSRQ.
func (q *CompletionQueue) forgetSRQ(srq *RecvQueue) {
	q.whileNotPolling(func() {
		if q.srq == srq {
			q.srq = nil
		}
	})
}

// whileNotPolling calls f while no poll is in progress, and then recomputes plain.
func (q *CompletionQueue) whileNotPolling(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.updatePlain()
	f()
}

// marked reports whether a completion belongs to a drain's work request, and wakes the drain. The caller holds
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

// mark returns a wr_id for a drain's work request, and a channel that is closed when the request completes.
func (q *CompletionQueue) mark() (id uint64, done <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.markers == nil {
		q.markers = map[uint64]chan struct{}{}
	}
	for id == 0 || q.markers[id] != nil {
		id = rand.Uint64() // users are unlikely to choose it
	}
	c := make(chan struct{})
	q.markers[id] = c
	q.updatePlain()
	return id, c
}

// requirePrograms makes every poll except by a [PollProgram] fail with why, or no poll if why is nil.
func (q *CompletionQueue) requirePrograms(why error) { q.whileNotPolling(func() { q.programs = why }) }

// pollAside polls all completions and keeps them for the next poll. It stops after the capacity of the queue, because
// other goroutines may keep posting.
func (q *CompletionQueue) pollAside() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.updatePlain()
	if q.programs != nil {
		return q.programs
	}
	some := 1 // usually the queue is empty
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

// ReqNotify requests one event for the next completion, or for the next solicited or failed one. Poll again afterwards:
// completions that arrived earlier cause no event.
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

// pollFailed returns the error for a result that is not a number of completions. The caller holds CompletionQueue.mu if
// polls do. For a provider without ibv_poll_cq, libibverbs returns EOPNOTSUPP, a positive number.
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

// refuse makes polls fail with err, or succeed again if err is nil. No poll is in progress when it returns.
func (q *CompletionQueue) refuse(err error) { q.whileNotPolling(func() { q.refusal = err }) }

// trackedQueues holds the queues whose completions arrive under the number of a queue pair. Either may be nil.
type trackedQueues struct {
	Send  *SendQueue
	Recv  *RecvQueue
	NoSRQ bool // no completion belongs to CompletionQueue.srq
}

// trackedTable maps queue pair numbers to their queues. It uses open addressing, so that a completion touches one cache
// line, however many queue pairs there are. Call resize first.
type trackedTable struct {
	first unsafe.Pointer // of mask+1 entries, a power of two, of which at most three quarters are used
	mask  uint32
	shift uint32 // reduces a hash of 32 bits to an index
	count int
}

// trackedPlace is an entry. It has 32 bytes on 64-bit machines, so that none straddles two cache lines.
type trackedPlace struct {
	trackedQueues
	num uint64 // queue pair number | used, or 0 if the entry is free
}

const (
	used      = 1 << 32 // above the bits of a number
	minPlaces = 4       // at least 2, so that shift is less than 32
)

func (t *trackedTable) place(at uint32) *trackedPlace {
	return (*trackedPlace)(unsafe.Add(t.first, uintptr(at)*unsafe.Sizeof(trackedPlace{})))
}

// hash returns the preferred index of a number. Multiplying by 2³² divided by the golden ratio spreads numbers evenly.
func (t *trackedTable) hash(num uint32) uint32 { return num * 0x9e3779b1 >> (t.shift & 31) }

// find returns the queues of a number, or nil.
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

// set stores the queues of a number.
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

// put stores a new entry. The table has a free one.
func (t *trackedTable) put(is trackedPlace) {
	at := t.hash(uint32(is.num))
	for t.place(at).num != 0 {
		at = (at + 1) & t.mask
	}
	*t.place(at) = is
}

// remove deletes a number.
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
		// move the entry into the hole if a search for it passes the hole
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

// resize changes the number of entries.
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

// all iterates over the queues of all numbers.
func (t *trackedTable) all() iter.Seq[*trackedQueues] {
	return func(yield func(*trackedQueues) bool) {
		for i := range t.mask + 1 {
			if p := t.place(i); p.num != 0 && !yield(&p.trackedQueues) {
				return
			}
		}
	}
}
