// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/wq"
	"github.com/goverbs/goverbs/runtime"
)

// drainMarker is a work request after all others.
type drainMarker struct {
	cq   *CQ
	id   uint64
	done <-chan struct{} // nil: there is none
}

// forget gives up a marker that was not posted or has no completion.
func (m *drainMarker) forget() {
	if m.done != nil {
		wq.Unmark(m.cq.queue, m.id)
		*m = drainMarker{}
	}
}

// markSend posts a send after all other requests.
func (q *QP) markSend(p patience) error {
	if q.send == nil || q.kind != ibv.QPT_RC && q.kind != ibv.QPT_UC && q.kind != ibv.QPT_UD &&
		q.kind != ibv.QPT_XRC_SEND {
		return nil // it is unknown what the provider reads of a request of another kind
	}
	wr := &ibv.SendWR{Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
	if q.onERDMA() {
		wr.Opcode = ibv.WR_RDMA_WRITE // it is carried out, and takes no receive of the peer
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
	none := false // libmlx5 takes no sends, for want of memory as it says, until the queue pair has once been in RTS
	err := q.whileFull(p, q.sendCQ, func() error {
		err := q.native.Send(q.c, wr, bad)
		none = full(err) && !q.options.Unchecked && wq.Idle(q.send)
		if none {
			return nil
		}
		return err
	})
	if err != nil || none {
		q.sendMark.forget()
	}
	return wrap("ibv_post_send", q.name, err)
}

// full says whether a post was refused for want of a slot.
func full(err error) bool {
	var call *runtime.CallError
	return errors.As(err, &call) && call.Errno == enomem
}

// ownHandle returns an address handle of the local port, for a datagram that never leaves.
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

// markRecv posts a receive after all others.
func (q *QP) markRecv(p patience) error {
	if q.recv == nil {
		return nil
	}
	q.recvMark = q.recvCQ.mark()
	wr, bad := &ibv.RecvWR{WRID: q.recvMark.id}, new(ibv.Ptr[ibv.RecvWR])
	err := q.whileFull(p, q.recvCQ, func() error { return q.native.Recv(q.c, wr, bad) })
	if err != nil {
		q.recvMark.forget()
	}
	return wrap("ibv_post_recv", q.name, err)
}

// whileFull posts again while the queue has no slot; flushed requests give slots back.
func (q *QP) whileFull(p patience, cq *CQ, post func() error) error {
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

// await polls until a marker has completed.
func (q *QP) await(p patience, m *drainMarker) error {
	if m.done == nil {
		return nil
	}
	err := q.collectUntil(p, m.done, never)
	if err == nil {
		*m = drainMarker{}
	}
	return err
}
