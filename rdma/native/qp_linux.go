// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// queuePair is a queue pair.
type queuePair struct {
	context *context
	domain  *domain // a parent domain, or nil
	record  *qpRecord
	acked   reports
	own     driver.QP
	path    driver.QPPath
	build   driver.Builder // or nil
}

type qpRecord struct {
	ibv.QPEx // begins with an ibv.QP
	index    uint32
}

// qpAt is cqAt for queue pairs.
func (b *Backend) qpAt(address uint64) *queuePair {
	q := b.qps.get(ibv.Ptr[qpRecord](address).Deref().index)
	if q == nil || addressOf(q.record) != address {
		return nil
	}
	return q
}

func (b *Backend) createQP(a []uint64) (uint64, runtime.Errno) {
	p, attr := find[domain](b, a[0]), ibv.Ptr[ibv.QPInitAttr](a[1]).Deref()
	if p == nil || attr == nil || attr.QPType == ibv.QPT_XRC_RECV {
		return 0, syscall.EINVAL
	}
	return b.newQP(p.context, p, nil, attr, p.context.createQP)
}

// createQP is the [driver.CreateQP] of queue pairs without further attributes.
func (c *context) createQP(td driver.TD, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp,
	send driver.Command) (driver.QP, syscall.Errno) {
	if td != nil {
		return c.own.(driver.ThreadDomains).CreateQPIn(td, in, out, send)
	}
	return c.own.CreateQP(in, out, send)
}

// newQP creates a queue pair, and sets the capacities in attr. One of type XRC_RECV is in xrcd, others are in p.
func (b *Backend) newQP(c *context, p *domain, xrcd *xrcDomain, attr *ibv.QPInitAttr, create driver.CreateQP) (uint64,
	runtime.Errno) {
	return b.newQPWith(c, p, xrcd, attr, create, nil)
}

// newQPWith is newQP by the extended command, unless flags is nil.
func (b *Backend) newQPWith(c *context, p *domain, xrcd *xrcDomain, attr *ibv.QPInitAttr, create driver.CreateQP,
	flags *ibv.QPCreateFlags) (uint64, runtime.Errno) {
	sends := attr.QPType != ibv.QPT_XRC_RECV
	receives := sends && attr.QPType != ibv.QPT_XRC_SEND
	if _, ok := c.own.(driver.XRC); !ok && !receives {
		return 0, syscall.EOPNOTSUPP
	}
	in := uapi.IBUverbsCreateQP{MaxSendWR: attr.Cap.MaxSendWR, MaxSendSGE: attr.Cap.MaxSendSGE,
		MaxInlineData: attr.Cap.MaxInlineData, QPType: uapi.IBUverbsQPType(attr.QPType)}
	if sends {
		send := find[completionQueue](b, uint64(attr.SendCQ))
		if send == nil {
			return 0, syscall.EINVAL
		}
		in.PDHandle, in.SendCQHandle = p.record.Handle, send.record.Handle
	} else {
		in.PDHandle = xrcd.handle
	}
	if receives {
		recv := find[completionQueue](b, uint64(attr.RecvCQ))
		if recv == nil {
			return 0, syscall.EINVAL
		}
		in.RecvCQHandle, in.MaxRecvWR, in.MaxRecvSGE = recv.record.Handle, attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE
	}
	if attr.SQSigAll != 0 {
		in.SQSigAll = 1
	}
	if attr.SRQ != 0 {
		s := find[sharedQueue](b, uint64(attr.SRQ))
		if s == nil {
			return 0, syscall.EINVAL
		}
		in.SRQHandle, in.IsSRQ = s.record.Handle, 1
	}
	record, errno := allocate[qpRecord](b)
	if errno != 0 {
		return 0, errno
	}
	in.UserHandle = addressOf(record)
	q := &queuePair{context: c, record: record}
	var out uapi.IBUverbsCreateQPResp
	var sent bool
	fail := func() {
		if sent {
			c.destroyQP(out.QPHandle)
		}
		if q.own != nil {
			q.own.Free()
		}
		free(b, record)
	}
	command := command(c, uapi.IB_USER_VERBS_CMD_CREATE_QP, &in, &out, &sent)
	if flags != nil {
		command = extendedCreation(c, &in, &out, *flags, &sent)
	}
	var td driver.TD
	if p != nil && p.td != nil {
		td = p.td.own
	}
	q.own, errno = create(td, &in, &out, command)
	if errno != 0 {
		fail()
		return 0, errno
	}
	record.QPBase = ibv.QP{Context: c.pointer(), QPContext: attr.QPContext, Handle: out.QPHandle, QPNum: out.QPN,
		QPType: attr.QPType, SRQ: attr.SRQ}
	if sends {
		record.QPBase.PD, record.QPBase.SendCQ = ibv.PtrTo(p.record), attr.SendCQ
	}
	if receives {
		record.QPBase.RecvCQ = attr.RecvCQ
	}
	cap := q.own.Cap(ibv.QPCap{MaxSendWR: out.MaxSendWR, MaxRecvWR: out.MaxRecvWR, MaxSendSGE: out.MaxSendSGE,
		MaxRecvSGE: out.MaxRecvSGE, MaxInlineData: out.MaxInlineData})
	if q.path, errno = q.own.Path(&record.QPBase, cap, attr.SQSigAll != 0); errno != 0 {
		fail()
		return 0, errno
	}
	attr.Cap = cap
	record.index = b.qps.add(q)
	c.uses.Add(1)
	if p != nil && p.in != nil {
		q.domain = p
		p.uses.Add(1)
	}
	b.enter(addressOf(record), q)
	return addressOf(record), 0
}

// extendedCreation is command for the extended command.
func extendedCreation(c *context, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, flags ibv.QPCreateFlags,
	sent *bool) driver.Command {
	return func(driverIn, driverOut []byte) syscall.Errno {
		x := uapi.IBUverbsExCreateQP{UserHandle: in.UserHandle, PDHandle: in.PDHandle, SendCQHandle: in.SendCQHandle,
			RecvCQHandle: in.RecvCQHandle, SRQHandle: in.SRQHandle, MaxSendWR: in.MaxSendWR, MaxRecvWR: in.MaxRecvWR,
			MaxSendSGE: in.MaxSendSGE, MaxRecvSGE: in.MaxRecvSGE, MaxInlineData: in.MaxInlineData, SQSigAll: in.SQSigAll,
			QPType: in.QPType, IsSRQ: in.IsSRQ, CreateFlags: uapi.IBUverbsQPCreateFlags(flags)}
		var answer uapi.IBUverbsExCreateQPResp
		errno := command(c, extended(uapi.IB_USER_VERBS_EX_CMD_CREATE_QP), &x, &answer, sent)(driverIn, driverOut)
		*out = answer.Base
		return errno
	}
}

func (c *context) destroyQP(handle uint32) (uapi.IBUverbsDestroyQPResp, syscall.Errno) {
	return write[uapi.IBUverbsDestroyQPResp](c, uapi.IB_USER_VERBS_CMD_DESTROY_QP,
		&uapi.IBUverbsDestroyQP{QPHandle: handle})
}

func (b *Backend) destroyQP(address uint64) syscall.Errno {
	q := find[queuePair](b, address)
	if q == nil {
		return syscall.EINVAL
	}
	var out uapi.IBUverbsDestroyQPResp
	if errno := q.own.End(func() (errno syscall.Errno) {
		out, errno = q.context.destroyQP(q.record.QPBase.Handle)
		return errno
	}); errno != 0 {
		return errno
	}
	b.settle(address, &q.acked, 0, out.EventsReported)
	b.qps.remove(q.record.index)
	q.own.Free()
	q.context.uses.Add(-1)
	if q.domain != nil {
		q.domain.uses.Add(-1)
	}
	free(b, q.record)
	return 0
}

func qpDest(a *ibv.AHAttr) uapi.IBUverbsQPDest {
	return uapi.IBUverbsQPDest{DGID: *a.GRH.DGID.Raw(), FlowLabel: a.GRH.FlowLabel, DLID: a.DLID,
		SGIDIndex: a.GRH.SGIDIndex, HopLimit: a.GRH.HopLimit, TrafficClass: a.GRH.TrafficClass, SL: a.SL,
		SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), IsGlobal: a.IsGlobal, PortNum: a.PortNum}
}

func fromQPDest(d *uapi.IBUverbsQPDest) ibv.AHAttr {
	a := ibv.AHAttr{DLID: d.DLID, SL: d.SL, SrcPathBits: d.SrcPathBits, StaticRate: ibv.Rate(d.StaticRate),
		IsGlobal: d.IsGlobal, PortNum: d.PortNum}
	*a.GRH.DGID.Raw() = d.DGID
	a.GRH.FlowLabel, a.GRH.SGIDIndex, a.GRH.HopLimit, a.GRH.TrafficClass = d.FlowLabel, d.SGIDIndex, d.HopLimit,
		d.TrafficClass
	return a
}

// modification has the attributes of a mask. The others may not be initialized.
func modification(attr *ibv.QPAttr, mask ibv.QPAttrMask) uapi.IBUverbsModifyQP {
	in := uapi.IBUverbsModifyQP{AttrMask: uint32(mask)}
	for _, set := range []struct {
		of   ibv.QPAttrMask
		copy func()
	}{
		{ibv.QP_STATE, func() { in.QPState = uint8(attr.QPState) }},
		{ibv.QP_CUR_STATE, func() { in.CurQPState = uint8(attr.CurQPState) }},
		{ibv.QP_EN_SQD_ASYNC_NOTIFY, func() { in.EnSQDAsyncNotify = attr.EnSQDAsyncNotify }},
		{ibv.QP_ACCESS_FLAGS, func() { in.QPAccessFlags = uapi.IBUverbsAccessFlags(attr.QPAccessFlags) }},
		{ibv.QP_PKEY_INDEX, func() { in.PKeyIndex = attr.PKeyIndex }},
		{ibv.QP_PORT, func() { in.PortNum = attr.PortNum }},
		{ibv.QP_QKEY, func() { in.QKey = attr.QKey }},
		{ibv.QP_AV, func() { in.Dest = qpDest(&attr.AHAttr) }},
		{ibv.QP_PATH_MTU, func() { in.PathMTU = uint8(attr.PathMTU) }},
		{ibv.QP_TIMEOUT, func() { in.Timeout = attr.Timeout }},
		{ibv.QP_RETRY_CNT, func() { in.RetryCnt = attr.RetryCnt }},
		{ibv.QP_RNR_RETRY, func() { in.RNRRetry = attr.RNRRetry }},
		{ibv.QP_RQ_PSN, func() { in.RQPSN = attr.RQPSN }},
		{ibv.QP_MAX_QP_RD_ATOMIC, func() { in.MaxRdAtomic = attr.MaxRdAtomic }},
		{ibv.QP_ALT_PATH, func() {
			in.AltPKeyIndex, in.AltPortNum, in.AltTimeout = attr.AltPKeyIndex, attr.AltPortNum, attr.AltTimeout
			in.AltDest = qpDest(&attr.AltAHAttr)
		}},
		{ibv.QP_MIN_RNR_TIMER, func() { in.MinRNRTimer = attr.MinRNRTimer }},
		{ibv.QP_SQ_PSN, func() { in.SQPSN = attr.SQPSN }},
		{ibv.QP_MAX_DEST_RD_ATOMIC, func() { in.MaxDestRdAtomic = attr.MaxDestRdAtomic }},
		{ibv.QP_PATH_MIG_STATE, func() { in.PathMigState = uint8(attr.PathMigState) }},
		{ibv.QP_DEST_QPN, func() { in.DestQPNum = attr.DestQPNum }},
	} {
		if mask&set.of != 0 {
			set.copy()
		}
	}
	return in
}

func (b *Backend) modifyQP(a []uint64) syscall.Errno {
	q := find[queuePair](b, a[0])
	if q == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	attr, mask := ibv.Ptr[ibv.QPAttr](a[1]).Deref(), ibv.QPAttrMask(uint32(a[2]))
	if mask&ibv.QP_RATE_LIMIT != 0 {
		return syscall.EOPNOTSUPP
	}
	in := modification(attr, mask)
	in.QPHandle = q.record.QPBase.Handle
	errno := q.change(&in, attr, mask)
	if errno == 0 && mask&ibv.QP_STATE != 0 {
		q.record.QPBase.State = attr.QPState
		if attr.QPState == ibv.QPS_RESET {
			q.own.Reset()
		}
		if r, ok := q.own.(driver.Receiver); ok && attr.QPState == ibv.QPS_RTR {
			r.Ready()
		}
	}
	return errno
}

// change sends the command for a change.
func (q *queuePair) change(in *uapi.IBUverbsModifyQP, attr *ibv.QPAttr, mask ibv.QPAttrMask) syscall.Errno {
	n, ok := q.own.(driver.Numbered)
	if !ok {
		_, errno := write[none](q.context, uapi.IB_USER_VERBS_CMD_MODIFY_QP, in)
		return errno
	}
	to := ibv.QPS_UNKNOWN
	if mask&ibv.QP_STATE != 0 {
		to = attr.QPState
	}
	var out uapi.IBUverbsExModifyQPResp
	var sent bool
	number, errno := n.Changed(to, command(q.context, extended(uapi.IB_USER_VERBS_EX_CMD_MODIFY_QP),
		&uapi.IBUverbsExModifyQP{Base: *in}, &out, &sent))
	if number != 0 {
		atomic.StoreUint32(&q.record.QPBase.QPNum, number) // completions may already name it
	}
	return errno
}

func (b *Backend) queryQP(a []uint64) syscall.Errno {
	q := find[queuePair](b, a[0])
	if q == nil || a[1] == 0 || a[3] == 0 {
		return syscall.EINVAL
	}
	const known = 1<<26 - 1 // attributes that a mask can have, ibv.QP_RATE_LIMIT the last of them
	if uint32(a[2])&^known != 0 {
		return syscall.EOPNOTSUPP
	}
	r, errno := write[uapi.IBUverbsQueryQPResp](q.context, uapi.IB_USER_VERBS_CMD_QUERY_QP,
		&uapi.IBUverbsQueryQP{QPHandle: q.record.QPBase.Handle, AttrMask: uint32(a[2])})
	if errno != 0 {
		return errno
	}
	cap := q.own.Cap(ibv.QPCap{MaxSendWR: r.MaxSendWR, MaxRecvWR: r.MaxRecvWR, MaxSendSGE: r.MaxSendSGE,
		MaxRecvSGE: r.MaxRecvSGE, MaxInlineData: r.MaxInlineData})
	*ibv.Ptr[ibv.QPAttr](a[1]).Deref() = ibv.QPAttr{
		QPState: ibv.QPState(r.QPState), CurQPState: ibv.QPState(r.CurQPState),
		PathMTU: ibv.MTU(r.PathMTU), PathMigState: ibv.MigState(r.PathMigState), QKey: r.QKey, RQPSN: r.RQPSN,
		SQPSN: r.SQPSN, DestQPNum: r.DestQPNum, QPAccessFlags: ibv.AccessFlags(r.QPAccessFlags), Cap: cap,
		AHAttr: fromQPDest(&r.Dest), AltAHAttr: fromQPDest(&r.AltDest), PKeyIndex: r.PKeyIndex,
		AltPKeyIndex: r.AltPKeyIndex, SQDraining: r.SQDraining, MaxRdAtomic: r.MaxRdAtomic,
		MaxDestRdAtomic: r.MaxDestRdAtomic, MinRNRTimer: r.MinRNRTimer, PortNum: r.PortNum, Timeout: r.Timeout,
		RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry, AltPortNum: r.AltPortNum, AltTimeout: r.AltTimeout}
	rec := &q.record.QPBase
	*ibv.Ptr[ibv.QPInitAttr](a[3]).Deref() = ibv.QPInitAttr{QPContext: rec.QPContext, SendCQ: rec.SendCQ,
		RecvCQ: rec.RecvCQ, SRQ: rec.SRQ, Cap: cap, QPType: rec.QPType, SQSigAll: int32(r.SQSigAll)}
	if ibv.QPAttrMask(uint32(a[2]))&ibv.QP_STATE != 0 {
		rec.State = ibv.QPState(r.QPState)
	}
	return 0
}

func (b *Backend) mcast(a []uint64, attach bool) syscall.Errno {
	q := find[queuePair](b, a[0])
	if q == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	in := uapi.IBUverbsAttachMcast{GID: *ibv.Ptr[ibv.GID](a[1]).Deref().Raw(), QPHandle: q.record.QPBase.Handle,
		MLID: uint16(a[2])}
	number := uapi.IB_USER_VERBS_CMD_DETACH_MCAST
	if attach {
		number = uapi.IB_USER_VERBS_CMD_ATTACH_MCAST
	}
	_, errno := write[none](q.context, number, &in)
	return errno
}

func (b *Backend) postSend(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.qpAt(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(q.path.PostSend(&q.record.QPBase, ibv.Ptr[ibv.SendWR](wr).Deref(), badAt[ibv.SendWR](bad))), 0
}

func (b *Backend) postRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.qpAt(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(q.path.PostRecv(&q.record.QPBase, ibv.Ptr[ibv.RecvWR](wr).Deref(), badAt[ibv.RecvWR](bad))), 0
}
