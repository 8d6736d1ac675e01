package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// closeDrains is how long Close waits for what is outstanding; then it destroys the queue pair all the same.
const closeDrains = 2 * time.Second

var errDraining = errors.New("rdma: the queue pair is being drained")

// Drain moves the queue pair to ERR and returns when everything that was posted has completed: the memory of all requests is the user's
// again. Nothing can be posted meanwhile. The completions can be polled as ever, by others at the same time or afterwards; those that
// are polled in the course of it are kept. A queue pair with a shared receive queue waits for the event that it takes no more of it.
//
// Draining again does nothing more. To use the queue pair again, move it to RESET.
//
// Man: ibv_modify_qp(3), ibv_get_async_event(3)
func (q *QP) Drain(ctx context.Context) error {
	if err := q.use("Drain"); err != nil {
		return err
	}
	defer q.done()
	if err := q.refuse(errDraining); err != nil {
		return wrap("Drain", q.name, err)
	}
	defer q.refuse(nil)
	return q.drain(ctx)
}

// refuse makes both queues take nothing, or something again.
func (q *QP) refuse(why error) error {
	if q.send != nil {
		if err := q.send.refuse(why); err != nil {
			return err
		}
	}
	if q.recv != nil {
		if err := q.recv.refuse(why); err != nil {
			if q.send != nil {
				q.send.refuse(nil)
			}
			return err
		}
	}
	return nil
}

// drain is Drain of a queue pair that takes nothing.
func (q *QP) drain(ctx context.Context) error {
	q.changes.Lock()
	defer q.changes.Unlock()
	from := q.c.State
	if from == ibv.QPS_RESET || q.sendCQ == nil && q.recvCQ == nil {
		return nil
	}
	if q.sendCQ != nil {
		q.sendCQ.drains.Lock()
		defer q.sendCQ.drains.Unlock()
	}
	if q.recvCQ != nil && q.recvCQ != q.sendCQ {
		q.recvCQ.drains.Lock()
		defer q.recvCQ.drains.Unlock()
	}
	toErr := &ibv.QPAttr{QPState: ibv.QPS_ERR}
	if err := q.modify(toErr, ibv.QP_STATE); err != nil {
		return err
	}
	if err := q.collect(); err != nil {
		return err
	}
	sent, err := q.markSend(ctx)
	if err != nil {
		return err
	}
	defer q.unmark(q.sendCQ, sent)
	received, err := q.markRecv(ctx)
	if err != nil {
		return err
	}
	defer q.unmark(q.recvCQ, received)
	if received.done != nil {
		// Providers whose receives are posted without the kernel notice them in ERR when they are told again.
		if err := q.modify(toErr, ibv.QP_STATE); err != nil {
			return err
		}
	}
	waits := []<-chan struct{}{sent.done, received.done}
	if q.srq != nil && (from == ibv.QPS_RTR || from == ibv.QPS_RTS || from == ibv.QPS_SQD || from == ibv.QPS_SQE) {
		waits = append(waits, q.lastWQE.done())
	}
	for _, done := range waits {
		if err := q.await(ctx, done); err != nil {
			return err
		}
	}
	if err := q.collect(); err != nil {
		return err
	}
	if q.send != nil && sent.done != nil {
		q.send.Reset() // requests that succeeded without a signal have no completion
	}
	return nil
}

// drainMarker is a work request behind all others.
type drainMarker struct {
	id   uint64
	done <-chan struct{} // nil: there is none
}

func (q *QP) unmark(cq *CQ, m drainMarker) {
	if m.done != nil {
		cq.queue.unmark(m.id)
	}
}

// markSend posts a send behind all others.
func (q *QP) markSend(ctx context.Context) (m drainMarker, err error) {
	kind := q.c.QPType
	if q.send == nil || kind != ibv.QPT_RC && kind != ibv.QPT_UC && kind != ibv.QPT_UD && kind != ibv.QPT_XRC_SEND {
		return m, nil // what a provider reads of a request of another kind is not known
	}
	wr := &ibv.SendWR{Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
	if kind == ibv.QPT_UD {
		ah, err := q.ownHandle()
		if err != nil {
			return m, err
		}
		defer libibverbs.DestroyAH(ah)
		*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: q.c.QPNum}
	}
	m.id, m.done = q.sendCQ.queue.mark()
	wr.WRID = m.id
	bad := new(ibv.Ptr[ibv.SendWR])
	err = q.whileFull(ctx, func() error { return libibverbs.PostSend(q.c, wr, bad) })
	if err != nil {
		q.unmark(q.sendCQ, m)
		return drainMarker{}, wrap("ibv_post_send", q.name, err)
	}
	return m, nil
}

// ownHandle is an address handle of the own port, for a datagram that never leaves.
func (q *QP) ownHandle() (*ibv.AH, error) {
	l := q.local
	if !l.decided {
		if err := q.decide(GIDQuery{}); err != nil {
			return nil, err
		}
		l = q.local
	}
	attr := &ibv.AHAttr{PortNum: l.port, DLID: l.attr.LID}
	if l.hasGID {
		entry, err := q.device.FindGID(GIDQuery{Port: l.port, GID: &l.gid})
		if err != nil {
			return nil, err
		}
		attr.IsGlobal, attr.GRH = 1, ibv.GlobalRoute{DGID: l.gid, SGIDIndex: uint8(entry.GIDIndex), HopLimit: 1}
	}
	return libibverbs.CreateAH(q.pd.c, attr)
}

// markRecv posts a receive behind all others.
func (q *QP) markRecv(ctx context.Context) (m drainMarker, err error) {
	if q.recv == nil {
		return m, nil
	}
	m.id, m.done = q.recvCQ.queue.mark()
	wr, bad := &ibv.RecvWR{WRID: m.id}, new(ibv.Ptr[ibv.RecvWR])
	err = q.whileFull(ctx, func() error { return libibverbs.PostRecv(q.c, wr, bad) })
	if err != nil {
		q.unmark(q.recvCQ, m)
		return drainMarker{}, wrap("ibv_post_recv", q.name, err)
	}
	return m, nil
}

// whileFull posts again while the queue has no slot, which flushed requests give back.
func (q *QP) whileFull(ctx context.Context, post func() error) error {
	for pause := time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		err := post()
		var call *runtime.CallError
		if err == nil || !errors.As(err, &call) || call.Errno != enomem {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pause)
		if err := q.collect(); err != nil {
			return err
		}
	}
}

// collect takes the completions there are out of both queues, for who polls later.
func (q *QP) collect() error {
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if cq == nil {
			continue
		}
		if err := cq.queue.collect(); err != nil {
			return wrap("ibv_poll_cq", cq.name, err)
		}
	}
	return nil
}

// await polls until something is done.
func (q *QP) await(ctx context.Context, done <-chan struct{}) error {
	if done == nil {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 10 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if err := q.collect(); err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("rdma: %s is not drained: %w", q.name, ctx.Err())
		case <-timer.C:
			if err := q.device.Err(); err != nil {
				return err
			}
		}
	}
}

// idle says whether nothing can be outstanding, as far as the accounting knows.
func (q *QP) idle() bool {
	switch {
	case q.c.State == ibv.QPS_RESET:
		return true
	case q.options.Unchecked, q.srq != nil && q.c.State != ibv.QPS_INIT:
		return false
	}
	return (q.send == nil || q.send.Free() == int(q.send.slots.capacity)) && (q.recv == nil || q.recv.Free() == int(q.recv.slots.capacity))
}

// destroyC drains and destroys the queue pair.
func (q *QP) destroyC(c *ibv.QP) error {
	if err := q.refuse(&VerbError{Verb: "ibv_post_send", Object: q.name, Errno: einval, Err: ErrClosed}); err != nil {
		return &VerbError{Errno: ebusy, Reason: err.Error(), Err: ErrInUse}
	}
	var drained error
	if !q.idle() {
		ctx, cancel := context.WithTimeout(context.Background(), closeDrains)
		defer cancel()
		drained = q.drain(ctx)
	}
	_ = drained // the device lets go of the memory with the queue pair, drained or not
	q.collect() // so that slots of a shared receive queue come back
	q.leaveGroups()
	q.untrack() // the number may be another's as soon as C has destroyed the queue pair
	if err := q.endC(c); err != nil {
		q.track()
		q.refuse(nil)
		return err
	}
	q.leave()
	return nil
}

// Close drains the queue pair, for two seconds at most, and destroys it. Then the device has let go of all memory of its requests. Completions
// that nobody has polled can still be polled.
//
// C: ibv_destroy_qp
//
// Man: ibv_create_qp(3)
func (q *QP) Close() error { return q.end() }
