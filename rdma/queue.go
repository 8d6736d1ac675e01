// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	goruntime "runtime"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
)

// queue is the first field of SendQueue and RecvQueue and holds what they share. A post uses its first two cache lines;
// a completion also uses the fourth.
type queue struct {
	slots
	refusal error // guarded by mu: the error of every post, for example because the owner is closed
	path    Path
	verb    string // ibv_post_send or its sibling, for errors
	recv    *recvRules
	route
	calling reservation // guarded by mu: slots of the post that the path is executing
}

// posting holds the fields that every post reads.
type posting struct {
	function runtime.Bound // the C function and its object
	checks   *sendChecks   // of a checked send queue, or nil
	qp       *ibv.QP       // or nil
}

// init selects the route to the device: see newRoute.
func (q *queue) init(fn ibv.FuncPtr, object unsafe.Pointer, verb provider.Verbs, o *QueueOptions) (err error) {
	if q.route, q.path, err = newRoute(fn, verb, q.verb, o); err != nil {
		return err
	}
	q.function = runtime.Bound{Fn: uintptr(fn), Object: uintptr(object)}
	q.setRefusal(nil)
	q.direct = q.plain
	return nil
}

// useLock makes posts hold mu, so that they can be counted and closing the owner waits for them. It is called before
// the first post.
func (q *queue) useLock() {
	q.locked, q.direct = true, false
	if quick, ok := q.path.(datapath.Queue); ok && q.recv == nil {
		q.quick, q.hasPostOne = quick, true
		quick.Held(&q.mu)
	}
	q.setRefusal(q.refusal)
}

// count enables checks and slot accounting.
func (q *queue) count(capacity int, everyOne bool) error {
	q.useLock()
	return q.slots.init(capacity, everyOne)
}

// refuse makes posts fail with err, or succeed again if err is nil. No post is in progress when it returns.
func (q *queue) refuse(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setRefusal(err)
}

// setRefusal is refuse for callers that hold slots.mu.
func (q *queue) setRefusal(err error) {
	q.refusal = err
	q.plain = err == nil && q.callsC(q.path)
}

func (q *queue) idle() bool { return q.outstanding() == 0 }

// Free returns the number of free slots, or 0 for an unchecked queue, which does not count them.
func (q *queue) Free() int {
	if q.anyOrder { // a shared receive queue can be resized
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	return q.free()
}

// Reset frees all slots after the queue pair was moved to RESET, which discards requests without completions. It must
// not run while completions of the queue are retired.
func (q *queue) Reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reset()
}

// resetIdle frees all slots while no post and no poll of cq is in progress.
func (q *queue) resetIdle(cq *CQ) {
	q.mu.Lock() // before CompletionQueue.mu: posts of Go paths lock in this order when they check for misuse
	defer q.mu.Unlock()
	cq.queue.whileNotPolling(q.reset)
}

// whileNotPosting calls f while no post to either queue is in progress. Either may be nil.
func whileNotPosting(send *SendQueue, recv *RecvQueue, f func() error) error {
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

// postAll posts all requests of a batch. An empty batch is an error, because waiting for its completion would block
// forever.
func (q *queue) postAll(b *batch) (posted int, err error) {
	if posted, err = q.post(b, 0, b.n); err == nil && posted == 0 {
		err = q.batchError(errBatchEmpty)
	}
	return posted, err
}

// post posts requests from through to-1. It unlocks slots.mu even if reading the requests' memory or the path panics.
func (q *queue) post(b *batch, from, to int) (posted int, err error) {
	if to != b.linked || to > b.n || from >= to || b.guard != address(b) {
		if !b.complete(from, to) {
			return 0, q.batchError(b.Err())
		}
		if err := q.checkAddresses(b, from, to); err != nil {
			return 0, err
		}
		b.endAt(from, to)
	}
	if q.locked {
		q.mu.Lock()
		defer q.unlock()
	}
	return q.postLocked(b, from, to)
}

// postLocked checks requests, reserves slots, posts the requests, and frees the slots of those that the device rejected.
// The chain ends at to. The caller holds slots.mu if the queue is locked.
func (q *queue) postLocked(b *batch, from, to int) (posted int, err error) {
	if !q.plain && q.refusal != nil { // plain implies no refusal, and refusal is in another cache line
		return 0, q.refusal
	}
	var m reservation
	if q.capacity > 0 {
		var ok bool
		if m, ok = q.reserve(b, from, to); !ok {
			return 0, traceRejected(q.explain(b, from, to))
		}
	}
	var result int32
	if q.plain && from == 0 {
		result = q.callDirect(b)
		goruntime.KeepAlive(b)
	} else {
		result = q.call(b, from, m)
	}
	if result != 0 {
		return q.notPosted(b, from, to, m, result)
	}
	return to - from, nil
}

// callDirect posts all of a batch through C. The caller keeps the batch alive. The function is small enough to be
// inlined.
func (q *queue) callDirect(b *batch) int32 {
	bad := b.bad
	*bad = 0
	return runtime.CallDirect(&q.function, b.first, uintptr(unsafe.Pointer(bad)))
}

// call posts the requests from index from on through the queue's path. Their slots start at m.
func (q *queue) call(b *batch, from int, m reservation) (result int32) {
	q.enter(m)
	*b.bad = 0
	list, bad := b.wr(from), (*ibv.Ptr[ibv.RecvWR])(unsafe.Pointer(b.bad))
	switch {
	case q.recv == nil:
		sends := ibv.Ptr[ibv.SendWR](b.at(from)).Deref()
		result = q.path.PostSend(q.qp, sends, (*ibv.Ptr[ibv.SendWR])(unsafe.Pointer(b.bad)))
	case q.recv.srq != nil:
		result = q.path.PostSRQRecv(q.recv.srq, list, bad)
	case q.recv.wq != nil:
		result = q.path.PostWQRecv(q.recv.wq, list, bad)
	default:
		result = q.path.PostRecv(q.qp, list, bad)
	}
	goruntime.KeepAlive(b)
	q.leave()
	return result
}

// enter marks the start of a path call, which may panic, for unlock.
func (q *queue) enter(m reservation) {
	if q.capacity > 0 {
		q.calling, q.inPath = m, true
	}
}

// leave marks the end of a path call. Posts to an unchecked queue may run at the same time, so it writes nothing there.
func (q *queue) leave() {
	if q.capacity > 0 {
		q.inPath = false
	}
}

// unlock unlocks slots.mu. If a Path panicked, it frees the slots of the post, because a Path that panics has posted
// nothing. A Runner runs several functions and may have posted some requests, so its slots stay reserved.
func (q *queue) unlock() {
	if q.inPath {
		q.inPath = false
		if _, functions := trace.Under(q.path).(datapath.Runner); !functions {
			q.undo(q.calling, 0)
		}
	}
	q.mu.Unlock()
}

// reserve checks requests and reserves slots for them. If it returns false, nothing is reserved.
func (q *queue) reserve(b *batch, from, to int) (m reservation, ok bool) {
	if q.checks != nil {
		return q.reserveChecked(b.sends(from, to))
	}
	if !q.recv.inState(q.qp) || q.recv.wrongSGEs(b, from, to) >= 0 {
		return m, false
	}
	return q.reserveRecvs(b, from, to)
}

// reserveChecked is reserve for a list of sends.
func (q *queue) reserveChecked(wrs []ibv.SendWR) (m reservation, ok bool) {
	if !q.checks.inState(q.qp) {
		return m, false
	}
	if m, ok = q.reserveUniform(wrs, q.checks); !ok {
		m, ok = q.reserveSends(wrs, q.checks)
	}
	return m, ok
}

// explain returns the error for requests that reserve rejected.
func (q *queue) explain(b *batch, from, to int) error {
	if q.recv == nil {
		return q.explainSends(b.sends(from, to), from)
	}
	i, reason := q.recv.explain(q.qp, b, from, to)
	return q.rejected(i, b.wr(i).WRID, to-from, reason)
}

// explainSends is explain for a list of sends. from is the index of the first.
func (q *queue) explainSends(wrs []ibv.SendWR, from int) *PostError {
	i, reason := q.checks.firstError(q.qp, wrs)
	return q.rejected(from+i, wrs[i].WRID, len(wrs), reason)
}

// rejected returns the error for request i of a list of n. An empty reason means that the list did not fit: either the
// slots are reserved, or C has used the queue. The caller prevents concurrent posts.
func (q *queue) rejected(i int, id uint64, n int, reason string) *PostError {
	errno := syscall.EINVAL
	if reason == "" {
		if reason = misused(q.path, q.recv == nil); reason != "" {
			errno = syscall.EBUSY
		} else {
			errno, reason = syscall.ENOMEM, q.fullReason(n)
		}
	}
	return q.failure(i, id, errno, reason)
}

// failure returns an error for the request at index, or for all requests if index is -1.
func (q *queue) failure(index int, id uint64, errno runtime.Errno, reason string) *PostError {
	e := &PostError{Verb: q.verb, Index: index, WRID: id, Errno: errno, Reason: reason}
	switch {
	case q.qp != nil:
		e.QPNum, e.QPType = q.qp.QPNum, q.qp.QPType
	case q.recv.srq != nil:
		e.QPNum = q.recv.srq.Handle
	default:
		e.QPNum = q.recv.wq.WQNum
	}
	return e
}

// notPosted returns the number of requests that a failed call posted and its error. *bad_wr is the first request that
// was not posted; notPosted frees its slot and those after it. If C did not set *bad_wr, it frees none, because all
// requests may have been posted. The caller holds slots.mu if the queue is locked.
func (q *queue) notPosted(b *batch, from, to int, m reservation, result int32) (posted int, err error) {
	e := q.failure(b.refused(from, to), 0, errnoOf(result), "")
	if e.Index >= 0 {
		e.WRID = b.wr(e.Index).WRID
		posted = e.Index - from
		if q.capacity > 0 {
			q.undo(m, posted)
		}
	}
	return posted, q.orMisuse(e)
}

// checkAddresses returns the error of a batch that is a copy, or that has a UD address in a request for a connected queue
// pair, which would interpret the address as other fields.
func (q *queue) checkAddresses(b *batch, from, to int) error {
	if b.guard == address(b) {
		return nil
	}
	if err := b.checkSelf(); err != nil {
		return q.batchError(err)
	}
	i := int((b.guard - b.first) / b.size)
	if i < from || i >= to || !q.connected {
		return nil
	}
	return traceRejected(q.failure(i, b.wr(i).WRID, syscall.EINVAL,
		fmt.Sprintf("UD set a datagram address, but the %s queue pair is connected", refusal.ShortName(q.qp.QPType))))
}

// batchError wraps an error of a batch in a PostError, or returns nil.
func (q *queue) batchError(err error) error {
	if err == nil {
		return nil
	}
	return traceRejected(q.failure(-1, 0, 0, "").withCause(err))
}

// orMisuse returns e. If the path had no room because C used the queue, it replaces errno and reason. The caller
// prevents concurrent posts.
func (q *queue) orMisuse(e *PostError) *PostError {
	if e.Errno == syscall.ENOMEM {
		if reason := misused(q.path, q.recv == nil); reason != "" {
			e.Errno, e.Reason = syscall.EBUSY, reason
		}
	}
	return e
}
