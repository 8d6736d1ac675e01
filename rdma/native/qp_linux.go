// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/rxe"
	"github.com/goverbs/goverbs/runtime"
)

// queuePair is a queue pair.
type queuePair struct {
	context *context
	record  *qpRecord
	limits  rxe.SendLimits
	recvs   uint32 // entries of a receive
	acked   reports

	send struct {
		mu       sync.Mutex
		queue    rxe.Queue
		mapping  []byte
		ssn      uint32
		doorbell command
	}
	recv struct {
		mu      sync.Mutex
		queue   rxe.Queue
		mapping []byte // nil with a shared receive queue
	}
}

type qpRecord struct {
	ibv.QP
	index uint32
}

// qpAt is cqAt for queue pairs.
func (b *Backend) qpAt(address uint64) *queuePair {
	q := b.qps.get(at[qpRecord](address).index)
	if q == nil || addressOf(q.record) != address {
		return nil
	}
	return q
}

func (b *Backend) createQP(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil || a[1] == 0 {
		return 0, syscall.EINVAL
	}
	attr := at[ibv.QPInitAttr](a[1])
	c := p.context
	send, recv := find[completionQueue](b, uint64(attr.SendCQ)), find[completionQueue](b, uint64(attr.RecvCQ))
	if send == nil || recv == nil {
		return 0, syscall.EINVAL
	}
	in := uapi.IBUverbsCreateQP{PDHandle: p.record.Handle, SendCQHandle: send.record.Handle,
		RecvCQHandle: recv.record.Handle, MaxSendWR: attr.Cap.MaxSendWR, MaxRecvWR: attr.Cap.MaxRecvWR,
		MaxSendSGE: attr.Cap.MaxSendSGE, MaxRecvSGE: attr.Cap.MaxRecvSGE, MaxInlineData: attr.Cap.MaxInlineData,
		QPType: uapi.IBUverbsQPType(attr.QPType)}
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
	out, driver, errno := write[uapi.IBUverbsCreateQPResp, uapi.RXECreateQPResp](&c.file,
		uapi.IB_USER_VERBS_CMD_CREATE_QP, &in, &none{})
	if errno != 0 {
		free(b, record)
		return 0, errno
	}
	q := &queuePair{context: c, record: record, limits: rxe.SendLimits{SGEs: out.MaxSendSGE, Inline: out.MaxInlineData},
		recvs: out.MaxRecvSGE}
	if errno := q.mapQueues(&driver, in.IsSRQ != 0, out.QPHandle); errno != 0 {
		q.unmap()
		c.destroyQP(out.QPHandle)
		free(b, record)
		return 0, errno
	}
	record.QP = ibv.QP{Context: c.pointer(), QPContext: attr.QPContext, PD: ibv.PtrTo(p.record), SendCQ: attr.SendCQ,
		RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Handle: out.QPHandle, QPNum: out.QPN, QPType: attr.QPType}
	attr.Cap = ibv.QPCap{MaxSendWR: out.MaxSendWR, MaxRecvWR: out.MaxRecvWR, MaxSendSGE: out.MaxSendSGE,
		MaxRecvSGE: out.MaxRecvSGE, MaxInlineData: out.MaxInlineData}
	record.index = b.qps.add(q)
	c.uses.Add(1)
	b.enter(addressOf(record), q)
	return addressOf(record), 0
}

func (q *queuePair) mapQueues(driver *uapi.RXECreateQPResp, shared bool, handle uint32) (errno syscall.Errno) {
	c := q.context
	if q.send.queue, q.send.mapping, errno = c.mapQueue(driver.SQMi, rxe.SendSize(q.limits)); errno != 0 {
		return errno
	}
	if !shared {
		if q.recv.queue, q.recv.mapping, errno = c.mapQueue(driver.RQMi, rxe.RecvSize(q.recvs)); errno != 0 {
			return errno
		}
	}
	// The doorbell is a post of no requests.
	d, errno := c.commands.get(uapi.UVERBS_OBJECT_DEVICE, uint16(uapi.UVERBS_METHOD_INVOKE_WRITE), c.driver)
	if errno != 0 {
		return errno
	}
	q.send.doorbell = d
	input(&q.send.doorbell, uint16(uapi.UVERBS_ATTR_CORE_IN),
		&uapi.IBUverbsPostSend{QPHandle: handle, WQESize: uint32(unsafe.Sizeof(uapi.IBUverbsSendWR{}))})
	output[uapi.IBUverbsPostSendResp](&q.send.doorbell, uint16(uapi.UVERBS_ATTR_CORE_OUT))
	q.send.doorbell.attr(uint16(uapi.UVERBS_ATTR_WRITE_CMD), 8, uint64(uapi.IB_USER_VERBS_CMD_POST_SEND))
	return 0
}

// unmap releases the queues. Posts in progress end first.
func (q *queuePair) unmap() {
	k := q.context.kernel
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	if q.send.mapping != nil {
		k.Munmap(q.send.mapping)
	}
	if q.recv.mapping != nil {
		k.Munmap(q.recv.mapping)
	}
	if q.send.doorbell.buffer != nil {
		q.context.commands.put(q.send.doorbell)
	}
	q.send.mapping, q.recv.mapping, q.send.doorbell = nil, nil, command{}
}

func (c *context) destroyQP(handle uint32) (uapi.IBUverbsDestroyQPResp, syscall.Errno) {
	out, _, errno := write[uapi.IBUverbsDestroyQPResp, none](&c.file, uapi.IB_USER_VERBS_CMD_DESTROY_QP,
		&uapi.IBUverbsDestroyQP{QPHandle: handle}, &none{})
	return out, errno
}

func (b *Backend) destroyQP(address uint64) syscall.Errno {
	q := find[queuePair](b, address)
	if q == nil {
		return syscall.EINVAL
	}
	out, errno := q.context.destroyQP(q.record.Handle)
	if errno != 0 {
		return errno
	}
	b.settle(address, &q.acked, 0, out.EventsReported)
	b.qps.remove(q.record.index)
	q.unmap()
	q.context.uses.Add(-1)
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

func (b *Backend) modifyQP(a []uint64) syscall.Errno {
	q := find[queuePair](b, a[0])
	if q == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	attr, mask := at[ibv.QPAttr](a[1]), ibv.QPAttrMask(uint32(a[2]))
	if mask&ibv.QP_RATE_LIMIT != 0 {
		return syscall.EOPNOTSUPP
	}
	in := uapi.IBUverbsModifyQP{QPHandle: q.record.Handle, AttrMask: uint32(mask), QKey: attr.QKey, RQPSN: attr.RQPSN,
		SQPSN: attr.SQPSN, DestQPNum: attr.DestQPNum, QPAccessFlags: uapi.IBUverbsAccessFlags(attr.QPAccessFlags),
		PKeyIndex: attr.PKeyIndex, AltPKeyIndex: attr.AltPKeyIndex, QPState: uint8(attr.QPState),
		CurQPState: uint8(attr.CurQPState), PathMTU: uint8(attr.PathMTU), PathMigState: uint8(attr.PathMigState),
		EnSQDAsyncNotify: attr.EnSQDAsyncNotify, MaxRdAtomic: attr.MaxRdAtomic, MaxDestRdAtomic: attr.MaxDestRdAtomic,
		MinRNRTimer: attr.MinRNRTimer, PortNum: attr.PortNum, Timeout: attr.Timeout, RetryCnt: attr.RetryCnt,
		RNRRetry: attr.RNRRetry, AltPortNum: attr.AltPortNum, AltTimeout: attr.AltTimeout}
	if mask&ibv.QP_AV != 0 {
		in.Dest = qpDest(&attr.AHAttr)
	}
	if mask&ibv.QP_ALT_PATH != 0 {
		in.AltDest = qpDest(&attr.AltAHAttr)
	}
	_, _, errno := write[none, none](&q.context.file, uapi.IB_USER_VERBS_CMD_MODIFY_QP, &in, &none{})
	if errno == 0 && mask&ibv.QP_STATE != 0 {
		q.record.State = attr.QPState
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
	r, _, errno := write[uapi.IBUverbsQueryQPResp, none](&q.context.file, uapi.IB_USER_VERBS_CMD_QUERY_QP,
		&uapi.IBUverbsQueryQP{QPHandle: q.record.Handle, AttrMask: uint32(a[2])}, &none{})
	if errno != 0 {
		return errno
	}
	cap := ibv.QPCap{MaxSendWR: r.MaxSendWR, MaxRecvWR: r.MaxRecvWR, MaxSendSGE: r.MaxSendSGE, MaxRecvSGE: r.MaxRecvSGE,
		MaxInlineData: r.MaxInlineData}
	*at[ibv.QPAttr](a[1]) = ibv.QPAttr{QPState: ibv.QPState(r.QPState), CurQPState: ibv.QPState(r.CurQPState),
		PathMTU: ibv.MTU(r.PathMTU), PathMigState: ibv.MigState(r.PathMigState), QKey: r.QKey, RQPSN: r.RQPSN,
		SQPSN: r.SQPSN, DestQPNum: r.DestQPNum, QPAccessFlags: ibv.AccessFlags(r.QPAccessFlags), Cap: cap,
		AHAttr: fromQPDest(&r.Dest), AltAHAttr: fromQPDest(&r.AltDest), PKeyIndex: r.PKeyIndex,
		AltPKeyIndex: r.AltPKeyIndex, SQDraining: r.SQDraining, MaxRdAtomic: r.MaxRdAtomic,
		MaxDestRdAtomic: r.MaxDestRdAtomic, MinRNRTimer: r.MinRNRTimer, PortNum: r.PortNum, Timeout: r.Timeout,
		RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry, AltPortNum: r.AltPortNum, AltTimeout: r.AltTimeout}
	rec := &q.record.QP
	*at[ibv.QPInitAttr](a[3]) = ibv.QPInitAttr{QPContext: rec.QPContext, SendCQ: rec.SendCQ, RecvCQ: rec.RecvCQ,
		SRQ: rec.SRQ, Cap: cap, QPType: rec.QPType, SQSigAll: int32(r.SQSigAll)}
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
	in := uapi.IBUverbsAttachMcast{GID: *at[ibv.GID](a[1]).Raw(), QPHandle: q.record.Handle, MLID: uint16(a[2])}
	number := uapi.IB_USER_VERBS_CMD_DETACH_MCAST
	if attach {
		number = uapi.IB_USER_VERBS_CMD_ATTACH_MCAST
	}
	_, _, errno := write[none, none](&q.context.file, number, &in, &none{})
	return errno
}

// setBad stores the request that was not posted.
func setBad(errno syscall.Errno, bad, wr uint64) uint64 {
	if errno != 0 && bad != 0 {
		*at[uint64](bad) = wr
	}
	return uint64(errno)
}

func (b *Backend) postSend(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.qpAt(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mapping == nil {
		return setBad(syscall.EINVAL, bad, wr), 0
	}
	n, errno := 0, syscall.Errno(0)
	if q.record.State < ibv.QPS_RTS { // the driver would execute the requests later
		errno = syscall.EINVAL
	}
	for ; errno == 0 && wr != 0; n++ {
		request := at[ibv.SendWR](wr)
		element := s.queue.Free()
		if element == nil {
			errno = syscall.ENOMEM
			break
		}
		number, ok := b.named(q, request)
		if !ok || !rxe.FillSend(element, request, q.limits, q.record.QPType, number, s.ssn) {
			errno = syscall.EINVAL
			break
		}
		s.ssn++
		s.queue.Push()
		wr = uint64(request.Next)
	}
	if n > 0 {
		if e := s.doorbell.run(q.context.kernel, q.context.fd); e != 0 && errno == 0 {
			errno = e
		}
	}
	return setBad(errno, bad, wr), 0
}

// named checks the objects that a request names. It returns the number of a datagram's address handle.
func (b *Backend) named(q *queuePair, wr *ibv.SendWR) (number uint32, ok bool) {
	if q.record.QPType == ibv.QPT_UD {
		h := find[handle](b, uint64(wr.WR.UD().AH))
		if h == nil {
			return 0, false
		}
		return h.number, true
	}
	if wr.Opcode == ibv.WR_BIND_MW {
		bind := wr.BindMW()
		return 0, find[window](b, uint64(bind.MW)) != nil &&
			(bind.BindInfo.MR == 0 || find[region](b, uint64(bind.BindInfo.MR)) != nil)
	}
	return 0, true
}

func (b *Backend) postRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.qpAt(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	r := &q.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapping == nil || q.record.State == ibv.QPS_RESET {
		return setBad(syscall.EINVAL, bad, wr), 0
	}
	errno, wr := postReceives(&r.queue, q.recvs, wr)
	return setBad(errno, bad, wr), 0
}

// postReceives posts a list, and returns the request that it could not post.
func postReceives(to *rxe.Queue, sges uint32, wr uint64) (syscall.Errno, uint64) {
	for wr != 0 {
		request := at[ibv.RecvWR](wr)
		element := to.Free()
		if element == nil {
			return syscall.ENOMEM, wr
		}
		if !rxe.FillRecv(element, request, sges) {
			return syscall.EINVAL, wr
		}
		to.Push()
		wr = uint64(request.Next)
	}
	return 0, 0
}
