// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// wrSize is the size of a request's data, and the remote address of an atomic operation.
type wrSize struct {
	sges   int
	bytes  uint64
	inline bool
	remote uint64
	toQPN  uint32 // of a datagram
}

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
type WRRequest struct {
	p         *WRProgram
	index     int
	id, flags stepArgument
	call      program.Step
	value     *[8]byte // of an atomic write
}

// argument is a place in a program whose value can change.
type stepArgument struct {
	step program.Step
	i    int
}

func (p *WRProgram) change(a stepArgument, value uint64) { p.program.SetArg(a.step, a.i, value) }

// wr_id and wr_flags have to lie beside each other for a step that sets both.
const _ = uint(unsafe.Offsetof(ibv.QPEx{}.WRFlags)-unsafe.Offsetof(ibv.QPEx{}.WRID)-8) * ^uint(0)

// begin appends what begins a request: wr_id, wr_flags and the call of a builder, in one step if it can.
func (r *WRRequest) begin(fn ibv.FuncPtr, name string, id uint64, args []uint64) {
	p := r.p
	if fn != 0 && missing(fn, name, "the queue pair") == nil {
		object := uintptr(unsafe.Pointer(p.qp))
		at, ok := p.program.Request(uintptr(fn), object, unsafe.Offsetof(p.qp.WRID), id, 0, args...)
		if ok {
			r.id, r.flags, r.call = stepArgument{at, program.RequestID}, stepArgument{at, program.RequestFlags}, at
			return
		}
	}
	r.id = stepArgument{step: p.program.Store(uintptr(unsafe.Pointer(&p.qp.WRID)), 8, id)}
	r.flags = stepArgument{step: p.program.Store(uintptr(unsafe.Pointer(&p.qp.WRFlags)), 4, 0)}
	r.call = p.step(fn, name, args...)
}

// wrData is the data of a request: entries, each of them inline or none.
type wrData struct {
	list   []ibv.SGE
	pieces []ibv.DataBuf // list, if it is inline
	step   program.Step  // the call of the setter
	set    bool          // there is a step
}

// setter appends a setter to the last request.
func (r WRRequest) setter(s ibv.WRSetters, fn ibv.FuncPtr, args ...uint64) WRRequest {
	if r.last(s) {
		r.p.set |= s
		r.p.step(fn, s.String(), args...)
	}
	return r
}

// last says whether the request can get more: it is the last one.
func (r WRRequest) last(s ibv.WRSetters) bool {
	if p := r.p; r.index != len(p.wrs)-1 || p.closed {
		p.fail(invalid("", "", "WR %d: %v for a request that others follow", r.index, s))
		return false
	}
	return true
}

// SGE appends an entry: length bytes at an address, under a local key.
//
// C: ibv_wr_set_sge, ibv_wr_set_sge_list
//
// Man: ibv_wr_post(3)
func (r WRRequest) SGE(address uint64, length, lkey uint32) WRRequest {
	return r.Add(ibv.SGE{Addr: address, Length: length, LKey: lkey})
}

// Add appends an entry, as returned by [Region.SGE].
func (r WRRequest) Add(s ibv.SGE) WRRequest {
	if r.last(ibv.WRSetSGEList) {
		r.append(s)
	}
	return r
}

// Inline appends an entry with a copy of the bytes, which C reads during the post: the memory needs no key. All entries
// of the request are inline then.
//
// C: ibv_wr_set_inline_data, ibv_wr_set_inline_data_list
//
// Man: ibv_wr_post(3)
func (r WRRequest) Inline(data []byte) WRRequest {
	if r.last(ibv.WRSetInlineDataList) {
		r.p.sizes[r.index].inline = true
		r.append(ibv.SGE{Addr: held(r.p, data), Length: uint32(len(data))})
	}
	return r
}

// append appends an entry to the last request.
func (r WRRequest) append(s ibv.SGE) {
	d, size := &r.p.data[r.index], &r.p.sizes[r.index]
	d.list = append(d.list, s)
	size.bytes += uint64(s.Length)
	if size.sges = len(d.list); size.inline {
		size.sges = 0
	}
	r.setData()
}

// setData sets the data of the last request: it appends the call of a setter, or puts another one in its place.
func (r WRRequest) setData() {
	p, d := r.p, &r.p.data[r.index]
	list := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(d.list))))
	s, fn, args := ibv.WRSetSGEList, p.qp.WRSetSGEList, []uint64{uint64(len(d.list)), list}
	switch inline := p.sizes[r.index].inline; {
	case inline && len(d.list) == 1:
		s, fn = ibv.WRSetInlineData, p.qp.WRSetInlineData
		args = []uint64{d.list[0].Addr, uint64(d.list[0].Length)}
	case inline:
		d.pieces = d.pieces[:0]
		for _, e := range d.list {
			d.pieces = append(d.pieces, ibv.DataBuf{Addr: uintptr(e.Addr), Length: uint64(e.Length)})
		}
		s, fn = ibv.WRSetInlineDataList, p.qp.WRSetInlineDataList
		args[1] = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(d.pieces))))
	case len(d.list) == 1:
		s, fn = ibv.WRSetSGE, p.qp.WRSetSGE
		args = []uint64{word(d.list[0].LKey), d.list[0].Addr, word(d.list[0].Length)}
	case len(d.list) == 0:
		args[1] = 0
	}
	p.set |= s
	p.irregular = p.irregular || len(d.list) > 1 || p.sizes[r.index].inline
	w := &p.wrs[r.index]
	w.SGList, w.NumSGE = ibv.Ptr[ibv.SGE](list), int32(len(d.list))
	if d.set {
		p.restep(d.step, fn, s.String(), args...)
	} else {
		d.step, d.set = p.step(fn, s.String(), args...), true
	}
}

// Flags adds send flags.
func (r WRRequest) Flags(f ibv.SendFlags) WRRequest {
	r.SetFlags(r.p.wrs[r.index].SendFlags | f)
	return r
}

// Signaled asks for a completion: IBV_SEND_SIGNALED.
func (r WRRequest) Signaled() WRRequest { return r.Flags(ibv.SEND_SIGNALED) }

// Index is the request's index in its program.
func (r WRRequest) Index() int { return r.index }

// UD sets the destination of a datagram: ibv_wr_set_ud_addr.
//
// C: ibv_wr_set_ud_addr
//
// Man: ibv_wr_post(3)
func (r WRRequest) UD(ah ibv.Ptr[ibv.AH], qpn, qkey uint32) WRRequest {
	if ah == 0 { // providers dereference it without a check
		r.p.fail(invalid("", "", "WR %d: a datagram needs an address handle", r.index))
	}
	if rule := ibv.WRPost(r.p.qp.QPBase.QPType, r.p.wrs[r.index].Opcode); rule.Address&ibv.WRSetUDAddr == 0 &&
		rule.Data != 0 {
		r.p.fail(invalid("", "", "WR %d: UD gives it the address of a datagram, and %s has none", r.index,
			refusal.ShortName(r.p.qp.QPBase.QPType)))
	}
	r.p.sizes[r.index].toQPN = qpn
	return r.setter(ibv.WRSetUDAddr, r.p.qp.WRSetUDAddr, uint64(ah), word(qpn), word(qkey)).
		record(func(w *ibv.SendWR) { *w.WR.UD() = ibv.SendUD{AH: ah, RemoteQPN: qpn, RemoteQKey: qkey} })
}

// XRC sets the shared receive queue that a message goes to: ibv_wr_set_xrc_srqn.
//
// C: ibv_wr_set_xrc_srqn
//
// Man: ibv_wr_post(3)
func (r WRRequest) XRC(srqn uint32) WRRequest {
	return r.setter(ibv.WRSetXRCSRQN, r.p.qp.WRSetXRCSRQN, word(srqn)).
		record(func(w *ibv.SendWR) { w.QPType.XRC().RemoteSRQN = srqn })
}

// SetID changes wr_id.
func (r WRRequest) SetID(id uint64) {
	r.p.change(r.id, id)
	r.p.wrs[r.index].WRID = id
}

// SetFlags changes the send flags. The queue pair's type has to allow them, as where the request was appended.
func (r WRRequest) SetFlags(flags ibv.SendFlags) {
	p, w := r.p, &r.p.wrs[r.index]
	p.allowFlags(r.index, flags&^w.SendFlags)
	w.SendFlags = flags
	if p.sizes[r.index].inline {
		flags &^= ibv.SEND_INLINE // which the setter says
	}
	p.change(r.flags, uint64(flags))
}

// Renew is SetID, SetFlags and SetRemote, in one call: for a request that is posted again and again.
func (r WRRequest) Renew(id uint64, flags ibv.SendFlags, remote uint64, rkey uint32) {
	w := &r.p.wrs[r.index]
	w.WRID = id
	r.p.change(r.id, id)
	if flags != w.SendFlags {
		r.SetFlags(flags)
	}
	r.p.setRemote(r.index, r.call, remote, rkey)
}

// SetFlush changes the number of bytes and the placement of a flush.
func (r WRRequest) SetFlush(length uint64, placement uint8) {
	if op := r.p.wrs[r.index].Opcode; op != ibv.WR_FLUSH {
		r.p.fail(invalid("", "", "WR %d: SetFlush of %v", r.index, op))
		return
	}
	r.p.program.SetArg(r.call, 3, length)
	r.p.program.SetArg(r.call, 4, uint64(placement))
}

// SetValue changes the 8 bytes of an atomic write.
func (r WRRequest) SetValue(value [8]byte) {
	if r.value == nil {
		r.p.fail(invalid("", "", "WR %d: SetValue of %v", r.index, r.p.wrs[r.index].Opcode))
		return
	}
	*r.value = value
}

// SetRemote changes the remote address and key of a read, a write, an atomic operation or a flush.
func (r WRRequest) SetRemote(remote uint64, rkey uint32) {
	r.p.setRemote(r.index, r.call, remote, rkey)
}

func (p *WRProgram) setRemote(index int, call program.Step, remote uint64, rkey uint32) {
	const ofRDMA = 1<<ibv.WR_RDMA_WRITE | 1<<ibv.WR_RDMA_WRITE_WITH_IMM | 1<<ibv.WR_RDMA_READ |
		1<<ibv.WR_ATOMIC_WRITE | 1<<ibv.WR_FLUSH
	w := &p.wrs[index]
	switch {
	case 1<<w.Opcode&ofRDMA != 0:
		w.WR.RDMA().RemoteAddr, w.WR.RDMA().RKey = remote, rkey
	case w.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP, w.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		w.WR.Atomic().RemoteAddr, w.WR.Atomic().RKey = remote, rkey
	default:
		p.fail(invalid("", "", "WR %d: SetRemote of %v, which has no remote address", index, w.Opcode))
		return
	}
	p.program.SetArg(call, 1, word(rkey))
	p.program.SetArg(call, 2, remote)
	p.sizes[index].remote = remote
}

// SetSGE changes the only entry of a request, which SGE or Add appended.
func (r WRRequest) SetSGE(address uint64, length, lkey uint32) {
	d := &r.p.data[r.index]
	if len(d.list) != 1 || r.p.sizes[r.index].inline {
		r.p.fail(invalid("", "", "WR %d: SetSGE of a request that has not one entry, appended by SGE or Add", r.index))
		return
	}
	r.p.program.SetArg(d.step, 1, word(lkey))
	r.p.program.SetArg(d.step, 2, address)
	r.p.program.SetArg(d.step, 3, word(length))
	d.list[0] = ibv.SGE{Addr: address, Length: length, LKey: lkey}
	r.p.sizes[r.index].bytes = uint64(length)
}

// record sets what belongs to the last request in its work request.
func (r WRRequest) record(set func(w *ibv.SendWR)) WRRequest {
	if p := r.p; r.index == len(p.wrs)-1 && !p.closed {
		set(&p.wrs[r.index])
	}
	return r
}

// QP returns C's queue pair of the request's program, for setters of a provider.
func (r WRRequest) QP() *ibv.QPEx { return r.p.qp }

// Fail makes the program fail with an error, unless it has one.
func (r WRRequest) Fail(err error) { r.p.fail(err) }

// CallSetter appends a call of a provider's own setter to the last request, with an object and arguments. fn is 0 where
// the queue pair was not created for it.
func (r WRRequest) CallSetter(name string, fn ibv.FuncPtr, object uintptr, args ...uint64) WRRequest {
	switch p := r.p; {
	case r.index != len(p.wrs)-1 || p.closed:
		p.fail(invalid("", "", "WR %d: %s for a request that others follow", r.index, name))
	case fn == 0:
		p.fail(&runtime.NotSupportedError{Function: name, Missing: "the queue pair was created without it"})
	default:
		p.noList(name)
		p.program.Call(uintptr(fn), append([]uint64{uint64(object)}, args...)...)
	}
	return r
}
