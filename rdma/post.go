// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// posts is a queue as its Poster knows it: [runtime.Behind]. Users of the queue do not have these methods.
type posts queue

// PostFailed makes an error of C's result for a complete batch. It needs no lock: nothing counts the slots of a queue
// whose Poster calls C.
func (p *posts) PostFailed(c *runtime.Chain, result int32) error {
	b := batchOf(c)
	posted, err := (*queue)(p).notPosted(b, 0, c.Len, mark{}, result)
	b.took(posted)
	return err
}

// PostUnusual posts a complete batch to a queue that wants to see each post, or one whose chain does not end where it
// should.
func (p *posts) PostUnusual(c *runtime.Chain) error {
	b := batchOf(c)
	posted, err := (*queue)(p).postAll(b)
	b.took(posted)
	return err
}

// postChain posts the batch of a chain, which may be nil, as may the queue.
func (q *queue) postChain(c *runtime.Chain) (posted int, err error) {
	switch {
	case q == nil:
		return 0, verberr.NotCreated("ibv_post_send")
	case c == nil:
		return 0, q.unfit(errBatchNil)
	}
	return q.postAll(batchOf(c))
}

// postAll posts a complete batch. An empty one is an error, since waiting for its completion would block forever.
func (q *queue) postAll(b *batch) (posted int, err error) {
	if posted, err = q.post(b, 0, b.chain.Len); err == nil && posted == 0 {
		err = q.unfit(errBatchEmpty)
	}
	return posted, err
}

// post posts the requests from one index up to another, exclusive. It releases the lock also if it panics, because
// memory that the requests name is not mapped or because a path panics.
func (q *queue) post(b *batch, from, to int) (posted int, err error) {
	if to != b.chain.Closed || to > b.chain.Len || from >= to || b.home != address(b) {
		if !b.postable(from, to) {
			return 0, q.unfit(b.Err())
		}
		if err := q.misplaced(b, from, to); err != nil {
			return 0, err
		}
		b.endAt(from, to)
	}
	if q.locked {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	return q.postHeld(b, from, to)
}

// postRest is the rest of postSend. The caller holds slots.mu; postRest releases it.
func (q *queue) postRest(c *runtime.Chain) (posted int, err error) {
	defer q.mu.Unlock()
	return q.postHeld(batchOf(c), 0, c.Len)
}

// postHeld checks requests, takes slots for them and posts them, and gives slots back that the device did not take. The
// chain ends at to. The caller holds slots.mu, if posts do.
func (q *queue) postHeld(b *batch, from, to int) (posted int, err error) {
	if q.refusal != nil {
		return 0, q.refusal
	}
	var m mark
	if q.capacity > 0 {
		var ok bool
		if m, ok = q.reserve(b, from, to); !ok {
			return 0, recorded(q.kind.explain(b, from, to))
		}
	}
	*b.chain.Bad = 0
	if q.plain && from == 0 {
		m.result = q.poster.Call(&b.chain)
	} else {
		m.result = q.kind.call(q.path, b.at(from), uintptr(unsafe.Pointer(b.chain.Bad)))
	}
	if m.result != 0 {
		return q.notPosted(b, from, to, m, m.result)
	}
	return to - from, nil
}

// reserve checks requests and takes slots for them, or does nothing. The caller holds slots.mu.
func (q *queue) reserve(b *batch, from, to int) (m mark, ok bool) {
	if q.checks == nil {
		return q.kind.take(b, from, to)
	}
	if !q.checks.inState(q.qp) {
		return m, false
	}
	wrs := sends(b)[from:to]
	if m, ok = q.takeAlike(wrs, q.checks); !ok {
		m, ok = q.takeSend(wrs, q.checks)
	}
	return m, ok
}

// notPosted returns how many requests a failed call posted, and its error: *bad_wr is where it stopped. It gives back
// the slots of the others, unless any of them may have been posted. The caller holds slots.mu, if posts do.
func (q *queue) notPosted(b *batch, from, to int, m mark, result int32) (posted int, err error) {
	e := q.kind.failure(b.refused(from, to), 0, errnoOf(result), "")
	if e.Index >= 0 {
		e.WRID = b.wr(e.Index).WRID
		posted = e.Index - from
		if q.capacity > 0 {
			q.undo(m, posted)
		}
	}
	return posted, q.orMisused(e)
}

// oneNotPosted is notPosted of a batch of one. The caller holds slots.mu; oneNotPosted releases it.
func (q *queue) oneNotPosted(c *runtime.Chain, m mark) (posted int, err error) {
	defer q.mu.Unlock()
	return q.notPosted(batchOf(c), 0, 1, m, m.result)
}

// misplaced returns the error of a batch that is not for this queue: it is a copy, or a request has an address and the queue's
// connection is its address. There the address would be read as something else, if at all.
func (q *queue) misplaced(b *batch, from, to int) error {
	if b.home == address(b) {
		return nil
	}
	if err := b.own(); err != nil {
		return q.unfit(err)
	}
	i := int((b.home - b.chain.First) / b.size)
	if i < from || i >= to || !q.connected {
		return nil
	}
	return recorded(q.kind.failure(i, b.wr(i).WRID, einval,
		fmt.Sprintf("UD gives it the address of a datagram, and requests of %s go to the connected queue pair",
			refusal.ShortName(q.qp.QPType))))
}

// unfit is the error of a post of a batch with that error, or nil.
func (q *queue) unfit(err error) error {
	if err == nil {
		return nil
	}
	return recorded(q.kind.failure(-1, 0, 0, "").because(err))
}
