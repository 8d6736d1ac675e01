// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// postSend implements the slot post_send.
func postSend(address, first, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := qpOf(address)
	if q == nil || q.Dynamic != nil { // a dynamic connection's request needs a target
		return uint64(syscall.EINVAL), 0
	}
	q.Post.Lock()
	before := debug.SetPanicOnFault(true) // once, for the list and for its execution
	defer func() {
		debug.SetPanicOnFault(before)
		q.Post.Unlock()
	}()
	n, wr, errno := q.fillList(first)
	if !q.Publish(n) && first != 0 {
		errno, wr = syscall.EINVAL, first
	}
	return resource.TellBad(errno, bad, wr), 0
}

// fillList copies a list of work requests to the ring. It returns the number of copied requests and, after an error,
// the address of the failed one. It inlines mem.Try, because most lists are short. The caller holds QP.Post, and has
// called SetPanicOnFault.
func (q *QP) fillList(first uint64) (n uint32, wr uint64, errno runtime.Errno) {
	wr, errno = first, syscall.EFAULT // until the list is read
	done := false
	defer func() {
		if !done {
			mem.OnlyFault(recover())
		}
	}()
	for ; wr != 0; n++ {
		w := mem.At[ibv.SendWR](wr)
		if filled := q.fill(q.Posted+n, w); filled != 0 {
			done = true
			return n, wr, filled
		}
		wr = uint64(w.Next)
	}
	done = true
	return n, wr, 0
}

// fill checks a work request and copies it to its place in the ring. The caller holds QP.Post.
func (q *QP) fill(position uint32, w *ibv.SendWR) runtime.Errno {
	r, errno := q.Claim(position)
	if errno != 0 {
		return errno
	}
	if w.Opcode >= engine.KnownOpcodes {
		return syscall.EINVAL
	}
	rule := &Rules[q.Kind][w.Opcode]
	if !rule.posts || w.SendFlags&^rule.flags != 0 || uint32(w.NumSGE) > q.Cap.MaxSendSGE || w.NumSGE > 0 &&
		w.SGList == 0 {
		return syscall.EINVAL
	}
	r.Start(w.WRID, w.Opcode, w.SendFlags)
	r.Imm = uint32(*w.ImmData())
	if w.SendFlags&ibv.SEND_INLINE != 0 {
		if errno := q.fillInline(r, mem.List[ibv.SGE](uint64(w.SGList), int(w.NumSGE))); errno != 0 {
			return errno
		}
	} else if w.NumSGE > 0 {
		r.SGEs = r.SGEs[:w.NumSGE]
		resource.CopySGEs(r.SGEs, uint64(w.SGList))
	}
	switch w.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		if q.Kind == ibv.QPT_UD {
			to := w.WR.UD()
			if errno := q.address(r, uint64(to.AH), to.RemoteQPN, to.RemoteQKey); errno != 0 {
				return errno
			}
		}
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		a := w.WR.Atomic()
		r.Remote, r.RKey, r.Operand, r.Swap = a.RemoteAddr, a.RKey, a.CompareAdd, a.Swap
	case ibv.WR_BIND_MW:
		b := w.BindMW()
		return q.fillBind(r, uint64(b.MW), b.RKey, &b.BindInfo)
	default:
		to := w.WR.RDMA()
		r.Remote, r.RKey = to.RemoteAddr, to.RKey
	}
	if q.Kind == ibv.QPT_XRC_SEND {
		r.Number = w.QPType.XRC().RemoteSRQN
	}
	return 0
}

// fillInline copies inline data and ignores its keys.
func (q *QP) fillInline(r *engine.Request, pieces []ibv.SGE) runtime.Errno {
	r.Inline = 0
	for _, piece := range pieces {
		if errno := q.AddInline(r, piece.Addr, uint64(piece.Length)); errno != 0 {
			return errno
		}
	}
	return 0
}

// address sets the destination of a datagram.
func (q *QP) address(r *engine.Request, handle uint64, number, qkey uint32) runtime.Errno {
	h := q.latestAH // most datagrams have the destination of the previous one, which needs no lock
	if h == nil || mem.AddressOf(h.record) != handle || h.gone.Load() {
		if h = Find[ah](handle); h == nil || h.owner.domain() != q.Protects {
			return syscall.EINVAL
		}
		q.latestAH = h
	}
	r.AH, r.Number, r.QKey = &h.AH, number, qkey
	return 0
}

// postRecv implements the slot post_recv.
func postRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := qpOf(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	f := q.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	if q.Recvs == nil || q.State == ibv.QPS_RESET {
		return resource.TellBad(syscall.EINVAL, bad, wr), 0
	}
	errno := q.Recvs.Post(wr, bad)
	if q.State == ibv.QPS_ERR {
		q.FlushRecvs()
	}
	return errno, 0
}

// bindMW implements the slot bind_mw, for windows of type 1.
func bindMW(address, window, bind, _, _, _ uint64) (uint64, runtime.Errno) {
	q, w := FindQP(address), Find[mw](window)
	if q == nil || w == nil || bind == 0 || q.Dynamic != nil || engine.Refused(ibv.BindMWValidity(w.Kind, ibv.BindMWVerb, q.Kind)) {
		return uint64(syscall.EINVAL), 0
	}
	var b ibv.MWBind
	if !mem.Try(func() { b = *mem.At[ibv.MWBind](bind) }) {
		return uint64(syscall.EFAULT), 0
	}
	q.Post.Lock()
	defer q.Post.Unlock()
	r, errno := q.Claim(q.Posted)
	if errno != 0 {
		return uint64(errno), 0
	}
	r.Start(b.WRID, ibv.WR_BIND_MW, b.SendFlags)
	m := Find[Region](uint64(b.BindInfo.MR))
	// Windows of type 1 are never zero-based (InfiniBand architecture, o10-36.2.2).
	if b.BindInfo.MWAccessFlags&ibv.ACCESS_ZERO_BASED != 0 {
		return uint64(syscall.EINVAL), 0
	}
	if b.BindInfo.MR != 0 && m == nil || b.SendFlags&^Rules[q.Kind][ibv.WR_BIND_MW].flags != 0 {
		return uint64(syscall.EINVAL), 0
	}
	// The key is valid at once, though the window is bound when its request is executed.
	key := w.record.RKey&^0xff | uint32(uint8(w.record.RKey)+1)
	binds(r, w, m, &b.BindInfo, key)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if !q.Publish(1) {
		return uint64(syscall.EINVAL), 0
	}
	w.record.RKey = key
	return 0, 0
}
