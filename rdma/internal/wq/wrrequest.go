// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime/program"
)

// wrSize is the size of a request's data, and the remote address of an atomic operation.
type wrSize struct {
	sges   int
	bytes  uint64
	inline bool
	remote uint64
}

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
type WRRequest struct {
	p                     *WRProgram
	index                 int
	id, flags, call, data program.Step
	entry                 bool // the data is an entry that SGE set
}

// size records the size of the request's data.
func (r WRRequest) size(s wrSize) WRRequest {
	if r.index < len(r.p.sizes) {
		s.remote = r.p.sizes[r.index].remote
		r.p.sizes[r.index] = s
	}
	return r
}

// setter appends a setter to the last request.
func (r WRRequest) setter(s ibv.WRSetters, fn ibv.FuncPtr, args ...uint64) WRRequest {
	if p := r.p; r.index != len(p.wrs)-1 || p.closed {
		p.fail(fmt.Errorf("rdma: WR %d: %v for a request that others follow", r.index, s))
	} else {
		p.set |= s
		r.data = p.step(fn, s.String(), args...)
	}
	return r
}

// SGE sets the only entry: ibv_wr_set_sge.
//
// C: ibv_wr_set_sge
//
// Man: ibv_wr_post(3)
func (r WRRequest) SGE(address uint64, length, lkey uint32) WRRequest {
	r = r.size(wrSize{sges: 1, bytes: uint64(length)}).setter(ibv.WRSetSGE, r.p.qp.WRSetSGE, word(lkey), address,
		word(length)).onlyEntry(address, length, lkey)
	r.entry = true
	return r
}

// SGEList sets the entries: ibv_wr_set_sge_list.
//
// C: ibv_wr_set_sge_list
//
// Man: ibv_wr_post(3)
func (r WRRequest) SGEList(list ...ibv.SGE) WRRequest {
	size := wrSize{sges: len(list)}
	for i := range list {
		size.bytes += uint64(list[i].Length)
	}
	at := held(r.p, list)
	return r.size(size).setter(ibv.WRSetSGEList, r.p.qp.WRSetSGEList, uint64(len(list)), at).entries(at, len(list))
}

// Inline sets data to be sent inline: ibv_wr_set_inline_data.
//
// C: ibv_wr_set_inline_data
//
// Man: ibv_wr_post(3)
func (r WRRequest) Inline(data []byte) WRRequest {
	at := held(r.p, data)
	return r.size(wrSize{bytes: uint64(len(data)), inline: true}).setter(ibv.WRSetInlineData, r.p.qp.WRSetInlineData,
		at, uint64(len(data))).onlyEntry(at, uint32(len(data)), 0)
}

// InlineList sets pieces of data to be sent inline: ibv_wr_set_inline_data_list.
//
// C: ibv_wr_set_inline_data_list
//
// Man: ibv_wr_post(3)
func (r WRRequest) InlineList(pieces ...[]byte) WRRequest {
	list, size := make([]ibv.DataBuf, len(pieces)), wrSize{inline: true}
	sges := make([]ibv.SGE, len(pieces))
	for i, piece := range pieces {
		list[i] = ibv.DataBuf{Addr: uintptr(held(r.p, piece)), Length: uint64(len(piece))}
		sges[i] = ibv.SGE{Addr: uint64(list[i].Addr), Length: uint32(len(piece))}
		size.bytes += uint64(len(piece))
	}
	r = r.size(size).setter(ibv.WRSetInlineDataList, r.p.qp.WRSetInlineDataList, uint64(len(list)), held(r.p, list))
	return r.entries(held(r.p, sges), len(sges))
}

// UD sets the destination of a datagram: ibv_wr_set_ud_addr.
//
// C: ibv_wr_set_ud_addr
//
// Man: ibv_wr_post(3)
func (r WRRequest) UD(ah ibv.Ptr[ibv.AH], qpn, qkey uint32) WRRequest {
	if ah == 0 { // providers dereference it without a check
		r.p.fail(fmt.Errorf("rdma: WR %d: a datagram needs an address handle: %w", r.index, einval))
	}
	if rule := ibv.WRPost(r.p.qp.QPBase.QPType, r.p.wrs[r.index].Opcode); rule.Address&ibv.WRSetUDAddr == 0 &&
		rule.Data != 0 {
		r.p.fail(fmt.Errorf("rdma: WR %d: UD gives it the address of a datagram, and %s has none: %w", r.index,
			ShortName(r.p.qp.QPBase.QPType), einval))
	}
	data := r.data
	r = r.setter(ibv.WRSetUDAddr, r.p.qp.WRSetUDAddr, uint64(ah), word(qpn), word(qkey)).
		record(func(w *ibv.SendWR) { *w.WR.UD() = ibv.SendUD{AH: ah, RemoteQPN: qpn, RemoteQKey: qkey} })
	r.data = data
	return r
}

// XRC sets the shared receive queue that a message goes to: ibv_wr_set_xrc_srqn.
//
// C: ibv_wr_set_xrc_srqn
//
// Man: ibv_wr_post(3)
func (r WRRequest) XRC(srqn uint32) WRRequest {
	data := r.data
	r = r.setter(ibv.WRSetXRCSRQN, r.p.qp.WRSetXRCSRQN, word(srqn)).
		record(func(w *ibv.SendWR) { w.QPType.XRC().RemoteSRQN = srqn })
	r.data = data
	return r
}

// SetID changes wr_id.
func (r WRRequest) SetID(id uint64) {
	r.p.program.SetArg(r.id, 0, id)
	r.p.wrs[r.index].WRID = id
}

// SetRemote changes the remote address and key of a read, a write, an atomic operation or a flush.
func (r WRRequest) SetRemote(remote uint64, rkey uint32) {
	switch op := r.p.wrs[r.index].Opcode; op {
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_WRITE, ibv.WR_FLUSH:
	default:
		r.p.fail(fmt.Errorf("rdma: WR %d: SetRemote of %v, which has no remote address", r.index, op))
		return
	}
	r.p.program.SetArg(r.call, 1, word(rkey))
	r.p.program.SetArg(r.call, 2, remote)
	r.p.relist(r.index, remote, rkey)
	r.p.sizes[r.index].remote = remote
}

// SetSGE changes the entry of request r, which SGE returned.
func (r WRRequest) SetSGE(address uint64, length, lkey uint32) {
	if !r.entry {
		r.p.fail(fmt.Errorf("rdma: WR %d: SetSGE of a request without an entry that SGE set", r.index))
		return
	}
	r.p.program.SetArg(r.data, 1, word(lkey))
	r.p.program.SetArg(r.data, 2, address)
	r.p.program.SetArg(r.data, 3, word(length))
	if e := r.p.wrs[r.index].SGList.Deref(); e != nil {
		*e = ibv.SGE{Addr: address, Length: length, LKey: lkey}
	}
	r.p.sizes[r.index].bytes = uint64(length)
}
