// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// A program is also a list of work requests, for a path whose device has no functions for programs.

// record sets what belongs to the last request in its work request.
func (r WRRequest) record(set func(w *ibv.SendWR)) WRRequest {
	if p := r.p; r.index == len(p.wrs)-1 && !p.closed {
		set(&p.wrs[r.index])
	}
	return r
}

// entries records the entries at an address.
func (r WRRequest) entries(at uint64, n int) WRRequest {
	return r.record(func(w *ibv.SendWR) { w.SGList, w.NumSGE = ibv.Ptr[ibv.SGE](at), int32(n) })
}

// onlyEntry records the only entry.
func (r WRRequest) onlyEntry(address uint64, length, lkey uint32) WRRequest {
	return r.entries(held(r.p, []ibv.SGE{{Addr: address, Length: length, LKey: lkey}}), 1)
}

// relist changes the remote address and key of a request.
func (p *WRProgram) relist(index int, remote uint64, rkey uint32) {
	switch w := &p.wrs[index]; w.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		w.WR.Atomic().RemoteAddr, w.WR.Atomic().RKey = remote, rkey
	default:
		w.WR.RDMA().RemoteAddr, w.WR.RDMA().RKey = remote, rkey
	}
}

// noList says that a work request cannot hold what a function does.
func (p *WRProgram) noList(function string) {
	if p.unlisted == nil {
		p.unlisted = &runtime.NotSupportedError{Function: function,
			Missing: "the queue's Path takes lists of ibv_send_wr, and those cannot ask for it"}
	}
}

// postList posts the program as a list by a path. The caller holds slots.mu, or has the exclusive handle.
func (q *SendQueue) postList(path Path, p *WRProgram, m mark) error {
	for i := range p.wrs {
		w := &p.wrs[i]
		if p.sizes[i].inline {
			w.SendFlags |= ibv.SEND_INLINE
		}
		if w.Next = 0; i+1 < len(p.wrs) {
			w.Next = ibv.PtrTo(&p.wrs[i+1])
		}
	}
	p.bad = 0
	r := path.PostSend(q.qp, &p.wrs[0], &p.bad)
	if r == 0 {
		return nil
	}
	e := &PostError{Verb: "ibv_wr_complete", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: -1, Errno: errnoOf(r)}
	const size = unsafe.Sizeof(ibv.SendWR{})
	at := uintptr(p.bad) - uintptr(unsafe.Pointer(&p.wrs[0]))
	if at%size == 0 && at/size < uintptr(len(p.wrs)) {
		e.Index = int(at / size)
		e.WRID = p.wrs[e.Index].WRID
		if q.checks != nil {
			q.undo(m, e.Index)
		}
	}
	return e
}
