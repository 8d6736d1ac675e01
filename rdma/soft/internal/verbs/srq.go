// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// srqRecord is the C record of a shared receive queue, with its place in the host's table.
type srqRecord struct {
	ibv.SRQ
	index uint32
}

// SRQ is a shared receive queue of a program.
type SRQ struct {
	*Context
	resource.SRQ
	record *srqRecord
	index  uint32
	owner  *PD
	asyncs resource.Reports
}

func createSRQ(p *PD, attr *ibv.SRQInitAttr) (uint64, runtime.Errno) {
	ex := ibv.SRQInitAttrEx{SRQContext: attr.SRQContext, Attr: attr.Attr, SRQType: ibv.SRQT_BASIC}
	address, errno := p.Context.newSRQ(&ex, p, nil, nil)
	attr.Attr = ex.Attr
	return address, errno
}

// CreateSRQEx implements the operation create_srq_ex.
func CreateSRQEx(c *Context, attr *ibv.SRQInitAttrEx) (uint64, runtime.Errno) {
	of := *attr
	has := func(bits ibv.SRQInitAttrMask) bool { return of.CompMask&bits == bits }
	if of.CompMask >= ibv.SRQ_INIT_ATTR_RESERVED {
		return 0, syscall.EOPNOTSUPP
	}
	if !has(ibv.SRQ_INIT_ATTR_TYPE) {
		of.SRQType = ibv.SRQT_BASIC
	}
	c.Fabric().Mu.Lock()
	defer c.Fabric().Unlock()
	p, q, x := findOn[PD](c, of.PD), findOn[cq](c, of.CQ), findOn[XRCD](c, of.XRCD)
	var queue *resource.CQ
	var domain *resource.XRCDomain
	switch {
	case !has(ibv.SRQ_INIT_ATTR_PD) || p == nil:
		return 0, syscall.EINVAL
	case of.SRQType == ibv.SRQT_BASIC:
	case !has(ibv.SRQ_INIT_ATTR_CQ) || q == nil:
		return 0, syscall.EINVAL
	case of.SRQType == ibv.SRQT_XRC && has(ibv.SRQ_INIT_ATTR_XRCD) && x != nil:
		queue, domain = &q.CQ, x.domain
	case of.SRQType == ibv.SRQT_TM && has(ibv.SRQ_INIT_ATTR_TM) && validTags(&of.TMCap):
		queue = &q.CQ
	default:
		return 0, syscall.EINVAL
	}
	address, errno := c.newSRQ(&of, p, domain, queue)
	attr.Attr = of.Attr
	return address, errno
}

// newSRQ creates a shared receive queue. It stores the capacities in attr and returns the address of the record.
func (c *Context) newSRQ(attr *ibv.SRQInitAttrEx, p *PD, d *resource.XRCDomain, q *resource.CQ) (uint64,
	runtime.Errno) {
	if attr.Attr.MaxWR == 0 || attr.Attr.MaxWR > maxSRQWR || attr.Attr.MaxSGE > engine.MaxSGE {
		return 0, syscall.EINVAL
	}
	f := c.Fabric()
	record, errno := allocate[srqRecord](c.Device)
	if errno != 0 {
		return 0, errno
	}
	s := &SRQ{Context: c, record: record, owner: p}
	s.Kind, s.Domain, s.CQ = attr.SRQType, d, q
	s.Low = func() { s.report(ibv.EVENT_SRQ_LIMIT_REACHED, mem.AddressOf(record), &s.asyncs) }
	low, values := c.Device.Tops()
	number, ok := f.Numbers.Add(engine.Numbered{SRQ: &s.SRQ}, low, values)
	if !ok {
		Forget(record)
		return 0, syscall.ENOMEM
	}
	if s.Kind == ibv.SRQT_TM {
		s.Tags = resource.NewTags(&attr.TMCap)
	}
	s.Number, s.Recvs = number, resource.NewRecvQueue(p.domain(), attr.Attr.MaxWR, max(attr.Attr.MaxSGE, 1), true)
	s.index = all.srqs.add(s)
	record.index, record.Handle = s.index, number
	record.Context, record.SRQContext, record.PD = c.Address(), attr.SRQContext, ibv.PtrTo(p.Record)
	p.hold(1)
	if d != nil {
		d.Uses++
		d.PDs[p.domain()]++
	}
	if q != nil {
		q.Uses++
	}
	attr.Attr.MaxSGE = s.Recvs.MaxSGE
	return add(c, record, s)
}

func DestroySRQ(of ibv.Ptr[ibv.SRQ]) runtime.Errno {
	return LockedDo(of, func(s *SRQ) runtime.Errno {
		return destroy(s, s.record, func() bool { return s.SRQ.Uses > 0 }, s.end, &s.asyncs)
	})
}

// end releases the objects that the queue uses.
func (s *SRQ) end() {
	s.dropEvents(&s.asyncs)
	s.Fabric().Numbers.Remove(s.Number)
	s.Gone = true
	all.srqs.remove(s.index)
	s.owner.hold(-1)
	if s.Domain != nil {
		s.Domain.Uses--
		if s.Domain.PDs[s.Recvs.Domain]--; s.Domain.PDs[s.Recvs.Domain] == 0 {
			delete(s.Domain.PDs, s.Recvs.Domain)
		}
	}
	if s.CQ != nil {
		s.CQ.Uses--
	}
}

func modifySRQ(s *SRQ, to ibv.Ptr[ibv.SRQAttr], mask ibv.SRQAttrMask) runtime.Errno {
	attr := to.Deref()
	if attr == nil || mask&^(ibv.SRQ_MAX_WR|ibv.SRQ_LIMIT) != 0 {
		return syscall.EINVAL
	}
	capacity := s.Recvs.Capacity
	if mask&ibv.SRQ_MAX_WR != 0 {
		if capacity = attr.MaxWR; capacity == 0 || capacity > maxSRQWR ||
			s.Recvs.Posted-s.Recvs.Freed.Load() > capacity || s.Limit > capacity {
			return syscall.EINVAL
		}
	}
	if mask&ibv.SRQ_LIMIT != 0 && attr.SRQLimit > capacity {
		return syscall.EINVAL
	}
	if capacity != s.Recvs.Capacity {
		s.Recvs.Resize(capacity)
	}
	if mask&ibv.SRQ_LIMIT != 0 {
		s.Limit = attr.SRQLimit
	}
	return 0
}

func querySRQ(s *SRQ, to *ibv.SRQAttr) runtime.Errno {
	*to = ibv.SRQAttr{MaxWR: s.Recvs.Capacity, MaxSGE: s.Recvs.MaxSGE, SRQLimit: s.Limit}
	return 0
}

// srqNumber implements ibv_get_srq_num: the number by which XRC senders name a queue. Others have none.
func srqNumber(s *SRQ, number *uint32) runtime.Errno {
	if engine.Refused(ibv.SRQOpValidity(s.Kind, ibv.SRQGetNum)) {
		return syscall.EOPNOTSUPP
	}
	*number = s.Number
	return 0
}

func (s *SRQ) reported() *resource.Reports { return &s.asyncs }

// postSRQRecv implements the slot post_srq_recv.
func postSRQRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := all.srqs.get(mem.At[srqRecord](address).index)
	if s == nil || mem.AddressOf(s.record) != address {
		return uint64(syscall.EINVAL), 0
	}
	f := s.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	return s.Recvs.Post(wr, bad), 0
}

// validTags checks the requested attributes of a tag-matching queue.
func validTags(c *ibv.TMCap) bool {
	return c.MaxNumTags > 0 && c.MaxNumTags <= maxTags && c.MaxOps > 0 && c.MaxOps <= maxTagOps
}

// postSRQOps implements the operation post_srq_ops.
func postSRQOps(address, first, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := locked[SRQ](address)
	if s == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer s.Fabric().Unlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the list may be where no memory is
	n := uint32(0)
	for op := first; op != 0; n++ {
		w, errno := mem.At[ibv.OpsWR](op), syscall.ENOMEM // a list without an end
		if s.Tags == nil || n < s.Tags.Ops.Capacity {
			errno = s.operate(w)
		}
		if errno != 0 {
			if bad != 0 {
				*mem.At[uintptr](bad) = uintptr(op)
			}
			return uint64(errno), 0
		}
		op = uint64(w.Next)
	}
	return 0, 0
}

// operate carries out one operation on the tag list.
func (s *SRQ) operate(w *ibv.OpsWR) runtime.Errno {
	t := s.Tags
	switch {
	case t == nil:
		return syscall.EOPNOTSUPP
	case w.Flags&^(ibv.OPS_SIGNALED|ibv.OPS_TM_SYNC) != 0:
		return syscall.EINVAL
	case t.Ops.Posted-t.Ops.Freed.Load() >= t.Ops.Capacity:
		return syscall.ENOMEM
	}
	status, opcode := ibv.WC_SUCCESS, ibv.WC_TM_ADD
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		if errno := s.checkTag(&w.TM.Add); errno != 0 {
			return errno
		}
	case ibv.WR_TAG_DEL:
		opcode = ibv.WC_TM_DEL
	case ibv.WR_TAG_SYNC:
		opcode = ibv.WC_TM_SYNC
	default:
		return syscall.EINVAL
	}
	if w.Flags&ibv.OPS_TM_SYNC != 0 || w.Opcode == ibv.WR_TAG_SYNC {
		t.SetSeen(w.TM.UnexpectedCnt)
	}
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		add := &w.TM.Add
		var sges []ibv.SGE
		if add.NumSGE > 0 {
			sges = mem.List[ibv.SGE](uint64(add.SGList), int(add.NumSGE))
		}
		e := t.Add(sges)
		e.ID, e.Tag, e.Mask, e.Held = add.RecvWRID, add.Tag, add.Mask, !t.InStep()
		w.TM.Handle = e.Handle
	case ibv.WR_TAG_DEL:
		i := slices.IndexFunc(t.Entries, func(e *resource.Tag) bool { return e.Handle == w.TM.Handle })
		if i < 0 { // a message took it
			status = ibv.WC_TM_ERR
		} else {
			e := t.Entries[i]
			t.Take(i)
			t.Recycle(e)
		}
	}
	if w.Flags&ibv.OPS_SIGNALED == 0 && status == ibv.WC_SUCCESS {
		return 0
	}
	e := s.CQ.Next(resource.Slot{Receives: &t.Ops}, w.WRID, status, opcode, 0)
	if !t.InStep() {
		e.WC.WCFlags = ibv.WC_TM_SYNC_REQ
	}
	t.Ops.Posted++
	s.CQ.Publish(e, false)
	return 0
}

func (s *SRQ) checkTag(add *ibv.OpsTMAdd) runtime.Errno {
	switch {
	case add.NumSGE < 0 || uint32(max(add.NumSGE, 0)) > s.Recvs.MaxSGE || add.NumSGE > 0 && add.SGList == 0:
		return syscall.EINVAL
	case s.Tags.IsFull():
		return syscall.ENOMEM
	}
	return 0
}
