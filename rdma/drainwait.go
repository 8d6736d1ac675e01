// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// drainContext is the context of a drain, which also ends when the queue pair is closed.
type drainContext struct {
	context.Context
	closing <-chan struct{} // closed when Close begins; nil for the drain of Close
}

// wait waits for what or for timer, and reports whether what was ready.
func (p drainContext) wait(what <-chan struct{}, timer <-chan time.Time) (bool, error) {
	select {
	case <-what:
		return true, nil
	case <-p.closing:
		return false, ErrClosed
	case <-p.Done():
		return false, p.Err()
	case <-timer:
		return false, nil
	}
}

// markSend posts a marker to the send queue.
func (q *QP) markSend(p drainContext) error {
	if q.send == nil || q.kind != ibv.QPT_RC && q.kind != ibv.QPT_UC && q.kind != ibv.QPT_UD &&
		q.kind != ibv.QPT_XRC_SEND {
		return nil // other types may need fields that this function does not know
	}
	wr := &ibv.SendWR{Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
	if q.onERDMA() {
		wr.Opcode = ibv.WR_RDMA_WRITE // a write does not consume a receive of the peer
	}
	if q.kind == ibv.QPT_UD {
		ah, err := q.ownHandle()
		if err != nil {
			return err
		}
		defer libibverbs.DestroyAH(ah)
		*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: q.Num()}
	}
	q.sendMark = q.sendCQ.mark()
	wr.WRID = q.sendMark.id
	bad := new(ibv.Ptr[ibv.SendWR])
	unneeded := false // libmlx5 rejects sends with ENOMEM if the queue pair has never been in RTS
	err := q.whileFull(p, q.sendCQ, func() error {
		err := q.native.send(q.c, wr, bad)
		unneeded = full(err) && !q.options.Unchecked && q.send.idle()
		if unneeded {
			return nil
		}
		return err
	})
	if err != nil || unneeded {
		q.sendMark.forget()
	}
	return wrap("ibv_post_send", q.name, err)
}

// full reports whether a post failed because the queue has no free slot.
func full(err error) bool {
	var call *runtime.CallError
	return errors.As(err, &call) && call.Errno == syscall.ENOMEM
}

// ownHandle returns an address handle of the local port, for a datagram that is never sent.
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
		index, err := q.sourceIndex(&l)
		if err != nil {
			return nil, err
		}
		attr.IsGlobal, attr.GRH = 1, ibv.GlobalRoute{DGID: *l.source.GID, SGIDIndex: index, HopLimit: 1}
	}
	return libibverbs.CreateAH(q.pd.c, attr)
}

// markRecv posts a marker to the receive queue.
func (q *QP) markRecv(p drainContext) error {
	if q.recv == nil {
		return nil
	}
	q.recvMark = q.recvCQ.mark()
	wr, bad := &ibv.RecvWR{WRID: q.recvMark.id}, new(ibv.Ptr[ibv.RecvWR])
	err := q.whileFull(p, q.recvCQ, func() error { return q.native.receive(q.c, wr, bad) })
	if err != nil {
		q.recvMark.forget()
	}
	return wrap("ibv_post_recv", q.name, err)
}

// whileFull repeats a post while the queue is full. Flushed requests release slots.
func (q *QP) whileFull(p drainContext, cq *CQ, post func() error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		err := post()
		if !full(err) {
			return err
		}
		timer.Reset(pause)
		if _, ended := p.wait(nil, timer.C); ended != nil {
			return errors.Join(ended, err)
		}
		if failed := cq.failure(); failed != nil {
			return q.notDrained(failed)
		}
		if err := q.collect(); err != nil {
			return err
		}
	}
}

// await polls until a marker, if there is one, has completed.
func (q *QP) await(p drainContext, m *drainMarker) error {
	if m.done == nil {
		return nil
	}
	err := q.collectUntil(p, m.done, never)
	if err == nil {
		*m = drainMarker{}
	}
	return err
}

// collect removes all completions from both queues of C and keeps them for the next Poll.
func (q *QP) collect() error {
	for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
		if cq == nil {
			continue
		}
		if err := cq.queue.pollAside(); err != nil {
			return wrap("ibv_poll_cq", cq.name, err)
		}
	}
	return nil
}

// collectUntil polls until done is closed or over returns true.
func (q *QP) collectUntil(p drainContext, done <-chan struct{}, over func() bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 10 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if err := q.collect(); err != nil {
			return err
		}
		if over() {
			return nil
		}
		timer.Reset(pause)
		completed, err := p.wait(done, timer.C)
		switch {
		case completed:
			return nil
		case err != nil:
			return q.notDrained(err)
		}
		for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
			if cq == nil {
				continue
			}
			if err := cq.failure(); err != nil { // no more completions after an overrun or the loss of the device
				return q.notDrained(err)
			}
		}
	}
}

func (q *QP) notDrained(err error) error {
	return &VerbError{Verb: "Drain", Object: q.name, Reason: "not drained", Err: err}
}
