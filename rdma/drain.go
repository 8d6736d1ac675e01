// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// lastWQEWait is the time a drain waits, after its own requests are done, for IBV_EVENT_QP_LAST_WQE_REACHED. A device
// that raises the event does so at once. Tests change it.
var lastWQEWait = 500 * time.Millisecond

// Drain moves the queue pair to ERR and returns when all posted work has completed: the memory of all requests belongs
// to the caller again. Posts fail until it returns. The completions can be polled as usual, at the same time or
// afterwards; Drain keeps those that it polls itself. With a shared receive queue, Drain waits for
// IBV_EVENT_QP_LAST_WQE_REACHED. If the event does not come, as is usual on Soft-RoCE, Drain returns after half a
// second, and later drains on that device return at once; receives that the queue pair has taken then belong to the
// device until Close. Events from before RESET do not count.
//
// On EFA and erdma, Drain waits until each counted request has completed: an Unchecked queue pair cannot be drained
// there. Because the erdma library rejects sends in ERR, Drain first posts a write of no bytes there; if C has already
// moved the queue pair to ERR, Drain never sees the end of sends that succeeded unsignaled. On queue pairs of type
// IBV_QPT_DRIVER of other providers, Drain waits for receives only. On Soft-iWARP, the kernel completes all work before
// the state has changed; receives that were posted later, or after the connection broke, do not complete.
//
// If ctx ends or the queue pair is closed, Drain returns an error; another Drain continues. Draining a drained queue
// pair does nothing. To use the queue pair again, move it to RESET. The mana library rejects requests in ERR and cannot
// be drained: Drain fails, and the queue pair stays in ERR.
//
// Man: ibv_modify_qp(3), ibv_get_async_event(3)
func (q *QP) Drain(ctx context.Context) error {
	if err := q.use("Drain"); err != nil {
		return err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	q.refuse(&VerbError{Object: q.name, Errno: syscall.EBUSY,
		Reason: "the queue pair is being drained and rejects work requests until then"})
	defer q.refuse(nil)
	if err := q.native.misuse("Drain", q.name); err != nil {
		return err
	}
	return q.drain(drainContext{ctx, q.ends.done()})
}

// drain is Drain for a queue pair that already rejects posts. The caller holds changes.
func (q *QP) drain(p drainContext) error {
	if q.state() == ibv.QPS_RESET || q.sendCQ == nil && q.recvCQ == nil {
		return nil
	}
	if err := q.uncounted(); err != nil {
		return err
	}
	if err := q.flush(p); err != nil {
		return err
	}
	if q.srq != nil && q.received {
		if err := q.awaitLastWQE(p); err != nil {
			return err
		}
	}
	return q.collect()
}

func (q *QP) fail() error { return q.modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE) }

// flush moves the queue pair to ERR, and waits until a marker after all other requests in each queue has completed. It
// first waits for the marker of a drain that was canceled, because each queue has room for one.
func (q *QP) flush(p drainContext) error {
	leave, err := q.alone(p)
	if err != nil {
		return err
	}
	defer leave()
	if q.onERDMA() {
		return q.flushERDMA(p)
	}
	if err := q.fail(); err != nil {
		return err
	}
	switch {
	case q.onEFA():
		return q.flushCounted(p)
	case q.onSIW():
		return q.flushed()
	}
	if err := q.collect(); err != nil {
		return err
	}
	for _, m := range []*drainMarker{&q.sendMark, &q.recvMark} {
		if err := q.await(p, m); err != nil {
			return err
		}
	}
	if err := q.markSend(p); err != nil {
		return err
	}
	if err := q.markRecv(p); err != nil {
		return err
	}
	if q.recvMark.done != nil {
		// A provider that bypasses the kernel notices receives posted in ERR only after another notification.
		if err := q.fail(); err != nil {
			return err
		}
	}
	sends := q.sendMark.done != nil
	for _, m := range []*drainMarker{&q.sendMark, &q.recvMark} {
		if err := q.await(p, m); err != nil {
			return err
		}
	}
	if sends {
		q.send.resetIdle(q.sendCQ) // requests that succeeded without a signal have no completion
	}
	return nil
}

// alone makes this the only drain of its completion queues, which have room for the markers of one drain.
func (q *QP) alone(p drainContext) (leave func(), err error) {
	all := []*CQ{q.sendCQ, q.recvCQ}
	if q.sendCQ == q.recvCQ {
		all = all[:1]
	}
	all = slices.DeleteFunc(all, func(cq *CQ) bool { return cq == nil })
	// lock in the same order in every goroutine
	slices.SortFunc(all, func(a, b *CQ) int { return cmp.Compare(address(a.c), address(b.c)) })
	for i, cq := range all {
		select {
		case cq.drains <- struct{}{}:
		case <-p.closing:
			err = ErrClosed
		case <-p.Done():
			err = p.Err()
		}
		if err != nil {
			giveBack(all[:i])
			return nil, q.notDrained(err)
		}
	}
	return func() { giveBack(all) }, nil
}

func giveBack(all []*CQ) {
	for _, cq := range all {
		<-cq.drains
	}
}

// awaitLastWQE waits for the event that ends the queue pair's use of its shared receive queue, unless the device is
// known not to raise it.
func (q *QP) awaitLastWQE(p drainContext) error {
	timer := time.NewTimer(lastWQEWait)
	defer timer.Stop()
	if q.device.keepsLastWQE.Load() {
		timer.Reset(0)
	}
	came, err := p.wait(q.lastWQE.done(), timer.C)
	if err != nil {
		return q.notDrained(err)
	}
	if !came {
		q.device.keepsLastWQE.Store(true)
	}
	return nil
}

// flushERDMA is flush for liberdma, which rejects markers in ERR: it posts the marker of the sends before ERR, and
// counts receives.
func (q *QP) flushERDMA(p drainContext) error {
	if err := q.await(p, &q.sendMark); err != nil {
		return err
	}
	if q.send != nil && !q.send.idle() && q.state() == ibv.QPS_RTS {
		if err := q.markSend(p); err != nil {
			return err
		}
	}
	if err := q.fail(); err != nil {
		return err
	}
	marked := q.sendMark.done != nil
	if err := q.await(p, &q.sendMark); err != nil {
		return err
	}
	if marked {
		q.send.resetIdle(q.sendCQ)
	}
	return q.flushCounted(p)
}

// flushed is the rest of a flush on Soft-iWARP: the kernel has flushed all requests before ibv_modify_qp returns. A
// marker in ERR would never complete.
func (q *QP) flushed() error {
	if err := q.collect(); err != nil {
		return err
	}
	if q.send != nil {
		q.send.resetIdle(q.sendCQ)
	}
	if q.recv != nil {
		q.recv.resetIdle(q.recvCQ)
	}
	return nil
}

// flushCounted waits until each counted request has completed. libefa rejects markers in ERR, and its sends are all
// signaled, so counting is enough.
func (q *QP) flushCounted(p drainContext) error {
	return q.collectUntil(p, nil, func() bool {
		return (q.send == nil || q.send.idle()) && (q.recv == nil || q.recv.idle())
	})
}
