// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
	"github.com/goverbs/goverbs/runtime/program"
)

// Completion holds the fields that a [PollProgram] reads of a completion. If the request failed, only WRID, Status,
// VendorErr and, if selected, QPNum are valid; the other fields are zero. If it succeeded, VendorErr is zero. In
// completions of sends, fields that describe a received message, such as SrcQP, depend on the provider. Fields that
// were not selected are zero. Numbers are in host byte order.
//
// C: ibv_wc_read_vendor_err, ibv_wc_read_opcode, ibv_wc_read_wc_flags, ibv_wc_read_byte_len, ibv_wc_read_imm_data
//
// C: ibv_wc_read_invalidated_rkey, ibv_wc_read_qp_num, ibv_wc_read_src_qp, ibv_wc_read_slid, ibv_wc_read_sl
//
// C: ibv_wc_read_dlid_path_bits, ibv_wc_read_cvlan, ibv_wc_read_flow_tag, ibv_wc_read_completion_ts
//
// C: ibv_wc_read_completion_wallclock_ns, ibv_wc_read_tm_info
//
// Man: ibv_create_cq_ex(3)
type Completion struct {
	WRID      uint64
	Status    ibv.WCStatus
	Opcode    ibv.WCOpcode
	VendorErr uint32
	Flags     ibv.WCFlags
	ByteLen   uint32   // length of the message, in bytes
	Imm       ibv.BE32 // immediate data as the sender set it; if Flags has WC_WITH_INV, the invalidated key
	QPNum     uint32
	SrcQP     uint32
	SLID      uint32
	SL        uint8
	PathBits  uint8
	CVLAN     uint16
	FlowTag   uint32
	Timestamp uint64 // in device clock cycles
	Wallclock uint64 // in nanoseconds
	TM        ibv.WCTMInfo
}

// PollProgram polls an extended completion queue. It is a sequence of calls from ibv_start_poll to ibv_end_poll that
// reads up to a fixed number of completions. Providers hold a lock between those calls, so the sequence runs as one
// call without Go code in between. For Soft-RoCE, some versions of whose library mishandle ibv_next_poll, the program
// has one such sequence per completion.
//
// A PollProgram must not be used by several goroutines at once. Polling does not allocate.
//
// Man: ibv_create_cq_ex(3)
type PollProgram struct {
	program program.Program
	cq      uintptr // address of the C object
	path    Path
	flags   ibv.CreateCQWCFlags
	wcs     []ibv.WC // completions of a path that cannot run programs
	mapping *offheap.Mapping
	all     []Completion
	state   *pollState
}

// pollState is written by the program while it runs.
type pollState struct {
	result int32 // of ibv_start_poll or the last ibv_next_poll
	one    uint32
	n      uint32
	attr   ibv.PollCQAttr
}

// field is a value that the program reads from each completion.
type field struct {
	flag   ibv.CreateCQWCFlags // creation flag of the queue that provides the field; 0 if every queue has it
	slot   ibv.FuncPtr
	name   string
	offset uintptr
	width  int
	of     outcome
}

// outcome selects the completions that have a field.
type outcome int

const (
	succeeded outcome = iota
	failed
	either
)

// NewPollProgram creates a program that reads up to n completions of a queue, which must outlive it. flags select the
// fields to read; the queue must have been created with them. It uses the options Way and Providers.
func NewPollProgram(cq *ibv.CQEx, n int, flags ibv.CreateCQWCFlags, o QueueOptions) (*PollProgram, error) {
	if n <= 0 {
		return nil, invalid("NewPollProgram", "", "a program for %d completions; it must be at least one", n)
	}
	if cq == nil {
		return nil, &runtime.NilError{Function: "ibv_start_poll", Argument: "cq"}
	}
	start, path, err := newRoute(cq.StartPoll, provider.Poll, "ibv_start_poll", &o)
	if err != nil {
		return nil, err
	}
	_, runs := trace.Under(path).(datapath.Runner)
	if err := listFieldsError(flags); !runs && err != nil {
		return nil, err
	}
	var c Completion
	fields := []field{
		{0, cq.ReadVendorErr, "ibv_wc_read_vendor_err", unsafe.Offsetof(c.VendorErr), 4, failed},
		{ibv.WC_EX_WITH_QP_NUM, cq.ReadQPNum, "ibv_wc_read_qp_num", unsafe.Offsetof(c.QPNum), 4, either},
		{0, cq.ReadOpcode, "ibv_wc_read_opcode", unsafe.Offsetof(c.Opcode), 4, succeeded},
		{0, cq.ReadWCFlags, "ibv_wc_read_wc_flags", unsafe.Offsetof(c.Flags), 4, succeeded},
		{ibv.WC_EX_WITH_BYTE_LEN, cq.ReadByteLen, "ibv_wc_read_byte_len", unsafe.Offsetof(c.ByteLen), 4, succeeded},
		{ibv.WC_EX_WITH_IMM, cq.ReadImmData, "ibv_wc_read_imm_data", unsafe.Offsetof(c.Imm), 4, succeeded},
		{ibv.WC_EX_WITH_SRC_QP, cq.ReadSrcQP, "ibv_wc_read_src_qp", unsafe.Offsetof(c.SrcQP), 4, succeeded},
		{ibv.WC_EX_WITH_SLID, cq.ReadSLID, "ibv_wc_read_slid", unsafe.Offsetof(c.SLID), 4, succeeded},
		{ibv.WC_EX_WITH_SL, cq.ReadSL, "ibv_wc_read_sl", unsafe.Offsetof(c.SL), 1, succeeded},
		{ibv.WC_EX_WITH_DLID_PATH_BITS, cq.ReadDLIDPathBits, "ibv_wc_read_dlid_path_bits",
			unsafe.Offsetof(c.PathBits), 1, succeeded},
		{ibv.WC_EX_WITH_COMPLETION_TIMESTAMP, cq.ReadCompletionTS, "ibv_wc_read_completion_ts",
			unsafe.Offsetof(c.Timestamp), 8, succeeded},
		{ibv.WC_EX_WITH_CVLAN, cq.ReadCVLAN, "ibv_wc_read_cvlan", unsafe.Offsetof(c.CVLAN), 2, succeeded},
		{ibv.WC_EX_WITH_FLOW_TAG, cq.ReadFlowTag, "ibv_wc_read_flow_tag", unsafe.Offsetof(c.FlowTag), 4, succeeded},
		{ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, cq.ReadCompletionWallclockNs,
			"ibv_wc_read_completion_wallclock_ns", unsafe.Offsetof(c.Wallclock), 8, succeeded},
		{ibv.WC_EX_WITH_TM_INFO, cq.ReadTMInfo, "ibv_wc_read_tm_info", unsafe.Offsetof(c.TM), 0, succeeded},
	}
	steps := append(fields, field{slot: cq.NextPoll, name: "ibv_next_poll"},
		field{slot: cq.EndPoll, name: "ibv_end_poll"})
	for _, f := range steps {
		if err := missing(f.slot, f.name, "the completion queue"); err != nil && runs && flags&f.flag == f.flag {
			return nil, err
		}
	}
	var l layout
	all, state := l.add(n, 1, unsafe.Sizeof(c)), l.add(1, 1, unsafe.Sizeof(pollState{}))
	p := &PollProgram{path: path, flags: flags, cq: address(cq)}
	if p.mapping, err = l.mapMemory(); err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(p.mapping.Bytes()))
	p.all = unsafe.Slice((*Completion)(unsafe.Add(base, all)), n)
	p.state = (*pollState)(unsafe.Add(base, state))
	if runs {
		p.build(cq, fields, flags, provider.HasDefect(start.provider, "next-poll"))
	}
	return p, nil
}

// build appends the steps: one sequence for all completions, or, if single is true, one per completion without
// ibv_next_poll. Both work with every provider, so single does not depend on the library's version.
func (p *PollProgram) build(cq *ibv.CQEx, fields []field, flags ibv.CreateCQWCFlags, single bool) {
	g, object, result := &p.program, uint64(address(cq)), address(&p.state.result)
	p.state.one = 1
	var empty, ends []program.Step // jumps past ibv_end_poll, and to it
	for i := range p.all {
		if i == 0 || single {
			g.Call(uintptr(cq.StartPoll), object, uint64(address(&p.state.attr)))
			g.StoreResult(result, 4)
			empty = append(empty, g.JumpIfResult())
		}
		c, at := &p.all[i], address(&p.all[i])
		g.Copy(address(&c.WRID), address(&cq.WRID), 8)
		g.Copy(address(&c.Status), address(&cq.Status), 4)
		read := func(of outcome) {
			for _, f := range fields {
				switch {
				case f.of != of || flags&f.flag != f.flag:
				case f.width == 0:
					g.Call(uintptr(f.slot), object, uint64(at+f.offset))
				default:
					g.Call(uintptr(f.slot), object)
					g.StoreResult(at+f.offset, f.width)
				}
			}
		}
		read(either)
		broken := g.JumpIfMemory(address(&cq.Status))
		read(succeeded)
		done := g.JumpIfMemory(address(&p.state.one))
		g.Target(broken)
		read(failed)
		g.Target(done)
		g.Store(address(&p.state.n), 4, uint64(i+1))
		switch {
		case i+1 == len(p.all):
		case single:
			g.Call(uintptr(cq.EndPoll), object)
		default:
			g.Call(uintptr(cq.NextPoll), object)
			g.StoreResult(result, 4)
			ends = append(ends, g.JumpIfResult())
		}
	}
	for _, end := range ends {
		g.Target(end)
	}
	g.Call(uintptr(cq.EndPoll), object)
	for _, e := range empty {
		g.Target(e)
	}
}

// Poll reads up to the program's number of completions. It does not block. The slice is valid until the next Poll. If
// it returns an error, the slice holds the completions read before the error.
func (p *PollProgram) Poll() ([]Completion, error) {
	found, err := p.pollBy(p.path)
	return p.withoutQPNum(found), err
}

// polled returns the completions of the last poll.
func (p *PollProgram) polled() []Completion { return p.all[:p.state.n] }

// withoutQPNum clears the queue pair number, which ibv_poll_cq always returns, if the program did not select it.
func (p *PollProgram) withoutQPNum(found []Completion) []Completion {
	if p.flags&ibv.WC_EX_WITH_QP_NUM == 0 {
		for i := range found {
			found[i].QPNum = 0
		}
	}
	return found
}

// pollBy polls through a path: it runs the program, or calls Poll. A trace records the fields that the program read.
func (p *PollProgram) pollBy(path Path) ([]Completion, error) {
	if p.all == nil {
		return nil, errProgramClosed
	}
	runner, ok := trace.Under(path).(datapath.Runner)
	if !ok {
		return p.pollList(path)
	}
	traced, _ := path.(*trace.Path)
	begin := traced.Begin()
	clear(p.polled())
	p.state.n = 0
	runner.Run(&p.program)
	found := p.polled()
	var err error
	if r := p.state.result; r != 0 && errnoOf(r) != syscall.ENOENT {
		err = &runtime.CallError{Function: "ibv_start_poll or ibv_next_poll", Errno: errnoOf(r)}
	}
	if traced != nil && len(found) > 0 {
		wcs := make([]ibv.WC, len(found))
		for i := range found {
			wcs[i] = found[i].wc()
			wcs[i].ByteLen, wcs[i].VendorErr = found[i].ByteLen, found[i].VendorErr
		}
		traced.Polled(ibv.Ptr[ibv.CQ](p.cq).Deref(), wcs, begin)
	}
	return found, err
}

// listFields are the fields that ibv_poll_cq returns too.
const listFields = ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_IMM | ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_SRC_QP |
	ibv.WC_EX_WITH_SLID | ibv.WC_EX_WITH_SL | ibv.WC_EX_WITH_DLID_PATH_BITS

// listFieldsError returns an error if a path that cannot run programs cannot provide the fields.
func listFieldsError(flags ibv.CreateCQWCFlags) error {
	if flags&^listFields == 0 {
		return nil
	}
	return &runtime.NotSupportedError{Function: "ibv_start_poll",
		Missing: fmt.Sprintf("the queue's Path returns the fields of ibv_poll_cq, which do not include %v",
			flags&^listFields)}
}

// pollList polls through a path that cannot run programs.
func (p *PollProgram) pollList(path Path) ([]Completion, error) {
	if err := listFieldsError(p.flags); err != nil {
		return nil, err
	}
	if p.wcs == nil {
		p.wcs = make([]ibv.WC, len(p.all))
	}
	cq := ibv.Ptr[ibv.CQ](p.cq).Deref()
	var n int32
	switch path := path.(type) {
	case interface {
		PollExtended(*ibv.CQ, []ibv.WC) int32
	}: // a datapath.Queue, traced or not
		n = path.PollExtended(cq, p.wcs)
	default:
		n = path.Poll(cq, p.wcs)
	}
	if uint(n) > uint(len(p.wcs)) {
		return nil, pollFailed(path, cq, int(n))
	}
	found := p.set(p.wcs[:n])
	clear(p.wcs[:n]) // paths do not write all fields
	return found, nil
}

var (
	errProgramClosed = closed("program")
	errOtherQueue    = errors.New("the program polls another completion queue")
)

// pollBy polls the extended queue of an owner with a program, and frees slots.
func (q *CompletionQueue) pollBy(ex *ibv.CQEx, p *PollProgram) ([]Completion, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.refusal != nil:
		return nil, q.refusal
	case p.all == nil:
		return nil, errProgramClosed
	case p.cq != address(ex):
		return nil, errOtherQueue
	case len(q.pending) > 0:
		defer q.updatePlain()
		found := p.set(q.pending)
		q.pending = q.pending[len(found):]
		return p.withoutQPNum(found), nil
	}
	path := p.path
	if _, ok := q.path.(datapath.Runner); !ok {
		path = q.path // the owner's options override the program's
	}
	found, err := p.pollBy(path)
	if len(q.markers) > 0 {
		found = slices.DeleteFunc(found, func(c Completion) bool { return q.marked(c.WRID) })
		p.state.n = uint32(len(found))
	}
	for i := range found {
		wc := found[i].wc()
		q.retireFrom(q.tracked.find(wc.QPNum), &wc)
	}
	return p.withoutQPNum(found), err
}

// set stores completions of ibv_poll_cq as if the program had read them, with the queue pair number, and returns those
// for which it has room.
func (p *PollProgram) set(wcs []ibv.WC) []Completion {
	clear(p.polled())
	n := min(len(p.all), len(wcs))
	for i, wc := range wcs[:n] {
		c := &p.all[i]
		*c = Completion{WRID: wc.WRID, Status: wc.Status, QPNum: wc.QPNum}
		if wc.Status != ibv.WC_SUCCESS {
			c.VendorErr = wc.VendorErr
		} else {
			c.Opcode, c.Flags = wc.Opcode, wc.WCFlags
			setField(p, ibv.WC_EX_WITH_BYTE_LEN, &c.ByteLen, wc.ByteLen)
			setField(p, ibv.WC_EX_WITH_IMM, &c.Imm, *wc.ImmData())
			setField(p, ibv.WC_EX_WITH_SRC_QP, &c.SrcQP, wc.SrcQP)
			setField(p, ibv.WC_EX_WITH_SLID, &c.SLID, uint32(wc.SLID))
			setField(p, ibv.WC_EX_WITH_SL, &c.SL, wc.SL)
			setField(p, ibv.WC_EX_WITH_DLID_PATH_BITS, &c.PathBits, wc.DLIDPathBits)
		}
	}
	p.state.n = uint32(n)
	return p.polled()
}

// setField sets a field if the program selected it.
func setField[T any](p *PollProgram, flag ibv.CreateCQWCFlags, field *T, value T) {
	if p.flags&flag != 0 {
		*field = value
	}
}

// wc returns the fields that the accounting of slots needs.
func (c *Completion) wc() ibv.WC {
	return ibv.WC{WRID: c.WRID, Status: c.Status, Opcode: c.Opcode, WCFlags: c.Flags, QPNum: c.QPNum}
}

// Retire frees the slots of the last poll's completions in send and recv; either may be nil. The program must select
// QPNum.
func (p *PollProgram) Retire(send *SendQueue, recv *RecvQueue) {
	t := trackedQueues{Send: send, Recv: recv}
	for _, c := range p.polled() {
		wc := c.wc()
		t.retire(&wc)
	}
}

// Close unmaps the memory. Do not use the program or results of Poll afterwards. A second Close does nothing.
func (p *PollProgram) Close() error {
	p.program.Reset()
	p.all, p.state = nil, &pollState{}
	return p.mapping.Close()
}
