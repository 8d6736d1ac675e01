// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// srqRecord is the C record of a shared receive queue, with its place in the host's table.
type srqRecord struct {
	ibv.SRQ
	index uint32
}

// srq is a shared receive queue as programs know it.
type srq struct {
	*context
	SRQ
	record *srqRecord
	index  uint32
	owner  *pd
	asyncs Reports
}

func createSRQ(of ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.SRQInitAttr]) (uint64, runtime.Errno) {
	if init == 0 {
		return 0, syscall.EINVAL
	}
	p, attr := locked[pd](of), init.Deref()
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	s, errno := p.context.newSRQ(&ibv.SRQInitAttrEx{SRQContext: attr.SRQContext, Attr: attr.Attr,
		SRQType: ibv.SRQT_BASIC}, p, nil, nil)
	if errno != 0 {
		return 0, errno
	}
	attr.Attr.MaxWR, attr.Attr.MaxSGE = s.recvs.Capacity, s.recvs.MaxSGE
	return mem.AddressOf(s.record), 0
}

// createSRQEx is the operation create_srq_ex.
func createSRQEx(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.SRQInitAttrEx](address)
	of := *attr
	if of.CompMask >= ibv.SRQ_INIT_ATTR_RESERVED {
		return 0, syscall.EOPNOTSUPP
	}
	if of.CompMask&ibv.SRQ_INIT_ATTR_PD == 0 {
		return 0, syscall.EINVAL
	}
	if of.CompMask&ibv.SRQ_INIT_ATTR_TYPE == 0 {
		of.SRQType = ibv.SRQT_BASIC
	}
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	p := find[pd](uint64(of.PD))
	if p == nil || p.device != c.device {
		return 0, syscall.EINVAL
	}
	var d *XRCDomain
	var q *CQ
	switch of.SRQType {
	case ibv.SRQT_BASIC:
	case ibv.SRQT_XRC, ibv.SRQT_TM:
		if of.CompMask&ibv.SRQ_INIT_ATTR_CQ == 0 {
			return 0, syscall.EINVAL
		}
		queue := find[cq](uint64(of.CQ))
		if queue == nil || queue.device != c.device {
			return 0, syscall.EINVAL
		}
		q = &queue.CQ
		if of.SRQType == ibv.SRQT_XRC {
			if of.CompMask&ibv.SRQ_INIT_ATTR_XRCD == 0 {
				return 0, syscall.EINVAL
			}
			handle := find[xrcd](uint64(of.XRCD))
			if handle == nil || handle.device != c.device {
				return 0, syscall.EINVAL
			}
			d = handle.domain
		} else if of.CompMask&ibv.SRQ_INIT_ATTR_TM == 0 || checkTags(&of.TMCap) != 0 {
			return 0, syscall.EINVAL
		}
	default:
		return 0, syscall.EINVAL
	}
	s, errno := c.newSRQ(&of, p, d, q)
	if errno != 0 {
		return 0, errno
	}
	attr.Attr.MaxWR, attr.Attr.MaxSGE = s.recvs.Capacity, s.recvs.MaxSGE
	return mem.AddressOf(s.record), 0
}

func (c *context) newSRQ(attr *ibv.SRQInitAttrEx, p *pd, d *XRCDomain, q *CQ) (*srq, runtime.Errno) {
	if attr.Attr.MaxWR == 0 || attr.Attr.MaxWR > maxSRQWR || attr.Attr.MaxSGE > maxSGE {
		return nil, syscall.EINVAL
	}
	f := c.fabric()
	record, errno := allocate[srqRecord](c.device)
	if errno != 0 {
		return nil, errno
	}
	s := &srq{context: c, record: record, owner: p}
	s.kind, s.domain, s.cq = attr.SRQType, d, q
	s.low = func() { s.tell(ibv.EVENT_SRQ_LIMIT_REACHED, mem.AddressOf(record), &s.asyncs) }
	low, values := c.device.tops()
	number, ok := f.numbers.Add(numbered{srq: &s.SRQ}, low, values)
	if !ok {
		forget(record)
		return nil, syscall.ENOMEM
	}
	if s.kind == ibv.SRQT_TM {
		s.tags = resource.NewTags(&attr.TMCap)
	}
	s.number, s.recvs = number, resource.NewRecvQueue(p.protects(), attr.Attr.MaxWR, max(attr.Attr.MaxSGE, 1), true)
	s.index = all.srqs.add(s)
	record.index, record.Handle = s.index, number
	record.Context, record.SRQContext, record.PD = c.address(), attr.SRQContext, ibv.PtrTo(p.record)
	p.hold(1)
	c.uses++
	if d != nil {
		d.Uses++
		d.PDs[p.protects()]++
	}
	if q != nil {
		q.Uses++
	}
	enter(record, s)
	return s, 0
}

func destroySRQ(of ibv.Ptr[ibv.SRQ]) runtime.Errno {
	s := locked[srq](of)
	if s == nil {
		return syscall.EINVAL
	}
	f := s.fabric()
	defer f.Unlock()
	if errno := mayGo(f, of, s, func() bool { return s.SRQ.Uses > 0 }, &s.asyncs); errno != 0 {
		return errno
	}
	s.silence(&s.asyncs)
	f.numbers.Remove(s.number)
	s.gone = true
	all.srqs.remove(s.index)
	s.owner.hold(-1)
	s.context.leave()
	if s.domain != nil {
		s.domain.Uses--
		if s.domain.PDs[s.recvs.Domain]--; s.domain.PDs[s.recvs.Domain] == 0 {
			delete(s.domain.PDs, s.recvs.Domain)
		}
	}
	if s.cq != nil {
		s.cq.Uses--
	}
	forget(s.record)
	return 0
}

func modifySRQ(of ibv.Ptr[ibv.SRQ], to ibv.Ptr[ibv.SRQAttr], mask ibv.SRQAttrMask) runtime.Errno {
	attr := to.Deref()
	if attr == nil || mask&^(ibv.SRQ_MAX_WR|ibv.SRQ_LIMIT) != 0 {
		return syscall.EINVAL
	}
	s := locked[srq](of)
	if s == nil {
		return syscall.EINVAL
	}
	defer s.fabric().Unlock()
	capacity := s.recvs.Capacity
	if mask&ibv.SRQ_MAX_WR != 0 {
		if capacity = attr.MaxWR; capacity == 0 || capacity > maxSRQWR ||
			s.recvs.Posted-s.recvs.Freed.Load() > capacity || s.limit > capacity {
			return syscall.EINVAL
		}
	}
	if mask&ibv.SRQ_LIMIT != 0 && attr.SRQLimit > capacity {
		return syscall.EINVAL
	}
	if capacity != s.recvs.Capacity {
		s.recvs.Resize(capacity)
	}
	if mask&ibv.SRQ_LIMIT != 0 {
		s.limit = attr.SRQLimit
	}
	return 0
}

func querySRQ(of ibv.Ptr[ibv.SRQ], to ibv.Ptr[ibv.SRQAttr]) runtime.Errno {
	if to == 0 {
		return syscall.EINVAL
	}
	s := locked[srq](of)
	if s == nil {
		return syscall.EINVAL
	}
	defer s.fabric().Unlock()
	*to.Deref() = ibv.SRQAttr{MaxWR: s.recvs.Capacity, MaxSGE: s.recvs.MaxSGE, SRQLimit: s.limit}
	return 0
}

// srqNumber is ibv_get_srq_num: XRC senders name a queue by it, and others have none that is of use.
func srqNumber(address, number uint64) runtime.Errno {
	s := find[srq](address)
	switch {
	case s == nil || number == 0:
		return syscall.EINVAL
	case refused(ibv.SRQOpValidity(s.kind, ibv.SRQGetNum)):
		return syscall.EOPNOTSUPP
	}
	*mem.At[uint32](number) = s.number
	return 0
}

func (s *srq) reported() *Reports { return &s.asyncs }

// postSRQRecv is the slot post_srq_recv.
func postSRQRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := all.srqs.get(mem.At[srqRecord](address).index)
	if s == nil || mem.AddressOf(s.record) != address {
		return uint64(syscall.EINVAL), 0
	}
	f := s.fabric()
	f.mu.Lock()
	defer f.Unlock()
	return s.recvs.Post(wr, bad), 0
}
