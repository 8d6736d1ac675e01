// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// WRProgram posts requests to an extended queue pair. It is a sequence of calls from ibv_wr_start to ibv_wr_complete.
// Providers hold a lock between those calls, so the sequence runs as one call without Go code in between. Each method
// named after an operation appends a request and returns it; methods of the request set everything else, like those of
// a [SendBatch]:
//
//	p.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Build it once, post it any number of times with [QP.PostProgram], and change fields in between. If the provider lacks
// a function or a request breaks a rule, Err and every post return the error. The program copies the Go memory that it
// refers to.
//
// A WRProgram must not be used by several goroutines at once. Building it allocates; posting it does not.
//
// Man: ibv_wr_post(3)
type WRProgram struct {
	linked  bool // wrs is a chain, and only values changed since then
	runs    bool // linked, and the device's functions can run the program
	uniform bool // each request has one entry and no address, so the fast checks of lists suffice
	qp      *ibv.QPEx
	program program.Program
	closed  bool                   // ibv_wr_complete was appended
	wrs     []ibv.SendWR           // for accounting, and for paths without functions for programs
	info    []wrInfo               // likewise
	to      []datapath.Destination // likewise; of dynamic connections, or nil

	irregular bool          // a request has inline data or several entries
	set       ibv.WRSetters // of the last request
	addressed bool          // the last request has an address by a provider's setter
	pinned    []any         // memory that the program refers to by address
	err       error

	runErr  error               // why the device's functions cannot run the program, or nil
	listErr error               // why the program cannot be posted as a list, or nil
	bad     ibv.Ptr[ibv.SendWR] // bad_wr of a post as a list
}

// NewWRProgram creates an empty program for a C queue pair, which must outlive it. For a [QP], use [QP.NewWRProgram].
// If qp is nil, Err returns the error of a queue pair without the functions of ibv_wr_post(3).
func NewWRProgram(qp *ibv.QPEx) *WRProgram {
	if qp == nil {
		qp = new(ibv.QPEx)
	}
	p := &WRProgram{qp: qp}
	p.Reset()
	return p
}

// Reset empties the program.
func (p *WRProgram) Reset() {
	p.program.Reset()
	p.wrs, p.info, p.to, p.pinned, p.closed, p.set = p.wrs[:0], nil, nil, nil, false, 0
	p.irregular = false
	p.err, p.runErr, p.listErr = nil, nil, nil
	p.linked, p.runs = false, false
	p.step(p.qp.WRStart, "ibv_wr_start")
}

// Len returns the number of requests.
func (p *WRProgram) Len() int { return len(p.wrs) }

// Err returns the first error of the program, or nil. Whether the last request is complete is only checked by a post.
// A missing provider function is not an error for a post through a [Path] that accepts lists.
func (p *WRProgram) Err() error {
	if p.err != nil {
		return p.err
	}
	return p.runErr
}

func (p *WRProgram) fail(err error) {
	p.linked, p.runs = false, false
	if p.err == nil {
		p.err = err
	}
}

// link chains the work requests.
func (p *WRProgram) link() {
	p.uniform = !takesAddresses(p.qp.QPBase.QPType)
	for i := range p.wrs {
		w := &p.wrs[i]
		if w.Next = 0; i+1 < len(p.wrs) {
			w.Next = ibv.PtrTo(&p.wrs[i+1])
		}
		p.uniform = p.uniform && w.NumSGE == 1 && !p.info[i].inline
	}
	p.linked, p.runs = true, p.runErr == nil
}

// step appends a call of a provider function with the queue pair and args.
func (p *WRProgram) step(fn ibv.FuncPtr, name string, args ...uint64) program.Step {
	if !p.has(fn, name) {
		return 0
	}
	return p.program.Call(uintptr(fn), p.withQP(args)...)
}

// has reports whether the queue pair has a function. Without it, the device cannot run the program.
func (p *WRProgram) has(fn ibv.FuncPtr, name string) bool {
	err := missing(fn, name, "the queue pair")
	if err != nil && p.runErr == nil {
		p.runErr, p.linked, p.runs = err, false, false
	}
	return err == nil
}

func (p *WRProgram) withQP(args []uint64) []uint64 {
	return slices.Insert(args, 0, uint64(address(p.qp)))
}

func (p *WRProgram) add(op ibv.WROpcode, id uint64, fn ibv.FuncPtr, args ...uint64) (WRRequest, *ibv.SendWR) {
	p.complete()
	if p.closed {
		p.fail(invalid("", "", "the program was posted and cannot grow: call Reset first"))
	}
	qpt := p.qp.QPBase.QPType
	rule := ibv.WRBuilder(op)
	r := WRRequest{p, len(p.wrs)}
	p.wrs = append(p.wrs, ibv.SendWR{WRID: id, Opcode: op})
	p.info = append(p.info, p.begin(fn, rule.Builder, id, args))
	p.set, p.addressed = 0, false
	if v := ibv.WRPost(qpt, op); refusal.Refused(v.Validity) {
		p.reject(r.index, fmt.Sprintf("%v is not valid on %s: %s", op, refusal.ShortName(qpt), v.Reason))
	}
	return r, &p.wrs[r.index]
}

// reject records the rule that a request breaks.
func (p *WRProgram) reject(i int, reason string) {
	p.fail(&PostError{Verb: "ibv_wr_post", QPNum: p.qp.QPBase.QPNum, QPType: p.qp.QPBase.QPType, Index: i,
		WRID: p.wrs[i].WRID, Errno: syscall.EINVAL, Reason: reason})
}

// complete records an error if the last request lacks required data or a required address.
func (p *WRProgram) complete() {
	if len(p.wrs) == 0 || p.err != nil {
		return
	}
	i, qpt := len(p.wrs)-1, p.qp.QPBase.QPType
	provided := qpt == ibv.QPT_DRIVER
	if provided { // these have the operations of RC, and an address: libraries lose a request that lacks a setter
		qpt = ibv.QPT_RC
	}
	rule := ibv.WRPost(qpt, p.wrs[i].Opcode)
	if rule.Answer != ibv.AnswerYes && rule.Answer != ibv.AnswerNeedsCapability {
		return
	}
	if rule.Data&ibv.WRSetSGEList != 0 && p.set&rule.Data == 0 { // no entry, as in a batch
		WRRequest{p, i}.setData()
	}
	switch {
	case rule.Data != 0 && p.set&rule.Data == 0:
		p.reject(i, fmt.Sprintf("it has no data: set one of %v", rule.Data))
	case provided && rule.Data != 0 && !p.addressed && p.set&ibv.WRSetUDAddr == 0:
		p.reject(i, "it has no address: set UD or mlx5.DC")
	case p.set&rule.Address != rule.Address:
		p.reject(i, fmt.Sprintf("it has no address: set %v", rule.Address))
	}
}

func (p *WRProgram) finish() {
	if !p.closed {
		p.complete()
		p.step(p.qp.WRComplete, "ibv_wr_complete")
		p.closed = true
	}
}

// pin returns the address of a copy that lives as long as the program.
func pin[T any](p *WRProgram, v []T) uint64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	p.pinned = append(p.pinned, v)
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v))))
}

// word returns a 32-bit argument as a C caller would pass it in a 64-bit register.
func word(v uint32) uint64 {
	return uint64(runtime.Word(v))
}

// Send appends ibv_wr_send.
//
// C: ibv_wr_send
func (p *WRProgram) Send(id uint64) WRRequest {
	r, _ := p.add(ibv.WR_SEND, id, p.qp.WRSend)
	return r
}

// SendImm appends ibv_wr_send_imm.
//
// C: ibv_wr_send_imm
func (p *WRProgram) SendImm(id uint64, imm ibv.BE32) WRRequest {
	r, w := p.add(ibv.WR_SEND_WITH_IMM, id, p.qp.WRSendImm, word(uint32(imm)))
	*w.ImmData() = imm
	return r
}

// SendInv appends ibv_wr_send_inv.
//
// C: ibv_wr_send_inv
func (p *WRProgram) SendInv(id uint64, rkey uint32) WRRequest {
	r, w := p.add(ibv.WR_SEND_WITH_INV, id, p.qp.WRSendInv, word(rkey))
	*w.InvalidateRKey() = rkey
	return r
}

// TSO appends ibv_wr_send_tso.
//
// C: ibv_wr_send_tso
func (p *WRProgram) TSO(id uint64, header []byte, mss uint16) WRRequest {
	if len(header) > math.MaxUint16 {
		p.fail(invalid("", "", "WR %d: %s", len(p.wrs), headerReason(header)))
	}
	at := pin(p, header)
	r, w := p.add(ibv.WR_TSO, id, p.qp.WRSendTSO, at, uint64(len(header)), uint64(mss))
	*w.TSO() = ibv.SendTSO{Hdr: uintptr(at), HdrSz: uint16(len(header)), MSS: mss}
	return r
}

// Write appends ibv_wr_rdma_write.
//
// C: ibv_wr_rdma_write
func (p *WRProgram) Write(id, remote uint64, rkey uint32) WRRequest {
	r, w := p.add(ibv.WR_RDMA_WRITE, id, p.qp.WRRDMAWrite, word(rkey), remote)
	*w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}
	return r
}

// WriteImm appends ibv_wr_rdma_write_imm.
//
// C: ibv_wr_rdma_write_imm
func (p *WRProgram) WriteImm(id, remote uint64, rkey uint32, imm ibv.BE32) WRRequest {
	r, w := p.add(ibv.WR_RDMA_WRITE_WITH_IMM, id, p.qp.WRRDMAWriteImm, word(rkey), remote, word(uint32(imm)))
	*w.WR.RDMA(), *w.ImmData() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}, imm
	return r
}

// Read appends ibv_wr_rdma_read.
//
// C: ibv_wr_rdma_read
func (p *WRProgram) Read(id, remote uint64, rkey uint32) WRRequest {
	r, w := p.add(ibv.WR_RDMA_READ, id, p.qp.WRRDMARead, word(rkey), remote)
	*w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}
	return r
}

// CompareSwap appends ibv_wr_atomic_cmp_swp of 8 remote bytes, in the byte order of the machine. The entry receives
// their old value.
//
// C: ibv_wr_atomic_cmp_swp
func (p *WRProgram) CompareSwap(id, remote uint64, rkey uint32, compare, swap uint64) WRRequest {
	r, w := p.add(ibv.WR_ATOMIC_CMP_AND_SWP, id, p.qp.WRAtomicCmpSwp, word(rkey), remote, compare, swap)
	*w.WR.Atomic() = ibv.SendAtomic{RemoteAddr: remote, CompareAdd: compare, Swap: swap, RKey: rkey}
	return r
}

// FetchAdd appends ibv_wr_atomic_fetch_add to 8 remote bytes, in the byte order of the machine. The entry receives
// their old value.
//
// C: ibv_wr_atomic_fetch_add
func (p *WRProgram) FetchAdd(id, remote uint64, rkey uint32, add uint64) WRRequest {
	r, w := p.add(ibv.WR_ATOMIC_FETCH_AND_ADD, id, p.qp.WRAtomicFetchAdd, word(rkey), remote, add)
	*w.WR.Atomic() = ibv.SendAtomic{RemoteAddr: remote, CompareAdd: add, RKey: rkey}
	return r
}

// AtomicWrite appends ibv_wr_atomic_write of 8 bytes, as they are in memory.
//
// C: ibv_wr_atomic_write
func (p *WRProgram) AtomicWrite(id, remote uint64, rkey uint32, value [8]byte) WRRequest {
	p.notAsList("ibv_wr_atomic_write")
	own := &value
	p.pinned = append(p.pinned, own)
	r, w := p.add(ibv.WR_ATOMIC_WRITE, id, p.qp.WRAtomicWrite, word(rkey), remote, uint64(uintptr(unsafe.Pointer(own))))
	*w.WR.RDMA(), p.info[r.index].value = ibv.SendRDMA{RemoteAddr: remote, RKey: rkey}, own
	return r
}

// Flush appends ibv_wr_flush of remote memory, with values of enum ibv_placement_type and enum ibv_selectivity_level.
//
// C: ibv_wr_flush
func (p *WRProgram) Flush(id, remote uint64, rkey uint32, length uint64, placement, level uint8) WRRequest {
	p.notAsList("ibv_wr_flush")
	r, _ := p.add(ibv.WR_FLUSH, id, p.qp.WRFlush, word(rkey), remote, length, uint64(placement), uint64(level))
	return r
}

// LocalInv appends ibv_wr_local_inv.
//
// C: ibv_wr_local_inv
func (p *WRProgram) LocalInv(id uint64, rkey uint32) WRRequest {
	r, w := p.add(ibv.WR_LOCAL_INV, id, p.qp.WRLocalInv, word(rkey))
	*w.InvalidateRKey() = rkey
	return r
}

// BindMW appends ibv_wr_bind_mw.
//
// C: ibv_wr_bind_mw
func (p *WRProgram) BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) WRRequest {
	if mw == 0 || info.MR == 0 && info.Length != 0 {
		p.fail(invalid("", "", "WR %d: %s", len(p.wrs), bindReason))
	}
	r, w := p.add(ibv.WR_BIND_MW, id, p.qp.WRBindMW, uint64(mw), word(rkey), pin(p, []ibv.MWBindInfo{info}))
	*w.BindMW() = ibv.SendBindMW{MW: mw, RKey: rkey, BindInfo: info}
	return r
}

// notAsList records that ibv_send_wr cannot express an operation, so that the program cannot be posted as a list.
func (p *WRProgram) notAsList(function string) {
	if p.listErr == nil {
		p.listErr = &runtime.NotSupportedError{Function: function,
			Missing: "the queue's Path accepts ibv_send_wr, which cannot express it"}
	}
}

// wrInfo holds the entries of a request, values that ibv_send_wr cannot express, and the positions of its values in the
// program.
type wrInfo struct {
	inline bool   // all entries are inline data
	toQPN  uint32 // destination of a datagram

	list   []ibv.SGE
	pieces []ibv.DataBuf // list, if it is inline
	value  *[8]byte      // of an atomic write

	id, flags stepArgument
	call      program.Step // of the builder
	data      program.Step // the call of the setter of data, or 0
}

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
type WRRequest struct {
	p     *WRProgram
	index int
}

// stepArgument is the position of a value in a program.
type stepArgument struct {
	step program.Step
	i    int
}

// One step sets both wr_id and wr_flags, so they must be adjacent.
const _ = uint(unsafe.Offsetof(ibv.QPEx{}.WRFlags)-unsafe.Offsetof(ibv.QPEx{}.WRID)-8) * ^uint(0)

// begin appends the stores of wr_id and wr_flags and the call of a builder, as one step if possible.
func (p *WRProgram) begin(fn ibv.FuncPtr, name string, id uint64, args []uint64) (i wrInfo) {
	if fn != 0 && missing(fn, name, "the queue pair") == nil {
		at, ok := p.program.Request(uintptr(fn), address(p.qp), unsafe.Offsetof(p.qp.WRID), id, 0, args...)
		if ok {
			i.id, i.flags, i.call = stepArgument{at, program.RequestID}, stepArgument{at, program.RequestFlags}, at
			return i
		}
	}
	i.id.step = p.program.Store(address(&p.qp.WRID), 8, id)
	i.flags.step = p.program.Store(address(&p.qp.WRFlags), 4, 0)
	i.call = p.step(fn, name, args...)
	return i
}

// setter appends the call of a setter. It fails and returns false unless the request is the last one.
func (r WRRequest) setter(s ibv.WRSetters, fn ibv.FuncPtr, args ...uint64) bool {
	if !r.last(s) {
		return false
	}
	r.p.set |= s
	r.p.step(fn, s.String(), args...)
	return true
}

// last reports whether the request is the last one. Setters of other requests are errors.
func (r WRRequest) last(setter any) bool {
	if p := r.p; r.index != len(p.wrs)-1 || p.closed {
		p.fail(invalid("", "", "WR %d: %v must be set before the next request", r.index, setter))
		return false
	}
	return true
}

// SGE appends an entry: length bytes at an address, under a local key.
//
// C: ibv_wr_set_sge, ibv_wr_set_sge_list
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

// Inline appends an entry with a copy of data, which the provider copies into the queue during the post, so that the
// memory needs no key. All entries of the request are then inline.
//
// C: ibv_wr_set_inline_data, ibv_wr_set_inline_data_list
func (r WRRequest) Inline(data []byte) WRRequest {
	if r.last(ibv.WRSetInlineDataList) {
		r.p.info[r.index].inline = true
		r.append(ibv.SGE{Addr: pin(r.p, data), Length: uint32(len(data))})
	}
	return r
}

// append appends an entry to the last request.
func (r WRRequest) append(s ibv.SGE) {
	d := &r.p.info[r.index]
	d.list = append(d.list, s)
	r.setData()
}

// setData appends the setter of the last request's data, or replaces it.
func (r WRRequest) setData() {
	p, d := r.p, &r.p.info[r.index]
	list := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(d.list))))
	s, fn, args := ibv.WRSetSGEList, p.qp.WRSetSGEList, []uint64{uint64(len(d.list)), list}
	switch {
	case d.inline && len(d.list) == 1:
		s, fn = ibv.WRSetInlineData, p.qp.WRSetInlineData
		args = []uint64{d.list[0].Addr, uint64(d.list[0].Length)}
	case d.inline:
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
	p.irregular = p.irregular || len(d.list) > 1 || d.inline
	w := &p.wrs[r.index]
	w.SGList, w.NumSGE = ibv.Ptr[ibv.SGE](list), int32(len(d.list))
	if d.inline { // in the program, the setter implies the flag
		w.SendFlags |= ibv.SEND_INLINE
	}
	if d.data == 0 {
		d.data = p.step(fn, s.String(), args...)
	} else if p.has(fn, s.String()); p.runErr == nil {
		p.program.SetCall(d.data, uintptr(fn), p.withQP(args)...)
	}
}

// Flags adds send flags.
func (r WRRequest) Flags(f ibv.SendFlags) WRRequest {
	r.SetFlags(r.p.wrs[r.index].SendFlags | f)
	return r
}

// Signaled requests a completion: IBV_SEND_SIGNALED.
func (r WRRequest) Signaled() WRRequest { return r.Flags(ibv.SEND_SIGNALED) }

// Index returns the request's index in its program.
func (r WRRequest) Index() int { return r.index }

// UD sets the destination of a datagram: ibv_wr_set_ud_addr.
//
// C: ibv_wr_set_ud_addr
func (r WRRequest) UD(ah ibv.Ptr[ibv.AH], qpn, qkey uint32) WRRequest {
	if ah == 0 { // providers dereference it without a check
		r.p.fail(invalid("", "", "WR %d: a datagram needs an address handle", r.index))
	}
	if rule := ibv.WRPost(r.p.qp.QPBase.QPType, r.p.wrs[r.index].Opcode); rule.Address&ibv.WRSetUDAddr == 0 &&
		rule.Data != 0 {
		r.p.fail(invalid("", "", "WR %d: UD set a datagram address, but the %s queue pair is connected", r.index,
			refusal.ShortName(r.p.qp.QPBase.QPType)))
	}
	if r.setter(ibv.WRSetUDAddr, r.p.qp.WRSetUDAddr, uint64(ah), word(qpn), word(qkey)) {
		r.p.info[r.index].toQPN = qpn
		*r.p.wrs[r.index].WR.UD() = ibv.SendUD{AH: ah, RemoteQPN: qpn, RemoteQKey: qkey}
	}
	return r
}

// XRC sets the destination shared receive queue of a message: ibv_wr_set_xrc_srqn.
//
// C: ibv_wr_set_xrc_srqn
func (r WRRequest) XRC(srqn uint32) WRRequest {
	if r.setter(ibv.WRSetXRCSRQN, r.p.qp.WRSetXRCSRQN, word(srqn)) {
		r.p.wrs[r.index].QPType.XRC().RemoteSRQN = srqn
	}
	return r
}

// SetID changes wr_id.
func (r WRRequest) SetID(id uint64) {
	at := r.p.info[r.index].id
	r.p.program.SetArg(at.step, at.i, id)
	r.p.wrs[r.index].WRID = id
}

// SetFlags replaces the send flags. Flags that are not valid for the operation on the queue pair's type make the
// program fail.
func (r WRRequest) SetFlags(flags ibv.SendFlags) {
	p, w, at := r.p, &r.p.wrs[r.index], r.p.info[r.index].flags
	qpt, added := p.qp.QPBase.QPType, flags&^w.SendFlags
	for _, flag := range sendFlags {
		if added&flag != 0 && refusal.Refused(ibv.WRFlagValidity(qpt, w.Opcode, flag)) {
			p.reject(r.index, fmt.Sprintf("%v is not valid with %s on %s", flag, ibv.WRBuilder(w.Opcode).Builder,
				refusal.ShortName(qpt)))
		}
	}
	if p.info[r.index].inline {
		w.SendFlags, flags = flags|ibv.SEND_INLINE, flags&^ibv.SEND_INLINE // the setter implies the flag
	} else {
		w.SendFlags = flags
	}
	p.program.SetArg(at.step, at.i, uint64(flags))
}

// Renew combines SetID, SetFlags and SetRemote, for requests that are posted repeatedly.
func (r WRRequest) Renew(id uint64, flags ibv.SendFlags, remote uint64, rkey uint32) {
	r.SetID(id)
	if flags != r.p.wrs[r.index].SendFlags {
		r.SetFlags(flags)
	}
	r.SetRemote(remote, rkey)
}

// SetFlush changes the number of bytes and the placement of a flush.
func (r WRRequest) SetFlush(length uint64, placement uint8) {
	if op := r.p.wrs[r.index].Opcode; op != ibv.WR_FLUSH {
		r.p.fail(invalid("", "", "WR %d: SetFlush of %v", r.index, op))
		return
	}
	call := r.p.info[r.index].call
	r.p.program.SetArg(call, 3, length)
	r.p.program.SetArg(call, 4, uint64(placement))
}

// SetValue changes the 8 bytes of an atomic write.
func (r WRRequest) SetValue(value [8]byte) {
	if at := r.p.info[r.index].value; at != nil {
		*at = value
	} else {
		r.p.fail(invalid("", "", "WR %d: SetValue of %v", r.index, r.p.wrs[r.index].Opcode))
	}
}

// SetRemote changes the remote address and key of a read, a write, an atomic operation or a flush.
func (r WRRequest) SetRemote(remote uint64, rkey uint32) {
	const ofRDMA = 1<<ibv.WR_RDMA_WRITE | 1<<ibv.WR_RDMA_WRITE_WITH_IMM | 1<<ibv.WR_RDMA_READ |
		1<<ibv.WR_ATOMIC_WRITE | 1<<ibv.WR_FLUSH
	p, w, call := r.p, &r.p.wrs[r.index], r.p.info[r.index].call
	switch {
	case 1<<w.Opcode&ofRDMA != 0:
		w.WR.RDMA().RemoteAddr, w.WR.RDMA().RKey = remote, rkey
	case w.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP, w.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		w.WR.Atomic().RemoteAddr, w.WR.Atomic().RKey = remote, rkey
	default:
		p.fail(invalid("", "", "WR %d: SetRemote of %v, which has no remote address", r.index, w.Opcode))
		return
	}
	p.program.SetArg(call, 1, word(rkey))
	p.program.SetArg(call, 2, remote)
}

// SetSGE changes the entry of a request that has exactly one, appended by SGE or Add.
func (r WRRequest) SetSGE(address uint64, length, lkey uint32) {
	d := &r.p.info[r.index]
	if len(d.list) != 1 || d.inline {
		r.p.fail(invalid("", "", "WR %d: SetSGE needs a request with exactly one entry, set by SGE or Add", r.index))
		return
	}
	r.p.program.SetArg(d.data, 1, word(lkey))
	r.p.program.SetArg(d.data, 2, address)
	r.p.program.SetArg(d.data, 3, word(length))
	d.list[0] = ibv.SGE{Addr: address, Length: length, LKey: lkey}
}

// QP returns the C queue pair of the program, for vendor-specific setters.
func (r WRRequest) QP() *ibv.QPEx { return r.p.qp }

// Fail makes the program fail with err, unless it failed before.
func (r WRRequest) Fail(err error) { r.p.fail(err) }

// CallSetter appends a call of a vendor-specific setter of an address to the last request, with an object and
// arguments. If fn is 0, the program fails, because the queue pair was created without the function.
func (r WRRequest) CallSetter(name string, fn ibv.FuncPtr, object uintptr, args ...uint64) WRRequest {
	switch p := r.p; {
	case !r.last(name):
	case fn == 0:
		p.fail(&runtime.NotSupportedError{Function: name, Missing: "the queue pair was created without it"})
	default:
		if len(p.to) != len(p.wrs) {
			p.notAsList(name)
		}
		p.addressed = true
		p.program.Call(uintptr(fn), append([]uint64{uint64(object)}, args...)...)
	}
	return r
}

// Dynamic records the target of the last request on a dynamic connection, for paths that do not run programs. It
// precedes the call of the setter. Package mlx5 calls it.
func (r WRRequest) Dynamic(ah ibv.Ptr[ibv.AH], number uint32, key uint64, stream uint16) {
	if p := r.p; r.index == len(p.wrs)-1 {
		p.to = append(p.to, make([]datapath.Destination, len(p.wrs)-len(p.to))...)
		p.to[r.index] = datapath.Destination{AH: ah, Number: number, Key: key, Stream: stream}
	}
}

// PostProgram posts all requests of the program in one call, or none. The program must have been created for the
// queue's queue pair.
//
// The Soft-RoCE library mishandles inline data and multiple entries in programs, so such programs are posted by
// ibv_post_send there. If that accepts only some of the requests, the error's Index is that of the first rejected one.
//
// The first post checks the complete program. Later posts check it like a list and run it in one C call.
func (q *SendQueue) PostProgram(p *WRProgram) error {
	switch {
	case p == nil: // checked here, because a panic below would leave the queue locked
		return q.traceRejectedProgram(q.programCause(errProgramNil))
	case p.qp == nil:
		return q.traceRejectedProgram(q.programCause(errProgramZero))
	case q.direct && q.fits(p):
		if result := p.program.RunDirect(); result != 0 {
			return q.programFailed(p, reservation{}, result)
		}
		return nil
	}
	q.mu.Lock()
	if q.refusal != nil || !q.fits(p) {
		return q.postProgramSlow(p)
	}
	if q.hasPostOne && p.uniform && len(p.wrs) == 1 && q.postOne(&p.wrs[0]) {
		q.mu.Unlock()
		return nil
	}
	if !q.plain {
		return q.postProgramSlow(p)
	}
	var m reservation
	if q.checks != nil {
		var ok bool
		if m, ok = q.reserveUniformProgram(p); !ok {
			return q.postProgramSlow(p)
		}
	}
	if result := p.program.RunDirect(); result != 0 {
		defer q.mu.Unlock()
		return q.programFailed(p, m, result)
	}
	q.mu.Unlock()
	return nil
}

// postProgramSlow completes PostProgram for programs that the fast path does not take. The caller holds slots.mu;
// postProgramSlow unlocks it.
func (q *SendQueue) postProgramSlow(p *WRProgram) error {
	defer q.unlock()
	if q.refusal != nil {
		return q.refusal
	}
	runner, m, err := q.reserveProgram(p)
	if err != nil {
		return q.traceRejectedProgram(err)
	}
	if runner == nil {
		return q.postList(p, m)
	}
	if r := runner.Run(&p.program); r != 0 {
		return q.programFailed(p, m, r)
	}
	return nil
}

var (
	errProgramEmpty = invalid("", "", "the program is empty; waiting for its completion would block forever")
	errProgramNil   = invalid("", "", "the program is nil")
	errProgramZero  = invalid("", "", "the program is a zero value; create it with its constructor")
)

// errIrregular is the error of a program that must be posted as a list but cannot be expressed as one.
var errIrregular = &runtime.NotSupportedError{Function: "ibv_wr_post", Missing: "the provider's library mishandles " +
	"inline data and multiple entries; post atomic writes and flushes in a program without them"}

// fits reports whether the program was posted before and belongs to the queue.
func (q *SendQueue) fits(p *WRProgram) bool { return p.runs && q.qp == &p.qp.QPBase }

// reserveUniformProgram reserves slots for a uniform program like for a list, or returns false.
func (q *SendQueue) reserveUniformProgram(p *WRProgram) (m reservation, ok bool) {
	switch {
	case !p.uniform || !q.checks.inState(q.qp):
		return m, false
	case len(p.wrs) == 1:
		return q.reserveOne(&p.wrs[0])
	}
	return q.reserveUniform(p.wrs, q.checks)
}

// programFailed frees the slots of a program that the device rejected and returns the error. The caller holds slots.mu
// if the queue is locked.
func (q *SendQueue) programFailed(p *WRProgram, m reservation, result int32) error {
	if q.checks != nil {
		q.undo(m, 0)
	}
	return q.programError(0, p.wrs[0].WRID, errnoOf(result), "none of the requests was posted")
}

// programVerb is the verb in errors of programs.
const programVerb = "ibv_wr_complete"

// programError is [queue.failure] for a program.
func (q *SendQueue) programError(i int, id uint64, errno runtime.Errno, reason string) *PostError {
	e := q.failure(i, id, errno, reason)
	e.Verb = programVerb
	return e
}

// reserveProgram checks a program and reserves slots for its requests. The runner is nil if it is posted as a list.
func (q *SendQueue) reserveProgram(p *WRProgram) (runner datapath.Runner, m reservation, err error) {
	if p.finish(); p.err != nil {
		return nil, m, q.programCause(p.err)
	} else if len(p.wrs) == 0 {
		return nil, m, q.programCause(errProgramEmpty)
	}
	byList := p.irregular && q.avoidSetters
	runner, runs := q.path.(datapath.Runner)
	if !runs {
		runner, runs = trace.Sends(q.path, q.qp, p.wrs)
	}
	switch {
	case byList && p.listErr != nil:
		return nil, m, errIrregular
	case byList || !runs:
		if runner = nil; p.listErr != nil {
			return nil, m, p.listErr
		}
	case p.runErr != nil:
		return nil, m, p.runErr
	}
	if q.qp != &p.qp.QPBase {
		return nil, m, q.programCause(invalid("", "", "the program is of QP %#x, and the queue of QP %#x",
			p.qp.QPBase.QPNum, q.qp.QPNum))
	}
	if !p.linked {
		p.link()
	}
	if byList {
		p.linked, p.runs = false, false // the next post comes here as well
	}
	if q.checks == nil {
		return runner, m, nil
	}
	if !q.checks.inState(q.qp) {
		return nil, m, q.programError(0, p.wrs[0].WRID, syscall.EINVAL, stateReason(q.qp.State, ibv.WorkQueueSend))
	}
	m, ok := q.reserveUniformProgram(p)
	if ok {
		return runner, m, nil
	}
	for i := range p.info {
		if reason := q.checks.programReason(&p.wrs[i], &p.info[i]); reason != "" {
			return nil, m, q.programError(i, p.wrs[i].WRID, syscall.EINVAL, reason)
		}
	}
	if m, ok = q.reserveSends(p.wrs, nil); !ok {
		e := q.rejected(0, p.wrs[0].WRID, len(p.wrs), "")
		e.Verb = programVerb
		return nil, m, e
	}
	return runner, m, nil
}

// programCause wraps an error of a program in a PostError, unless it is one or means that the program is not supported.
func (q *SendQueue) programCause(err error) error {
	if _, ok := err.(*PostError); ok || errors.Is(err, runtime.ErrNotSupported) {
		return err
	}
	return q.programError(-1, 0, 0, "").withCause(err)
}

// traceRejectedProgram is [traceRejected] for programs, whose error may be a missing function.
func (q *SendQueue) traceRejectedProgram(err error) error {
	if _, ok := err.(*PostError); !ok {
		trace.Refused(programVerb, q.qp.QPNum, 0, syscall.EOPNOTSUPP, err.Error())
	}
	return traceRejected(err)
}

// postList posts the program as a list. The caller holds slots.mu.
func (q *SendQueue) postList(p *WRProgram, m reservation) error {
	if q.qp.QPType == ibv.QPT_DRIVER {
		return q.postDynamic(p, m)
	}
	p.bad = 0
	q.enter(m)
	r := q.path.PostSend(q.qp, &p.wrs[0], &p.bad)
	q.leave()
	if r == 0 {
		return nil
	}
	e := q.programError(-1, 0, errnoOf(r), "")
	const size = unsafe.Sizeof(ibv.SendWR{})
	at := uintptr(p.bad) - uintptr(unsafe.Pointer(&p.wrs[0]))
	if at%size == 0 && at/size < uintptr(len(p.wrs)) {
		e.Index = int(at / size)
		e.WRID = p.wrs[e.Index].WRID
		if q.checks != nil {
			q.undo(m, e.Index)
		}
	}
	return q.orMisuse(e)
}

// errNoDynamic is the error of a program for a dynamic connection on a path that has none.
var errNoDynamic = &runtime.NotSupportedError{Function: "mlx5dv_wr_set_dc_addr",
	Missing: "the queue's Path accepts ibv_send_wr, which cannot express it"}

// postDynamic is postList for an initiator of dynamic connections. It posts all requests or none.
func (q *SendQueue) postDynamic(p *WRProgram, m reservation) error {
	if _, ok := trace.Under(q.path).(datapath.Dynamic); !ok {
		if q.checks != nil {
			q.undo(m, 0)
		}
		return errNoDynamic
	}
	to := append(p.to, make([]datapath.Destination, len(p.wrs)-len(p.to))...) // requests without data have none
	q.enter(m)
	r := q.path.(datapath.Dynamic).PostDynamic(q.qp, p.wrs, to)
	q.leave()
	if r == 0 {
		return nil
	}
	return q.orMisuse(q.programFailed(p, m, r).(*PostError))
}
