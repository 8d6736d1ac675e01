// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
)

// queue is what can be posted to: what send queues and receive queues have in common, their first member.
//
// A post goes one of two ways. The Poster calls C at once where nothing stands before the call: no lock, no checks, a
// batch whose chain ends where it should. Everything else comes to PostUnusual.
//
// What a post uses is in the first two cache lines, what a completion uses besides in the fourth.
type queue struct {
	slots
	kind kind
	// guarded by mu: why the queue takes nothing now: its owner is closed
	refusal error
	path    Path
	slot
}

// posting is how a queue posts.
type posting struct {
	poster runtime.Poster
	checks *sendChecks // of a checked send queue; or nil
	qp     *ibv.QP     // or nil
}

// kind is how send queues and receive queues differ.
type kind interface {
	// sends reports whether it is a send queue.
	sends() bool
	// call calls the function that posts a list.
	call(p Path, list, bad uintptr) int32
	// take checks a part of a batch and takes slots for it. The caller holds slots.mu.
	take(b *batch, from, to int) (m mark, ok bool)
	// explain returns the error of a list that take refused.
	explain(b *batch, from, to int) error
	// failure is an error about a request, or of all with index -1.
	failure(index int, id uint64, errno runtime.Errno, reason string) *PostError
}

// init makes the queue of a kind whose function is at fn.
func (q *queue) init(k kind, fn ibv.FuncPtr, object unsafe.Pointer, verb provider.Verbs, name string,
	o *QueueOptions) (err error) {
	if q.slot, q.path, err = newSlot(fn, verb, name, o); err != nil {
		return err
	}
	q.kind, q.object = k, uintptr(object)
	q.poster.Bind(q.fn, q.object, q.callsC(), (*posts)(q))
	return nil
}

// callsC reports whether the Poster may make the call.
func (q *queue) callsC() bool {
	return inC(q.path) && q.way == runtime.System
}

// lock lets posts hold mu, so that they can be counted, and closing the owner waits for them. It needs no lock: nobody
// posts yet.
func (q *queue) lock() {
	q.locked = true
	if quick, ok := q.path.(datapath.Quick); ok && q.kind.sends() {
		q.quick, q.short = quick, true
		quick.Held(&q.mu)
	}
	q.refuseNow(q.refusal)
	q.poster.Bind(q.fn, q.object, false, (*posts)(q))
}

// count makes a queue check its posts and count slots.
func (q *queue) count(capacity int, everyOne bool) error {
	q.lock()
	return q.slots.init(capacity, everyOne)
}

// refuse makes the queue take nothing from now on, or again with nil; no post is under way when it returns.
func (q *queue) refuse(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuseNow(err)
}

// refuseNow is refuse without the lock. The caller holds slots.mu.
func (q *queue) refuseNow(err error) {
	q.refusal = err
	// others may panic, and mu has to be given back
	q.plain = err == nil && q.callsC() && runtime.Direct()
}

// refused is why the queue takes nothing now, or nil.
func (q *queue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

func (q *queue) idle() bool { return q.outstanding() == 0 }

// Way is how the queue is called.
func (q *queue) Way() runtime.Way { return q.way }

// Provider is the name of the provider that the queue's code belongs to, "software" for a software backend, or "" when
// it was not recognised.
func (q *queue) Provider() string { return q.provider }

// Free returns the number of free slots. It returns 0 for an unchecked queue, which does not count them.
func (q *queue) Free() int {
	if q.anyOrder { // it can be resized
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	return q.free()
}

// Reset forgets what is outstanding: the queue pair was moved to RESET, which drops it without completions. No
// completion of the queue may be retired meanwhile.
func (q *queue) Reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reset()
}

// still calls f while nothing is posted to either queue, which may be nil.
func still(send *SendQueue, recv *RecvQueue, f func() error) error {
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
