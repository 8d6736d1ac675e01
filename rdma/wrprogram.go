// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/runtime/program"
)

// WRProgram is work that is posted through an extended queue pair: a region from ibv_wr_start to ibv_wr_complete. The
// provider holds a lock inside the region, so it runs as one call without Go code in between. A method named after an
// operation appends a request and returns it; methods of the request set everything else, like those of a [SendBatch]:
//
//	p.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Build it once, run it any number of times with [QP.PostProgram], and change fields in between. If the provider
// lacks a slot or a request breaks a rule, Err has the error, and every post returns it. The program copies Go memory
// that it needs.
//
// A WRProgram is for one goroutine at a time. Building it allocates, running it does not.
//
// Man: ibv_wr_post(3)
type WRProgram struct {
	linked  bool // the program is complete, and its work requests are a list: nothing was changed but values
	runs    bool // linked, and the device's functions can run the program
	usual   bool // each request has one entry and no address: the checks of a list suffice
	qp      *ibv.QPEx
	program program.Program
	closed  bool         // ibv_wr_complete was appended
	wrs     []ibv.SendWR // for the accounting, and for a path that takes lists
	sizes   []wrSize     // for the checks
	// irregular: a request has inline data or several entries
	irregular bool
	data      []wrData      // of each request
	set       ibv.WRSetters // of the last request
	keep      []any         // memory whose addresses are in the program
	err       error

	unable   error               // why the device's functions cannot run the program: one is missing
	unlisted error               // why the program is no list of work requests
	bad      ibv.Ptr[ibv.SendWR] // what a path did not take
}

// NewWRProgram creates an empty program for a queue pair, which has to outlive it; see [QP.NewWRProgram] for that of an
// object. nil is a queue pair without the functions of ibv_wr_post(3): Err has the error.
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
	p.wrs, p.sizes, p.data, p.keep, p.closed, p.set = p.wrs[:0], p.sizes[:0], nil, nil, false, 0
	p.irregular = false
	p.err, p.unable, p.unlisted = nil, nil, nil
	p.unfit()
	p.step(p.qp.WRStart, "ibv_wr_start")
}

// Len is the number of requests.
func (p *WRProgram) Len() int { return len(p.wrs) }

// Err says what is wrong with the program so far, or returns nil. Only a post checks whether the last request is
// complete, and a post by a [Path] that takes lists needs none of the provider's functions.
func (p *WRProgram) Err() error {
	if p.err != nil {
		return p.err
	}
	return p.unable
}

func (p *WRProgram) fail(err error) {
	p.unfit()
	if p.err == nil {
		p.err = err
	}
}

// unfit has the next post look at the whole program.
func (p *WRProgram) unfit() { p.linked, p.runs = false, false }

// link links the work requests to a list.
func (p *WRProgram) link() {
	p.usual = !takesAddresses(p.qp.QPBase.QPType)
	for i := range p.wrs {
		w, size := &p.wrs[i], &p.sizes[i]
		if w.Next = 0; i+1 < len(p.wrs) {
			w.Next = ibv.PtrTo(&p.wrs[i+1])
		}
		p.usual = p.usual && size.sges == 1 // inline data is none
	}
	p.linked, p.runs = true, p.unable == nil
}

// inlined gives the work requests the flag of inline data, which a program's setter says.
func (p *WRProgram) inlined() {
	for i, size := range p.sizes {
		if size.inline {
			p.wrs[i].SendFlags |= ibv.SEND_INLINE
		}
	}
}

// step appends a call of a slot with the queue pair and arguments.
func (p *WRProgram) step(fn ibv.FuncPtr, name string, args ...uint64) program.Step {
	if err := missing(fn, name, "the queue pair"); err != nil {
		if p.unable == nil {
			p.unable = err
		}
		return 0
	}
	return p.program.Call(uintptr(fn), append([]uint64{uint64(uintptr(unsafe.Pointer(p.qp)))}, args...)...)
}

// restep puts another call in the place of one.
func (p *WRProgram) restep(s program.Step, fn ibv.FuncPtr, name string, args ...uint64) {
	if err := missing(fn, name, "the queue pair"); err != nil && p.unable == nil {
		p.unable = err
		p.unfit()
	}
	if p.unable == nil {
		p.program.SetCall(s, uintptr(fn), append([]uint64{uint64(uintptr(unsafe.Pointer(p.qp)))}, args...)...)
	}
}

// add appends a request.
func (p *WRProgram) add(op ibv.WROpcode, id uint64, fn ibv.FuncPtr, args ...uint64) WRRequest {
	p.complete()
	p.reopen()
	qpt := p.qp.QPBase.QPType
	rule := ibv.WRBuilder(op)
	r := WRRequest{p: p, index: len(p.wrs)}
	r.begin(fn, rule.Builder, id, args)
	p.wrs = append(p.wrs, ibv.SendWR{WRID: id, Opcode: op})
	p.sizes = append(p.sizes, wrSize{})
	p.data = append(p.data, wrData{})
	p.set = 0
	if v := ibv.WRPost(qpt, op); refusal.Refused(v.Validity) {
		e := p.failure(r.index)
		e.Reason = fmt.Sprintf("%v is not valid on %s: %s", op, refusal.ShortName(qpt), v.Reason)
		p.fail(e)
	}
	return r
}

// allowFlags fails if the queue pair's type does not allow flags for a request.
func (p *WRProgram) allowFlags(index int, flags ibv.SendFlags) {
	qpt, op := p.qp.QPBase.QPType, p.wrs[index].Opcode
	for _, flag := range sendFlags {
		if flags&flag != 0 && refusal.Refused(ibv.WRFlagValidity(qpt, op, flag)) {
			e := p.failure(index)
			e.Reason = fmt.Sprintf("%v is not valid with %s on %s", flag, ibv.WRBuilder(op).Builder, refusal.ShortName(qpt))
			p.fail(e)
		}
	}
}

// failure is an error about a request.
func (p *WRProgram) failure(i int) *PostError {
	return &PostError{Verb: "ibv_wr_post", QPNum: p.qp.QPBase.QPNum, QPType: p.qp.QPBase.QPType, Index: i,
		WRID: p.wrs[i].WRID, Errno: einval}
}

// addAtomic appends an atomic operation.
func (p *WRProgram) addAtomic(remote uint64, op ibv.WROpcode, id uint64, fn ibv.FuncPtr,
	args ...uint64) WRRequest {
	r := p.add(op, id, fn, args...)
	p.sizes[r.index].remote = remote
	return r
}

// complete returns an error if the last request lacks data or an address that it needs.
func (p *WRProgram) complete() {
	if len(p.wrs) == 0 || p.err != nil {
		return
	}
	i := len(p.wrs) - 1
	rule := ibv.WRPost(p.qp.QPBase.QPType, p.wrs[i].Opcode)
	if rule.Answer != ibv.AnswerYes && rule.Answer != ibv.AnswerNeedsCapability {
		return
	}
	if rule.Data&ibv.WRSetSGEList != 0 && p.set&rule.Data == 0 { // no entry, as in a batch
		WRRequest{p: p, index: i}.setData()
	}
	e := p.failure(i)
	switch {
	case rule.Data != 0 && p.set&rule.Data == 0:
		e.Reason = fmt.Sprintf("it has no data (one of %v has to follow)", rule.Data)
	case p.set&rule.Address != rule.Address:
		e.Reason = fmt.Sprintf("it has no address (%v has to follow)", rule.Address)
	default:
		return
	}
	p.fail(e)
}

// finish appends ibv_wr_complete.
func (p *WRProgram) finish() {
	if p.closed {
		return
	}
	p.complete()
	p.step(p.qp.WRComplete, "ibv_wr_complete")
	p.closed = true
}

// reopen removes the end before another request is appended. A program that has run cannot grow.
func (p *WRProgram) reopen() {
	if p.closed {
		p.fail(invalid("", "", "the program was posted, and cannot grow: Reset makes it empty"))
	}
}

// held returns a copy in Go memory that lives as long as the program.
func held[T any](p *WRProgram, v []T) uint64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	p.keep = append(p.keep, v)
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v))))
}

// word returns a 32-bit number as a 64-bit register holds it.
func word(v uint32) uint64 {
	if goruntime.GOARCH == "riscv64" || goruntime.GOARCH == "loong64" {
		return uint64(int32(v))
	}
	return uint64(v)
}
