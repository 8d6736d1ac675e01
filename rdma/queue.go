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

// queue is the common part of send queues and receive queues, their first member. A post uses the first two cache
// lines, and a completion the fourth as well.
type queue struct {
	slots
	refusal error // guarded by mu: why the queue takes nothing now, such as that its owner is closed
	path    Path
	verb    string // that posts
	recv    *recvRules
	route
	calling reservation // guarded by mu: the slots of the post that is in the path
}

// posting has the fields that the call of a post needs.
type posting struct {
	function runtime.Bound // of C
	checks   *sendChecks   // of a checked send queue; or nil
	qp       *ibv.QP       // or nil
}

// init sets how the queue reaches its device: see newRoute.
func (q *queue) init(fn ibv.FuncPtr, object unsafe.Pointer, verb provider.Verbs, o *QueueOptions) (err error) {
	if q.route, q.path, err = newRoute(fn, verb, q.verb, o); err != nil {
		return err
	}
	q.function = runtime.Bound{Fn: uintptr(fn), Object: uintptr(object)}
	q.setRefusal(nil)
	q.direct = q.plain
	return nil
}

// needLock makes posts hold mu, so that they can be counted, and closing the owner waits for them. It is called before
// anybody posts.
func (q *queue) useLock() {
	q.locked, q.direct = true, false
	if quick, ok := q.path.(datapath.Queue); ok && q.recv == nil {
		q.quick, q.hasPostOne = quick, true
		quick.Held(&q.mu)
	}
	q.setRefusal(q.refusal)
}

// count makes a queue check its posts and count slots.
func (q *queue) count(capacity int, everyOne bool) error {
	q.useLock()
	return q.slots.init(capacity, everyOne)
}

// refuse makes the queue take nothing from now on, or again with nil. No post is under way when it returns.
func (q *queue) refuse(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setRefusal(err)
}

// setRefusal is refuse without the lock. The caller holds slots.mu.
func (q *queue) setRefusal(err error) {
	q.refusal = err
	q.plain = err == nil && q.callsC(q.path)
}

func (q *queue) idle() bool { return q.outstanding() == 0 }

// Free returns the number of free slots. It returns 0 for an unchecked queue, which does not count them.
func (q *queue) Free() int {
	if q.anyOrder { // it can be resized
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	return q.free()
}

// Reset frees all slots: the queue pair was moved to RESET, which drops its requests without completions. The caller
// retires no completions of the queue at the same time.
func (q *queue) Reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reset()
}

// forget frees all slots while nothing is posted, and nothing is polled from a completion queue.
func (q *queue) resetIdle(cq *CQ) {
	q.mu.Lock() // before CompletionQueue.mu, as by posts of a path in Go that look for misuse
	defer q.mu.Unlock()
	cq.queue.whileNotPolling(q.reset)
}

// still calls f while nothing is posted to either queue, which may be nil.
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

// postAll posts a complete batch. An empty one is an error, since waiting for its completion would block forever.
func (q *queue) postAll(b *batch) (posted int, err error) {
	if posted, err = q.post(b, 0, b.n); err == nil && posted == 0 {
		err = q.batchError(errBatchEmpty)
	}
	return posted, err
}

// post posts the requests from one index up to another, exclusive. It releases the lock also if it panics, because
// memory that the requests name is not mapped or because a path panics.
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

// postHeld checks requests, takes slots for them and posts them, and frees the slots of requests that the device
// refused. The chain ends at to. The caller holds slots.mu, if posts do.
func (q *queue) postLocked(b *batch, from, to int) (posted int, err error) {
	if !q.plain && q.refusal != nil { // a plain queue has none, and the field is in a cache line of its own
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

// callDirect calls C with a whole batch, which the caller keeps alive. It is small enough to be inlined.
func (q *queue) callDirect(b *batch) int32 {
	bad := b.bad
	*bad = 0
	return runtime.CallDirect(&q.function, b.first, uintptr(unsafe.Pointer(bad)))
}

// call calls the queue's path with the requests from one index on, whose slots begin at m.
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
	q.inPath = false
	return result
}

// enter begins a call of the path that may panic, for unlock. inPath ends it.
func (q *queue) enter(m reservation) {
	if q.capacity > 0 {
		q.calling, q.inPath = m, true
	}
}

// unlock releases slots.mu. If a Path panics, it gives back the slots of the post, since that has posted nothing. A
// Runner is functions, and one of a backend that panics may have posted some.
func (q *queue) unlock() {
	if q.inPath {
		q.inPath = false
		if _, functions := trace.Under(q.path).(datapath.Runner); !functions {
			q.undo(q.calling, 0)
		}
	}
	q.mu.Unlock()
}

// reserve checks requests and takes slots for them, or does nothing.
func (q *queue) reserve(b *batch, from, to int) (m reservation, ok bool) {
	if q.checks != nil {
		return q.reserveChecked(b.sends(from, to))
	}
	if !q.recv.inState(q.qp) || q.recv.unfit(b, from, to) >= 0 {
		return m, false
	}
	return q.reserveRecvs(b, from, to)
}

// takeChecked is reserve of a list of sends.
func (q *queue) reserveChecked(wrs []ibv.SendWR) (m reservation, ok bool) {
	if !q.checks.inState(q.qp) {
		return m, false
	}
	if m, ok = q.reserveUniform(wrs, q.checks); !ok {
		m, ok = q.reserveSends(wrs, q.checks)
	}
	return m, ok
}

// explain returns the error of requests that reserve refused.
func (q *queue) explain(b *batch, from, to int) error {
	if q.recv == nil {
		return q.explainSends(b.sends(from, to), from)
	}
	i, reason := q.recv.explain(q.qp, b, from, to)
	return q.rejected(i, b.wr(i).WRID, to-from, reason)
}

// explainSends is explain of a list of sends; from is the index of the first.
func (q *queue) explainSends(wrs []ibv.SendWR, from int) *PostError {
	i, reason := q.checks.firstError(q.qp, wrs)
	return q.rejected(from+i, wrs[i].WRID, len(wrs), reason)
}

// rejected is the error of a request of a list of n that breaks a rule, or with no reason, of a list that finds no
// slots: C may have used the queue. The caller keeps others from posting.
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

// failure is an error about a request, or of all with index -1.
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

// notPosted returns the number of requests that a failed call posted, and its error. *bad_wr is the first request that
// was not posted. notPosted frees the slots of that one and those after it, but none if C did not set *bad_wr, since
// then all may have been posted. The caller holds slots.mu, if posts do.
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

// misplaced returns the error of a batch that is a copy, or that has a datagram's address in a request for a connected
// queue pair, which would read the address as other fields.
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
		fmt.Sprintf("UD gives it the address of a datagram, and requests of %s go to the connected queue pair",
			refusal.ShortName(q.qp.QPType))))
}

// unfit returns the error of a post of a batch with that error, or nil.
func (q *queue) batchError(err error) error {
	if err == nil {
		return nil
	}
	return traceRejected(q.failure(-1, 0, 0, "").withCause(err))
}

// orMisused returns the error of a post, or if the path found no room since C has used the queue, that. The caller
// keeps others from posting.
func (q *queue) orMisuse(e *PostError) *PostError {
	if e.Errno == syscall.ENOMEM {
		if reason := misused(q.path, q.recv == nil); reason != "" {
			e.Errno, e.Reason = syscall.EBUSY, reason
		}
	}
	return e
}
