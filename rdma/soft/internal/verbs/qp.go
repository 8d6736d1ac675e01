// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// QP is a queue pair of a program.
type QP struct {
	*Context
	engine.QP
	record  *qpRecord
	index   uint32
	owner   *PD
	closed  bool        // its first handle was destroyed, and others are open
	handles []*openedQP // further handles of an XRC_RECV queue pair, by ibv_open_qp
	Asyncs  resource.Reports
	// Extension is the record of a vendor's functions, or nil. It is freed with the queue pair. Core.Mu guards it.
	Extension unsafe.Pointer

	// Guarded by QP.Post.
	build    builder
	binds    lastBound
	latestAH *ah
}

// report queues an event for every context with a handle.
func (q *QP) report(kind ibv.EventType) {
	if !q.closed {
		q.Context.report(kind, mem.AddressOf(q.record), &q.Asyncs)
	}
	for _, o := range q.handles {
		o.Context.report(kind, mem.AddressOf(o.record), &o.asyncs)
	}
}

func (q *QP) reported() *resource.Reports { return &q.Asyncs }

// IsShared reports whether the queue pair uses a shared receive queue.
func (q *QP) IsShared() bool { return q.SRQ != nil }

// Transit implements ibv_modify_qp. It is called without the fabric's lock.
func (q *QP) Transit(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	return q.modify(q.record, attr, mask)
}

// BreakNow moves the queue pair to the error state. The caller holds Core.Mu.
func (q *QP) BreakNow() {
	if q.State != ibv.QPS_ERR {
		q.SetState(ibv.QPS_ERR)
		q.record.QPBase.State = ibv.QPS_ERR
	}
}

// qpRecord is the C record of a queue pair, with its place in the host's table.
type qpRecord struct {
	ibv.QPEx
	index uint32
}

// FindQP returns the queue pair of a handle, or nil.
func FindQP[A abi.Address](address A) *QP {
	if q := Find[QP](address); q != nil {
		return q
	}
	if o := Find[openedQP](address); o != nil {
		return o.of
	}
	return nil
}

// lockedQP returns the queue pair of a handle with Core.Mu held, or nil without it.
func lockedQP[A abi.Address](address A) *QP {
	if o := locked[openedQP](address); o != nil {
		return o.of
	}
	return locked[QP](address)
}

// qpOf returns the queue pair of a slot call, or nil if it was destroyed.
func qpOf(address uint64) *QP {
	q := all.qps.get(mem.At[qpRecord](address).index)
	if q == nil || mem.AddressOf(q.record) != address {
		return nil
	}
	return q
}

// createQP implements ibv_create_qp.
func createQP(p *PD, attr *ibv.QPInitAttr) (uint64, runtime.Errno) {
	ex := ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
		CompMask: ibv.QP_INIT_ATTR_PD, PD: ibv.PtrTo(p.Record),
	}
	address, errno := p.Context.NewQP(&ex, nil)
	attr.Cap = ex.Cap
	return address, errno
}

// CreateQPEx implements the operation create_qp_ex.
func CreateQPEx(c *Context, attr *ibv.QPInitAttrEx) (uint64, runtime.Errno) {
	const known = ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_XRCD | ibv.QP_INIT_ATTR_CREATE_FLAGS |
		ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	if attr.CompMask&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	flags := createFlags(attr)
	if flags != 0 && (flags != ibv.QP_CREATE_BLOCK_SELF_MCAST_LB || attr.QPType != ibv.QPT_UD) {
		return 0, syscall.EOPNOTSUPP
	}
	return c.NewQP(attr, nil)
}

// createFlags returns the flags of the attributes, or 0 if they have none.
func createFlags(attr *ibv.QPInitAttrEx) ibv.QPCreateFlags {
	if attr.CompMask&ibv.QP_INIT_ATTR_CREATE_FLAGS == 0 {
		return 0
	}
	return attr.CreateFlags
}

// NewQP checks attributes and creates a queue pair in RESET. It stores the capacities in attr and returns the address
// of the record. The attributes of dynamic connections have type RC.
func (c *Context) NewQP(attr *ibv.QPInitAttrEx, dynamic *engine.Dynamic) (uint64, runtime.Errno) {
	f := c.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	q := &QP{Context: c, QP: engine.QP{On: f, Port: &c.Device.Port, Kind: attr.QPType, Cap: attr.Cap,
		Dynamic: dynamic, Signals: attr.SQSigAll != 0, Unheard: createFlags(attr)&ibv.QP_CREATE_BLOCK_SELF_MCAST_LB != 0}}
	q.Report = q.report
	if errno := q.resolve(attr); errno != 0 {
		return 0, errno
	}
	ops := ibv.QPCreateSendOpsFlags(0)
	if attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		ops = attr.SendOpsFlags
		if errno := Buildable(q.Kind, ops); errno != 0 {
			return 0, errno
		}
	}
	record, errno := allocate[qpRecord](c.Device)
	if errno != 0 {
		return 0, errno
	}
	low, values := c.Device.Tops()
	number, ok := f.Numbers.Add(engine.Numbered{QP: &q.QP}, low, values)
	if !ok {
		Forget(record)
		return 0, syscall.ENOMEM
	}
	q.record = record
	q.Start(number)
	q.index = all.qps.add(q)
	record.index = q.index
	base := &record.QPBase
	*base = ibv.QP{Context: c.Address(), QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ,
		SRQ: attr.SRQ, Handle: q.index, QPNum: number, QPType: q.Kind}
	if q.owner != nil {
		base.PD = ibv.PtrTo(q.owner.Record)
		q.owner.hold(1)
	}
	c.uses++
	for _, uses := range q.used() {
		*uses++
	}
	if ops != 0 {
		q.extend(ops)
	}
	if dynamic != nil {
		base.QPType = ibv.QPT_DRIVER
		if dynamic.IsTarget {
			base.QPNum = 0 // until RTR
		}
	}
	Enter(record, q)
	attr.Cap = q.Cap
	return mem.AddressOf(record), 0
}

// resolve looks up the objects to which the attributes refer.
func (q *QP) resolve(attr *ibv.QPInitAttrEx) runtime.Errno {
	of := q.Context
	switch q.Kind {
	case ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
	case ibv.QPT_RAW_PACKET, ibv.QPT_DRIVER:
		return syscall.EOPNOTSUPP
	default:
		return syscall.EINVAL
	}
	if q.Kind == ibv.QPT_XRC_RECV { // which has neither queues nor a protection domain
		handle := findOn[XRCD](of, attr.XRCD)
		if attr.CompMask&ibv.QP_INIT_ATTR_XRCD == 0 || handle == nil {
			return syscall.EINVAL
		}
		q.Domain, q.Cap = handle.domain, ibv.QPCap{}
		return 0
	}
	sends, receives := findOn[cq](of, attr.SendCQ), findOn[cq](of, attr.RecvCQ)
	q.owner = findOn[PD](of, attr.PD)
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 || q.owner == nil || sends == nil {
		return syscall.EINVAL
	}
	q.Protects, q.SendCQ = q.owner.domain(), &sends.CQ
	if q.Kind != ibv.QPT_XRC_SEND {
		if receives == nil {
			return syscall.EINVAL
		}
		q.RecvCQ = &receives.CQ
		if attr.SRQ != 0 {
			s := findOn[SRQ](of, attr.SRQ)
			if s == nil || engine.Refused(ibv.SRQAttachValidity(s.Kind, q.Kind)) {
				return syscall.EINVAL
			}
			q.SRQ = &s.SRQ
		}
	}
	if q.SRQ != nil || q.Kind == ibv.QPT_XRC_SEND {
		q.Cap.MaxRecvWR, q.Cap.MaxRecvSGE = 0, 0
	}
	if q.Cap.MaxSendWR > maxQPWR || q.Cap.MaxRecvWR > maxQPWR || q.Cap.MaxSendSGE > engine.MaxSGE ||
		q.Cap.MaxRecvSGE > engine.MaxSGE || q.Cap.MaxInlineData > maxInline {
		return syscall.EINVAL
	}
	// Inline data may use the space of the segments, as on Soft-RoCE. Some programs request none and use it.
	if !of.Device.On.Exact {
		q.Cap.MaxInlineData = max(q.Cap.MaxInlineData, q.Cap.MaxSendSGE*uint32(unsafe.Sizeof(ibv.SGE{})))
	}
	return 0
}

// used returns the reference counts of the objects that the queue pair uses.
func (q *QP) used() (counts []*int) {
	if q.SendCQ != nil {
		counts = append(counts, &q.SendCQ.Uses)
	}
	if q.RecvCQ != nil {
		counts = append(counts, &q.RecvCQ.Uses)
	}
	if q.SRQ != nil {
		counts = append(counts, &q.SRQ.Uses)
	}
	if q.Domain != nil {
		counts = append(counts, &q.Domain.Uses)
	}
	return counts
}

// DestroyQP implements ibv_destroy_qp. Destroying the last handle destroys the queue pair.
func DestroyQP(of ibv.Ptr[ibv.QP]) runtime.Errno {
	if o := locked[openedQP](of); o != nil {
		defer o.Fabric().Unlock()
		o.dropEvents(&o.asyncs)
		return destroy(o, o.record, never, func() {
			o.dropEvents(&o.asyncs)
			q := o.of
			q.handles = slices.DeleteFunc(q.handles, func(other *openedQP) bool { return other == o })
			if q.closed && len(q.handles) == 0 {
				q.end()
			}
		}, &o.asyncs)
	}
	return LockedDo(of, func(q *QP) runtime.Errno {
		busy := func() bool { return q.User.Windows > 0 || q.Groups > 0 }
		if errno := mayGo(q, q.record, busy); errno != 0 {
			return errno
		}
		if len(q.handles) == 0 {
			q.SetState(ibv.QPS_RESET)
		}
		q.dropEvents(&q.Asyncs)
		return destroy(q, q.record, busy, func() {
			q.dropEvents(&q.Asyncs)
			all.qps.remove(q.index)
			if q.Extension != nil {
				all.space.Free(q.Extension)
			}
			if q.closed = true; len(q.handles) == 0 {
				q.end()
			}
		}, &q.Asyncs)
	})
}

// end destroys a queue pair without handles.
func (q *QP) end() {
	q.SetState(ibv.QPS_RESET) // it may have been used until now
	q.Fabric().Numbers.Remove(q.Number)
	q.Fabric().Faulty.Forget(q.Number)
	if q.owner != nil {
		q.owner.hold(-1)
	}
	for _, uses := range q.used() {
		*uses--
	}
}
