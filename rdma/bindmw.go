// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// BindMW binds a memory window of type 1 to a memory region, or unbinds it if the length is 0. The bind is a posted
// request, which a checked queue checks and counts like any other. With SEND_SIGNALED in bind, it completes with
// WC_BIND_MW and bind's WRID. The window has a new key afterwards. BindMW may block. For windows of type 2, use
// [SendBatch.BindMW] or [WRProgram.BindMW].
//
// The error is a [*PostError] if a check fails, and otherwise that of [libibverbs.BindMW].
//
// Man: ibv_bind_mw(3)
func (q *SendQueue) BindMW(mw *ibv.MW, bind *ibv.MWBind) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return q.refusal
	}
	if q.checks == nil || bind == nil {
		return q.bind(mw, bind)
	}
	wrs := [1]ibv.SendWR{{WRID: bind.WRID, Opcode: ibv.WR_BIND_MW, SendFlags: bind.SendFlags}}
	*wrs[0].BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(mw), BindInfo: bind.BindInfo}
	m, ok := q.reserveChecked(wrs[:])
	if !ok {
		e := q.explainSends(wrs[:], 0)
		e.Verb = "ibv_bind_mw"
		return traceRejected(e)
	}
	err := q.bind(mw, bind)
	if err != nil {
		q.undo(m, 0)
	}
	return err
}

// bind posts the bind request through C, or directly to the queue if its Path writes it.
func (q *SendQueue) bind(mw *ibv.MW, bind *ibv.MWBind) error {
	own := queueOf(q.path)
	if own == nil || mw == nil || bind == nil {
		return libibverbs.BindMW(q.qp, mw, bind)
	}
	if errno := unbindable(mw, &bind.BindInfo); errno != 0 {
		return &runtime.CallError{Function: "ibv_bind_mw", Errno: errno}
	}
	wr := &ibv.SendWR{WRID: bind.WRID, Opcode: ibv.WR_BIND_MW, SendFlags: bind.SendFlags}
	key := libibverbs.IncRKey(mw.RKey)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(mw), RKey: key, BindInfo: bind.BindInfo}
	if err := callError("ibv_bind_mw", own.PostSend(q.qp, wr, new(ibv.Ptr[ibv.SendWR]))); err != nil {
		return err
	}
	mw.RKey = key
	return nil
}

// unbindable returns the errno with which ibv_bind_mw or the provider would reject a bind, or 0.
func unbindable(mw *ibv.MW, info *ibv.MWBindInfo) runtime.Errno {
	mr := info.MR.Deref()
	switch {
	case mw.Type != ibv.MW_TYPE_1, mr == nil && (info.Addr != 0 || info.Length != 0),
		info.MWAccessFlags&ibv.ACCESS_ZERO_BASED != 0:
		return syscall.EINVAL
	case mr != nil && mw.PD != mr.PD:
		return syscall.EPERM
	}
	return 0
}
