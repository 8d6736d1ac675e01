// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"math/bits"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

func createQP(of ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.QPInitAttr]) (uint64, runtime.Errno) {
	p := find[pd](of)
	if p == nil || init == 0 {
		return 0, syscall.EINVAL
	}
	attr := init.Deref()
	ex := ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
		CompMask: ibv.QP_INIT_ATTR_PD, PD: ibv.PtrTo(p.record),
	}
	q, errno := p.context.newQP(&ex)
	if errno != 0 {
		return 0, errno
	}
	attr.Cap = q.cap
	return mem.AddressOf(q.record), 0
}

// createQPEx is the operation create_qp_ex.
func createQPEx(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.QPInitAttrEx](address)
	const known = ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_XRCD | ibv.QP_INIT_ATTR_CREATE_FLAGS |
		ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	if attr.CompMask&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	flags := createFlags(attr)
	if flags != 0 && (flags != ibv.QP_CREATE_BLOCK_SELF_MCAST_LB || attr.QPType != ibv.QPT_UD) {
		return 0, syscall.EOPNOTSUPP
	}
	q, errno := c.newQP(attr)
	if errno != 0 {
		return 0, errno
	}
	attr.Cap = q.cap
	return mem.AddressOf(q.record), 0
}

// createFlags are those of the attributes, which may be without any.
func createFlags(attr *ibv.QPInitAttrEx) ibv.QPCreateFlags {
	if attr.CompMask&ibv.QP_INIT_ATTR_CREATE_FLAGS == 0 {
		return 0
	}
	return attr.CreateFlags
}

// newQP checks attributes and makes a queue pair, in RESET.
func (c *context) newQP(attr *ibv.QPInitAttrEx) (*qp, runtime.Errno) {
	f := c.fabric()
	f.mu.Lock()
	defer f.Unlock()
	q := &qp{context: c, QP: QP{on: f, port: &c.device.Port, kind: attr.QPType, cap: attr.Cap,
		signals: attr.SQSigAll != 0, unheard: createFlags(attr)&ibv.QP_CREATE_BLOCK_SELF_MCAST_LB != 0}}
	q.report = q.tell
	if errno := q.parts(attr); errno != 0 {
		return nil, errno
	}
	q.reliable, q.expectsOf = q.kind != ibv.QPT_UC && q.kind != ibv.QPT_UD, q.kind
	if q.kind == ibv.QPT_XRC_RECV {
		q.expectsOf = ibv.QPT_XRC_SEND
	}
	ops := ibv.QPCreateSendOpsFlags(0)
	if attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		ops = attr.SendOpsFlags
		if errno := buildable(q.kind, ops); errno != 0 {
			return nil, errno
		}
	}
	record, errno := allocate[qpRecord](c.device)
	if errno != 0 {
		return nil, errno
	}
	low, values := c.device.tops()
	number, ok := f.numbers.Add(numbered{qp: &q.QP}, low, values)
	if !ok {
		forget(record)
		return nil, syscall.ENOMEM
	}
	q.record, q.number = record, number
	q.renew()
	size := uint32(1) << bits.Len32(max(q.cap.MaxSendWR, 1)-1)
	q.ring, q.mask = make([]request, size), size-1
	q.sges, q.inline = make([]ibv.SGE, size*q.cap.MaxSendSGE), make([]byte, size*q.cap.MaxInlineData)
	if q.srq == nil && q.kind != ibv.QPT_XRC_RECV && q.kind != ibv.QPT_XRC_SEND {
		q.recvs = resource.NewRecvQueue(q.protects, q.cap.MaxRecvWR, q.cap.MaxRecvSGE, false)
	}
	q.retry.fire = q.timeout
	q.index = all.qps.add(q)
	record.index = q.index
	base := &record.QPBase
	*base = ibv.QP{Context: c.address(), QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ,
		SRQ: attr.SRQ, Handle: q.index, QPNum: number, QPType: q.kind}
	if q.owner != nil {
		base.PD = ibv.PtrTo(q.owner.record)
		q.owner.hold(1)
	}
	c.uses++
	for _, uses := range q.used() {
		*uses++
	}
	if ops != 0 {
		q.extend(ops)
	}
	enter(record, q)
	return q, 0
}

// parts looks up the objects that the queue pair refers to.
func (q *qp) parts(attr *ibv.QPInitAttrEx) runtime.Errno {
	of := q.context
	switch q.kind {
	case ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
	case ibv.QPT_RAW_PACKET, ibv.QPT_DRIVER:
		return syscall.EOPNOTSUPP
	default:
		return syscall.EINVAL
	}
	if q.kind == ibv.QPT_XRC_RECV { // which has neither queues nor a protection domain
		if attr.CompMask&ibv.QP_INIT_ATTR_XRCD == 0 {
			return syscall.EINVAL
		}
		handle := find[xrcd](uint64(attr.XRCD))
		if handle == nil || handle.device != of.device {
			return syscall.EINVAL
		}
		q.domain, q.cap = handle.domain, ibv.QPCap{}
		return 0
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 {
		return syscall.EINVAL
	}
	if q.owner = find[pd](uint64(attr.PD)); q.owner == nil || q.owner.device != of.device {
		return syscall.EINVAL
	}
	q.protects = q.owner.protects()
	if q.sendCQ = of.completes(attr.SendCQ); q.sendCQ == nil {
		return syscall.EINVAL
	}
	if q.kind == ibv.QPT_XRC_SEND {
		q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
	} else {
		if q.recvCQ = of.completes(attr.RecvCQ); q.recvCQ == nil {
			return syscall.EINVAL
		}
		if attr.SRQ != 0 {
			s := find[srq](uint64(attr.SRQ))
			if s == nil || s.device != of.device || refused(ibv.SRQAttachValidity(s.kind, q.kind)) {
				return syscall.EINVAL
			}
			q.srq = &s.SRQ
			q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
		}
	}
	if q.cap.MaxSendWR > maxQPWR || q.cap.MaxRecvWR > maxQPWR || q.cap.MaxSendSGE > maxSGE ||
		q.cap.MaxRecvSGE > maxSGE || q.cap.MaxInlineData > maxInline {
		return syscall.EINVAL
	}
	// Inline data may take the place of the segments, as with Soft-RoCE. Some programs ask for none and use it.
	if !of.device.on.exact {
		q.cap.MaxInlineData = max(q.cap.MaxInlineData, q.cap.MaxSendSGE*uint32(unsafe.Sizeof(ibv.SGE{})))
	}
	return 0
}

// completes returns the completion queue of a handle, or nil if the device has no such queue.
func (c *context) completes(of ibv.Ptr[ibv.CQ]) *CQ {
	if q := find[cq](uint64(of)); q != nil && q.device == c.device {
		return &q.CQ
	}
	return nil
}

// used returns the reference counts of the objects that the queue pair uses.
func (q *qp) used() (counts []*int) {
	if q.sendCQ != nil {
		counts = append(counts, &q.sendCQ.Uses)
	}
	if q.recvCQ != nil {
		counts = append(counts, &q.recvCQ.Uses)
	}
	if q.srq != nil {
		counts = append(counts, &q.srq.Uses)
	}
	if q.domain != nil {
		counts = append(counts, &q.domain.Uses)
	}
	return counts
}

// destroyQP is ibv_destroy_qp. The queue pair goes with its last handle.
func destroyQP(of ibv.Ptr[ibv.QP]) runtime.Errno {
	if o := locked[openedQP](of); o != nil {
		defer o.fabric().Unlock()
		o.silence(&o.asyncs)
		if errno := mayGo(o.fabric(), of, o, never, &o.asyncs); errno != 0 {
			return errno
		}
		o.silence(&o.asyncs)
		q := o.of
		q.handles = slices.DeleteFunc(q.handles, func(other *openedQP) bool { return other == o })
		o.context.leave()
		forget(o.record)
		if q.closed && len(q.handles) == 0 {
			q.end()
		}
		return 0
	}
	q := locked[qp](of)
	if q == nil {
		return syscall.EINVAL
	}
	f := q.fabric()
	defer f.Unlock()
	busy := func() bool { return q.user.Windows > 0 || q.groups > 0 }
	if errno := mayGo(f, of, q, busy); errno != 0 {
		return errno
	}
	if len(q.handles) == 0 {
		q.setState(ibv.QPS_RESET)
	}
	q.silence(&q.asyncs)
	if errno := mayGo(f, of, q, busy, &q.asyncs); errno != 0 {
		return errno
	}
	q.silence(&q.asyncs)
	all.qps.remove(q.index)
	q.context.leave()
	forget(q.record)
	if q.closed = true; len(q.handles) == 0 {
		q.end()
	}
	return 0
}

// end is the end of a queue pair that has no handle any more.
func (q *qp) end() {
	q.setState(ibv.QPS_RESET) // it may have been used until now
	q.fabric().numbers.Remove(q.number)
	q.fabric().faulty.Forget(q.number)
	if q.owner != nil {
		q.owner.hold(-1)
	}
	for _, uses := range q.used() {
		*uses--
	}
}
