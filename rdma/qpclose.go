// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// closeDrains is how long Close waits for outstanding work before it destroys the queue pair anyway.
const closeDrains = 2 * time.Second

// idle reports whether the accounting knows that nothing is outstanding.
func (q *QP) idle() bool {
	switch {
	case q.state() == ibv.QPS_RESET:
		return true
	case q.options.Unchecked, q.srq != nil && q.received, q.sendMark.done != nil, q.recvMark.done != nil:
		return false
	}
	return (q.send == nil || wq.Idle(q.send)) && (q.recv == nil || wq.Idle(q.recv))
}

// lentQueue returns an error if one of the queues has an exclusive handle.
func (q *QP) lentQueue() error {
	if q.send != nil {
		if err := wq.Lent(q.send); err != nil {
			return err
		}
	}
	if q.recv != nil {
		return wq.Lent(q.recv)
	}
	return nil
}

// refusePosts makes both queues refuse posts.
func (q *QP) refusePosts() error {
	return q.refuse(&VerbError{Object: q.name, Errno: einval, Err: ErrClosed})
}

// livesOn is called if Close did not destroy the queue pair.
func (q *QP) livesOn() {
	q.ends.again()
	q.refuse(nil)
}

// settleDown drains the queue pair before it is destroyed.
func (q *QP) settleDown() error {
	q.changes.Lock()
	defer q.changes.Unlock()
	if !q.idle() {
		ctx, cancel := context.WithTimeout(context.Background(), closeDrains)
		defer cancel()
		// destroying the queue pair releases the memory, whether it was drained or not
		_ = q.drain(patience{Context: ctx})
	}
	return nil
}

// destroyC destroys the queue pair, which refuses posts already.
func (q *QP) destroyC(c *ibv.QP) error {
	q.changes.Lock()
	defer q.changes.Unlock()
	q.collect() // so that slots of a shared receive queue come back
	q.leaveGroups()
	q.untrack() // from here on another queue pair may have the number, and C's memory goes
	if err := q.endC(c); err != nil {
		q.track()
		return err
	}
	q.collect()
	if q.send != nil {
		wq.Quiet(q.sendCQ.queue, q.send.Reset) // work that was not drained has no completion
	}
	if q.recv != nil {
		wq.Quiet(q.recvCQ.queue, q.recv.Reset)
	}
	q.sendMark.forget()
	q.recvMark.forget()
	q.leave()
	return nil
}

// Close drains the queue pair, for two seconds at most, and destroys it. The device then uses no memory of its
// requests. Completions that nobody has polled can still be polled.
//
// C: ibv_destroy_qp
//
// Man: ibv_create_qp(3)
func (q *QP) Close() error { return q.end() }
