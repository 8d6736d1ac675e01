// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path is a path that records its calls.
type Path struct {
	inner datapath.Path
	r     *Recorder
}

// Of returns the path for a new queue: p itself or, while a trace is being recorded, a Path that wraps p. It returns an
// error if the trace could not be started.
func Of(p datapath.Path) (datapath.Path, error) {
	if problem != nil {
		return nil, problem
	}
	r := current.Load()
	if r == nil || p == nil {
		return p, nil
	}
	return &Path{p, r}, nil
}

// Under returns the inner path of a recording path, or p itself.
func Under(p datapath.Path) datapath.Path {
	if traced, ok := p.(*Path); ok {
		return traced.inner
	}
	return p
}

// post records a post. It formats the work requests before it calls do, and writes the line afterwards.
func (p *Path) post(verb string, number uint32, wrs func(*line), do func() int32) (result int32) {
	l := newLine()
	begin := p.r.since()
	l.number("t", begin)
	l.text("verb", verb)
	l.number("qp", uint64(number))
	l.list("wrs")
	ignoreFaults(func() { wrs(l) })
	l.end()
	result = -1 // for a post that panics
	defer func() {
		l.number("d", p.r.since()-begin)
		if result != 0 {
			l.number("errno", uint64(max(result, -result)))
		}
		p.r.write(l)
	}()
	result = do()
	return result
}

func (p *Path) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return p.post("ibv_post_send", qp.QPNum, func(l *line) {
		for wr := list; wr != nil; wr = wr.Next.Deref() {
			l.send(qp, wr)
		}
	}, func() int32 { return p.inner.PostSend(qp, list, bad) })
}

// PostDynamic implements [datapath.Dynamic] if the inner path does.
func (p *Path) PostDynamic(qp *ibv.QP, list []ibv.SendWR, to []datapath.Destination) int32 {
	return p.post("ibv_wr_complete", qp.QPNum, func(l *line) {
		for i := range list {
			l.send(qp, &list[i])
		}
	}, func() int32 { return p.inner.(datapath.Dynamic).PostDynamic(qp, list, to) })
}

func (p *Path) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return p.post("ibv_post_recv", qp.QPNum, func(l *line) { l.recvs(list) },
		func() int32 { return p.inner.PostRecv(qp, list, bad) })
}

func (p *Path) PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return p.post("ibv_post_srq_recv", srq.Handle, func(l *line) { l.recvs(list) },
		func() int32 { return p.inner.PostSRQRecv(srq, list, bad) })
}

func (p *Path) PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return p.post("ibv_post_wq_recv", wq.WQNum, func(l *line) { l.recvs(list) },
		func() int32 { return p.inner.PostWQRecv(wq, list, bad) })
}

// Poll records polls that return completions.
func (p *Path) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	return p.poll(cq, wcs, p.inner.Poll)
}

// PollExtended is like Poll, but uses the inner path's PollExtended if it has one.
func (p *Path) PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32 {
	if q, ok := p.inner.(datapath.Queue); ok {
		return p.poll(cq, wcs, q.PollExtended)
	}
	return p.Poll(cq, wcs)
}

func (p *Path) poll(cq *ibv.CQ, wcs []ibv.WC, do func(*ibv.CQ, []ibv.WC) int32) int32 {
	begin := p.r.since()
	n := do(cq, wcs)
	if n > 0 && int(n) <= len(wcs) {
		p.Polled(cq, wcs[:n], begin)
	}
	return n
}

// Polled records completions.
func (p *Path) Polled(cq *ibv.CQ, wcs []ibv.WC, begin uint64) {
	l := newLine()
	l.number("t", begin)
	l.number("d", p.r.since()-begin)
	l.text("verb", "ibv_poll_cq")
	l.pointer("cq", cq)
	l.list("wcs")
	failed := false
	for i := range wcs {
		wc := &wcs[i]
		l.open()
		l.number("id", wc.WRID)
		l.text("status", short(wc.Status, "IBV_WC_"))
		l.number("qp", uint64(wc.QPNum))
		if wc.Status == ibv.WC_SUCCESS {
			l.text("op", short(wc.Opcode, "IBV_WC_"))
			l.number("bytes", uint64(wc.ByteLen))
		} else {
			l.number("vendor", uint64(wc.VendorErr))
			failed = true
		}
		l.close()
	}
	l.end()
	p.r.write(l)
	if failed {
		p.r.counters(cq.Context.Deref())
	}
}

// Begin returns the start time of a poll, or 0 if p is nil, that is, if nothing is recorded.
func (p *Path) Begin() uint64 {
	if p == nil {
		return 0
	}
	return p.r.since()
}

func (p *Path) Arm(cq *ibv.CQ, solicitedOnly bool) int32 {
	begin := p.r.since()
	result := p.inner.Arm(cq, solicitedOnly)
	l := newLine()
	l.number("t", begin)
	l.number("d", p.r.since()-begin)
	l.text("verb", "ibv_req_notify_cq")
	l.pointer("cq", cq)
	if result != 0 {
		l.number("errno", uint64(max(result, -result)))
	}
	p.r.write(l)
	return result
}

// sendRunner is a Runner that runs a program of sends and records its work requests.
type sendRunner struct {
	datapath.Runner
	traced *Path
	qp     *ibv.QP
	wrs    []ibv.SendWR
}

// Sends returns a Runner that runs a program and records wrs as its work requests. ok is false if p does not record or
// its inner path does not run programs.
func Sends(p datapath.Path, qp *ibv.QP, wrs []ibv.SendWR) (runs datapath.Runner, ok bool) {
	traced, ok := p.(*Path)
	if !ok {
		return nil, false
	}
	inner, ok := traced.inner.(datapath.Runner)
	return &sendRunner{inner, traced, qp, wrs}, ok
}

// Run runs the program.
func (s *sendRunner) Run(p *program.Program) int32 {
	return s.traced.post("ibv_wr_complete", s.qp.QPNum, func(l *line) {
		for i := range s.wrs {
			l.send(s.qp, &s.wrs[i])
		}
	}, func() int32 { return s.Runner.Run(p) })
}

// send appends a send work request to the line.
func (l *line) send(qp *ibv.QP, wr *ibv.SendWR) {
	l.open()
	defer l.close()
	l.number("id", wr.WRID)
	l.text("op", short(wr.Opcode, "IBV_WR_"))
	if wr.SendFlags != 0 {
		l.text("flags", strings.ReplaceAll(wr.SendFlags.String(), "IBV_SEND_", ""))
	}
	l.sges(wr.SGList, wr.NumSGE)
	switch wr.Opcode {
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ:
		l.address("remote", wr.WR.RDMA().RemoteAddr)
		l.number("rkey", uint64(wr.WR.RDMA().RKey))
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		l.address("remote", wr.WR.Atomic().RemoteAddr)
		l.number("rkey", uint64(wr.WR.Atomic().RKey))
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		if qp.QPType == ibv.QPT_UD {
			l.number("to", uint64(wr.WR.UD().RemoteQPN))
			l.number("qkey", uint64(wr.WR.UD().RemoteQKey))
			l.address("ah", uint64(wr.WR.UD().AH))
		}
	}
}

// recvs writes a list of receives.
func (l *line) recvs(list *ibv.RecvWR) {
	for wr := list; wr != nil; wr = wr.Next.Deref() {
		l.open()
		l.number("id", wr.WRID)
		l.sges(wr.SGList, wr.NumSGE)
		l.close()
	}
}

// maxEntries is the maximum number of scatter/gather entries recorded per work request.
const maxEntries = 32

func (l *line) sges(list ibv.Ptr[ibv.SGE], n int32) {
	if list == 0 || n <= 0 {
		return
	}
	l.list("sges")
	defer l.end()
	for i := range min(int(n), maxEntries) {
		s := ibv.Ptr[ibv.SGE](uintptr(list) + uintptr(i)*sgeSize).Deref()
		l.open()
		l.address("at", s.Addr)
		l.number("bytes", uint64(s.Length))
		l.number("lkey", uint64(s.LKey))
		l.close()
	}
}
