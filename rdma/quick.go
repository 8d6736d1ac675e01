// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
)

// one posts a request by the shorter way of the path, unless a check, the slots or the path have something against it:
// then it has done nothing, and says false. The caller holds slots.mu.
func (q *SendQueue) one(w *ibv.SendWR) bool {
	if q.capacity == 0 {
		return q.quick.PostOne(w)
	}
	m, ok := q.takeOne(w)
	if ok && !q.quick.PostOne(w) {
		q.undo(m, 0)
		return false
	}
	return ok
}

// takeOne takes a slot for a request of the usual kind, with one entry, or does nothing and says false. The caller
// holds slots.mu.
func (q *SendQueue) takeOne(w *ibv.SendWR) (m mark, ok bool) {
	checks, at := q.checks, q.posted.Load()
	rule := checks.rule(w)
	if w.Opcode >= knownOpcodes || w.SendFlags&rule.denied != 0 || w.SGList.Deref().Length >= rule.alone ||
		!checks.inState(q.qp) || int32(q.slots.limit-at) < 2 {
		return m, false
	}
	m.posted, m.signal = at, q.signal
	if q.mixed.Load() {
		q.signalOne(at, w)
	} else if w.SendFlags&ibv.SEND_SIGNALED == 0 && !q.everyOne {
		return m, false
	}
	*q.id(at) = w.WRID
	lock.StoreRelease32(&q.posted, at+1)
	return m, true
}

// shortProgram posts a program of one request of the usual kind that was posted before, or does nothing and says false.
// The caller holds slots.mu.
func (q *SendQueue) shortProgram(p *WRProgram) bool {
	return len(p.wrs) == 1 && p.usual && q.fits(p) && q.refusal == nil && q.one(&p.wrs[0])
}

// oneInside is one of a request whose data the path copies, which panics where the data is not there. The caller holds
// slots.mu; a panic releases it.
func (q *SendQueue) oneInside(w *ibv.SendWR) (ok bool) {
	m, over := mark{posted: q.posted.Load(), signal: q.signal}, false
	defer func() {
		if !over {
			q.undo(m, 0)
			q.mu.Unlock()
		}
	}()
	ok = q.one(w)
	over = true
	return ok
}
