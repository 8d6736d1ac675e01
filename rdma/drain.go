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

// lastWQEWait is the time that a drain waits for IBV_EVENT_QP_LAST_WQE_REACHED after its own requests have completed.
// Devices that raise the event do so at once. Tests change it.
var lastWQEWait = 500 * time.Millisecond

// Drain moves the queue pair to ERR and waits until all posted work has completed, so that the memory of all requests
// belongs to the caller again. Posts fail until it returns. The completions can be polled as usual, during the drain or
// afterwards; Drain keeps those that it polls itself for later polls. With a shared receive queue, Drain also waits for
// IBV_EVENT_QP_LAST_WQE_REACHED. If the event does not arrive within half a second, which is usual on Soft-RoCE, Drain
// returns, and later drains on that device do not wait; receives that the queue pair has consumed then belong to the
// device until Close. Events from before RESET are ignored.
//
// Some providers differ. On EFA and erdma, Drain waits until each counted request has completed, so an Unchecked queue
// pair cannot be drained. liberdma rejects sends in ERR, so Drain posts an empty write before it changes the state; if
// the queue pair already was in ERR, Drain cannot detect the end of unsignaled sends that succeeded. On queue pairs of
// type IBV_QPT_DRIVER of other providers, Drain waits for receives only. On Soft-iWARP, the kernel completes all work
// during the change to ERR; receives posted later, or after the connection was lost, do not complete. libmana rejects
// requests in ERR: Drain fails, and the queue pair stays in ERR.
//
// If ctx ends or the queue pair is closed, Drain returns an error; another call of Drain resumes. Draining a drained
// queue pair does nothing. To use the queue pair again, move it to RESET.
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
		Reason: "the queue pair is being drained and rejects work requests until the drain ends"})
	defer q.refuse(nil)
	if err := q.native.misuse("Drain", q.name); err != nil {
		return err
	}
	return q.drain(drainContext{ctx, q.closing.done()})
}

// drain is Drain for a queue pair that already rejects posts. The caller holds changes.
func (q *QP) drain(p drainContext) error {
	if q.state() == ibv.QPS_RESET || q.sendCQ == nil && q.recvCQ == nil {
		return nil
	}
	if err := q.checkCounted(); err != nil {
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

// flush moves the queue pair to ERR, posts a marker to each queue and waits until the markers have completed. Requests
// complete in order, so all earlier ones have completed, too. flush first waits for the markers of a canceled drain,
// because each queue has room for only one.
func (q *QP) flush(p drainContext) error {
	unlock, err := q.lockDrains(p)
	if err != nil {
		return err
	}
	defer unlock()
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
		return q.finishSIW()
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
		// A provider that bypasses the kernel processes receives posted in ERR only after another call of
		// ibv_modify_qp.
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
		q.send.resetIdle(q.sendCQ) // unsignaled requests that succeeded have no completion
	}
	return nil
}

// lockDrains makes this the only drain of the completion queues, because these have room for the markers of one drain.
func (q *QP) lockDrains(p drainContext) (unlock func(), err error) {
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
			unlockDrains(all[:i])
			return nil, q.notDrained(err)
		}
	}
	return func() { unlockDrains(all) }, nil
}

func unlockDrains(all []*CQ) {
	for _, cq := range all {
		<-cq.drains
	}
}

// awaitLastWQE waits for the event that the queue pair consumes no more receives of its shared receive queue. It does
// not wait if the device is known not to raise the event.
func (q *QP) awaitLastWQE(p drainContext) error {
	timer := time.NewTimer(lastWQEWait)
	defer timer.Stop()
	if q.device.noLastWQE.Load() {
		timer.Reset(0)
	}
	raised, err := p.wait(q.lastWQE.done(), timer.C)
	if err != nil {
		return q.notDrained(err)
	}
	if !raised {
		q.device.noLastWQE.Store(true)
	}
	return nil
}

// flushERDMA is flush for liberdma, which rejects posts in ERR. It posts the marker of the sends before the change to
// ERR and counts receives.
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

// finishSIW completes a flush on Soft-iWARP. The kernel has flushed all requests when ibv_modify_qp returns, and a
// marker posted in ERR would never complete.
func (q *QP) finishSIW() error {
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

// flushCounted waits until each counted request has completed. On EFA this replaces markers, because libefa rejects
// posts in ERR and signals all sends.
func (q *QP) flushCounted(p drainContext) error {
	return q.collectUntil(p, nil, func() bool {
		return (q.send == nil || q.send.idle()) && (q.recv == nil || q.recv.idle())
	})
}
