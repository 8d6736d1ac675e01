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

// PostFailed makes an error of what C answered for a whole batch.
func (p *posts) PostFailed(c *runtime.Chain, result int32) error {
	return (*queue)(p).wholeFailed(c, result)
}

// PostUnusual posts a whole batch to a queue that wants to see each post, or one whose chain does not end where it
// should.
func (p *posts) PostUnusual(c *runtime.Chain) (err error) {
	if q := (*queue)(p); q.checked {
		_, err = postSend((*SendQueue)(unsafe.Pointer(p)), (*SendBatch)(unsafe.Pointer(c)))
	} else {
		_, err = q.postOther(c)
	}
	return err
}

// postOther is PostUnusual but for the usual case, which is that of postSend.
func (q *queue) postOther(c *runtime.Chain) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_send")
	}
	if c == nil {
		return 0, q.unfit(errBatchNil)
	}
	b := batchOf(c)
	if !q.locked || c.Len != c.Closed {
		err = q.postWhole(b)
		return b.posted, err
	}
	if b.home != address(b) {
		if err = q.misplaced(b, 0, c.Len); err != nil {
			b.took(0)
			return 0, err
		}
	}
	if q.checked {
		return q.postSends(c)
	}
	q.mu.Lock()
	if !q.plain {
		return q.postByPath(c)
	}
	if q.capacity != 0 {
		return q.postList(c)
	}
	if result := q.poster.Call(c); result != 0 {
		return q.oneNotPosted(c, mark{result: result})
	}
	q.mu.Unlock()
	return c.Len, nil
}

// oneNotPosted is notPosted, and releases slots.mu.
func (q *queue) oneNotPosted(c *runtime.Chain, m mark) (posted int, err error) {
	defer q.mu.Unlock()
	return q.notPosted(c, m)
}

// postByPath is the rest of PostUnusual for queues that are not plain. The caller holds slots.mu; postByPath releases
// it.
func (q *queue) postByPath(c *runtime.Chain) (posted int, err error) {
	defer q.mu.Unlock()
	b := batchOf(c)
	if q.refusal != nil || c.Len == 0 || q.capacity > 0 && q.checks == nil {
		return q.postHeldWhole(b)
	}
	var m mark
	if q.capacity > 0 {
		if !q.checks.inState(q.qp) {
			return q.notTaken(b)
		}
		wrs, ok := sends(b)[:c.Len], false
		if m, ok = q.takeAlike(wrs, q.checks); !ok {
			if m, ok = q.takeSend(wrs, q.checks); !ok {
				return q.notTaken(b)
			}
		}
	}
	*c.Bad = 0
	if m.result = q.kind.call(q.path, c.First, uintptr(unsafe.Pointer(c.Bad))); m.result != 0 {
		return q.notPosted(c, m)
	}
	return c.Len, nil
}

// postHeldWhole is postHeld of a whole batch, which keeps how many requests were taken. The caller holds slots.mu.
func (q *queue) postHeldWhole(b *batch) (posted int, err error) {
	posted, err = q.postHeld(b, 0, b.chain.Len)
	b.took(posted)
	return posted, err
}

// notTaken is the error of a whole batch that the checks or the slots refuse. The caller holds slots.mu.
func (q *queue) notTaken(b *batch) (posted int, err error) {
	b.took(0)
	return 0, recorded(q.kind.explain(b, 0, b.chain.Len))
}

// postSends is the rest of PostUnusual for a list of a checked send queue. It takes slots.mu, and releases it also when
// what the requests name is not there, which panics. postList would do, one call later: the time that the defer costs.
func (q *queue) postSends(c *runtime.Chain) (posted int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := batchOf(c)
	if !q.plain {
		return q.postHeldWhole(b)
	}
	if !q.checks.inState(q.qp) {
		return q.notTaken(b)
	}
	wrs := sends(b)[:c.Len]
	m, ok := q.takeAlike(wrs, q.checks)
	if !ok {
		if m, ok = q.takeSend(wrs, q.checks); !ok {
			return q.notTaken(b)
		}
	}
	if m.result = q.poster.Call(c); m.result != 0 {
		return q.notPosted(c, m)
	}
	return c.Len, nil
}

// postList is the rest of PostUnusual for lists of other queues, and a send that is not of the usual kind. The caller
// holds slots.mu; postList releases it, also when what the requests name is not there, which panics.
func (q *queue) postList(c *runtime.Chain) (posted int, err error) {
	defer q.mu.Unlock()
	b := batchOf(c)
	var m mark
	ok := true
	if q.checks != nil {
		if ok = q.checks.inState(q.qp); ok {
			m, ok = q.takeSend(sends(b)[:c.Len], q.checks)
		}
	} else if q.capacity > 0 {
		m, ok = q.kind.take(b, 0, c.Len)
	}
	if !ok {
		return q.notTaken(b)
	}
	if m.result = q.poster.Call(c); m.result != 0 {
		return q.notPosted(c, m)
	}
	return c.Len, nil
}

// notPosted is the error of a batch that C did not take whole. The caller holds slots.mu.
func (q *queue) notPosted(c *runtime.Chain, m mark) (posted int, err error) {
	err = q.wholeFailed(c, m.result)
	posted = batchOf(c).posted
	if q.capacity > 0 {
		q.giveUp(m, posted, err)
	}
	return posted, err
}

// postWhole is post of a whole batch, which keeps how many requests were taken.
func (q *queue) postWhole(b *batch) error {
	posted, err := q.post(b, 0, b.chain.Len)
	b.took(posted)
	return q.orEmpty(b, err)
}

// orEmpty is the error of a post of the whole batch, or says that there was nothing to post: a goroutine that waits for
// a completion would wait for ever.
func (q *queue) orEmpty(b *batch, err error) error {
	if err == nil && b.chain.Len == 0 {
		return q.unfit(errBatchEmpty)
	}
	return err
}

// unfit is the error of a post of a batch with that error, or nil.
func (q *queue) unfit(err error) error {
	if err == nil {
		return nil
	}
	return recorded(q.kind.failure(-1, 0, 0, "").because(err))
}

// post posts the requests from one index up to another, exclusive.
func (q *queue) post(b *batch, from, to int) (posted int, err error) {
	if !b.postable(from, to) {
		return 0, q.unfit(b.Err())
	}
	if err := q.misplaced(b, from, to); err != nil {
		return 0, err
	}
	b.endAt(from, to)
	if q.locked {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.postHeld(b, from, to)
	}
	return q.postBy(q.path, b, from, to)
}

// postHeld is the rest of post where posts hold slots.mu. The caller holds slots.mu.
func (q *queue) postHeld(b *batch, from, to int) (posted int, err error) {
	if q.refusal != nil {
		return 0, q.refusal
	}
	return q.postBy(q.path, b, from, to)
}

// misplaced says why a batch is not for this queue: it is a copy, or a request has an address and the queue's
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

// postBy posts behind the checks and with accounting, if the queue has them, by a path. One caller at a time may do so
// where it has. The chain ends at to. The caller holds slots.mu.
func (q *queue) postBy(p Path, b *batch, from, to int) (posted int, err error) {
	var m mark
	if q.capacity > 0 {
		var ok bool
		if m, ok = q.kind.take(b, from, to); !ok {
			return 0, recorded(q.kind.explain(b, from, to))
		}
	}
	*b.chain.Bad = 0
	if r := q.kind.call(p, b.at(from), uintptr(unsafe.Pointer(b.chain.Bad))); r != 0 {
		posted, err = q.failed(b, from, to, r)
		if q.capacity > 0 {
			q.giveUp(m, posted, err)
		}
		return posted, err
	}
	return to - from, nil
}

// giveUp gives slots back that a failed post did not need, unless any of them may have been posted. The caller holds
// slots.mu.
func (q *queue) giveUp(m mark, posted int, err error) {
	if err.(*PostError).Index >= 0 {
		q.undo(m, posted)
	}
}

func (q *queue) wholeFailed(c *runtime.Chain, result int32) error {
	b := batchOf(c)
	posted, err := q.failed(b, 0, c.Len, result)
	b.took(posted)
	return err
}

// failed says what the call did: *bad_wr is where it stopped.
func (q *queue) failed(b *batch, from, to int, result int32) (posted int, err error) {
	e := q.kind.failure(b.refused(from, to), 0, errnoOf(result), "")
	if e.Index >= 0 {
		e.WRID = b.wr(e.Index).WRID
		posted = e.Index - from
	}
	return posted, q.orMisused(e)
}
