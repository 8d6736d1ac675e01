// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// What stands here is written for the usual post and the usual poll of queues that have an owner. QP.PostSend and
// CQ.Poll call these functions and nothing else, so that they are inlined. What is not usual is left by a return: what
// a later call needs would be stored in the usual case, too.

// postSend is [SendQueue.Post] to a queue that has an owner. Its usual case is a checked queue and one request with one
// entry.
func postSend(q *SendQueue, b *SendBatch) (posted int, err error) {
	c := (*runtime.Chain)(unsafe.Pointer(b))
	if q == nil || b == nil || !q.checked && !q.short || c.Len != 1 || c.Closed != 1 || b.home != address(&b.batch) {
		return (*queue)(unsafe.Pointer(q)).postChain(c) // which may be nil
	}
	w := ibv.Ptr[ibv.SendWR](c.First).Deref()
	if w.NumSGE != 1 {
		return q.postChain(c)
	}
	_ = *w.SGList.Deref() // without the lock: this panics where the user's address is none
	q.mu.Lock()
	if q.short && q.refusal == nil {
		var ok bool
		switch {
		case w.SendFlags&ibv.SEND_INLINE != 0:
			ok = q.oneInside(w)
		case q.capacity == 0:
			ok = q.quick.PostOne(w)
		default:
			ok = q.one(w)
		}
		if ok {
			q.mu.Unlock()
			return 1, nil
		}
		return q.postRest(c)
	}
	if !q.plain {
		return q.postRest(c)
	}
	m, ok := q.takeOne(w)
	if !ok {
		return q.postRest(c)
	}
	if m.result = q.poster.Call(c); m.result != 0 {
		return q.oneNotPosted(c, m)
	}
	q.mu.Unlock()
	return 1, nil
}

// postRecv is [RecvQueue.Post] to a queue that has an owner.
func postRecv(q *RecvQueue, b *RecvBatch) (posted int, err error) {
	return q.postChain((*runtime.Chain)(unsafe.Pointer(b)))
}

// pollOwned is [CompletionQueue.Poll] of a queue that has an owner. In the usual case, the completions are those of the
// next requests of send queues.
func pollOwned(q *CompletionQueue, dst []ibv.WC) (n int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_poll_cq")
	}
	q.mu.Lock()
	if !q.plain || len(dst) == 0 {
		return q.pollHeld(q.path, dst[:len(dst):len(dst)], 1)
	}
	n = q.poller.Poll(len(dst), unsafe.Pointer(unsafe.SliceData(dst)))
	if uint(n) > uint(len(dst)) {
		return q.pollEnds(n)
	}
	for i := range n {
		wc := &dst[i]
		p := q.tracked.place(q.tracked.home(wc.QPNum))
		if p.num != uint64(wc.QPNum)|taken {
			return q.pollRest(dst[:n:n], i)
		}
		if p.Send == nil {
			if p.Recv == nil && p.Alone {
				continue
			}
			return q.pollRest(dst[:n:n], i)
		}
		s := &p.Send.slots
		if wc.Status != ibv.WC_SUCCESS || s.num != wc.QPNum || !ofSend(wc.Opcode) {
			return q.pollRest(dst[:n:n], i)
		}
		posted, next := s.posted.Load(), s.retired.Load()
		if posted == next { // always of a queue that counts nothing
			continue
		}
		if s.mixed.Load() {
			word, bit := s.signals(next)
			skipped := uint32(bits.TrailingZeros64(word.Load() >> bit)) // 64 where there is none
			next += skipped
			if skipped != 0 && (skipped == 64 || s.given != nil || int32(posted-next) <= 0) {
				return q.pollRest(dst[:n:n], i)
			}
		}
		if *s.id(next) != wc.WRID {
			return q.pollRest(dst[:n:n], i)
		}
		lock.StoreRelease32(&s.retired, next+1)
	}
	q.mu.Unlock()
	return n, nil
}

// pollRest is the rest of pollOwned for completions from one index on. The caller holds CompletionQueue.mu; pollRest
// releases it.
func (q *CompletionQueue) pollRest(wcs []ibv.WC, from int) (n int, err error) {
	q.retireAll(wcs[from:])
	q.mu.Unlock()
	return len(wcs), nil
}

// pollEnds is the rest of pollOwned for a result that is no number of completions. The caller holds CompletionQueue.mu;
// pollEnds releases it.
func (q *CompletionQueue) pollEnds(result int) (n int, err error) {
	q.mu.Unlock()
	return 0, pollFailed(q.path, q.c, result)
}
