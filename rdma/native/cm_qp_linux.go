// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

func fromAHAttr(a *uapi.IBUverbsAHAttr) ibv.AHAttr {
	to := ibv.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: ibv.Rate(a.StaticRate),
		IsGlobal: a.IsGlobal, PortNum: a.PortNum}
	*to.GRH.DGID.Raw() = a.GRH.DGID
	to.GRH.FlowLabel, to.GRH.SGIDIndex, to.GRH.HopLimit, to.GRH.TrafficClass = a.GRH.FlowLabel, a.GRH.SGIDIndex,
		a.GRH.HopLimit, a.GRH.TrafficClass
	return to
}

// qpAttr returns the attributes that move the identifier's queue pair to a state.
func (id *identifier) qpAttr(state ibv.QPState) (ibv.QPAttr, ibv.QPAttrMask, syscall.Errno) {
	in := uapi.RDMAUCMInitQPAttr{ID: id.number, QPState: uint32(state)}
	r, errno := manage[uapi.IBUverbsQPAttr](id.backend, id.channelNow(), uapi.RDMA_USER_CM_CMD_INIT_QP_ATTR, &in,
		&in.Response)
	if errno != 0 {
		return ibv.QPAttr{}, 0, errno
	}
	return ibv.QPAttr{QPState: ibv.QPState(r.QPState), CurQPState: ibv.QPState(r.CurQPState), PathMTU: ibv.MTU(r.PathMTU),
		PathMigState: ibv.MigState(r.PathMigState), QKey: r.QKey, RQPSN: r.RQPSN, SQPSN: r.SQPSN, DestQPNum: r.DestQPNum,
		QPAccessFlags: ibv.AccessFlags(r.QPAccessFlags), Cap: ibv.QPCap{MaxSendWR: r.MaxSendWR, MaxRecvWR: r.MaxRecvWR,
			MaxSendSGE: r.MaxSendSGE, MaxRecvSGE: r.MaxRecvSGE, MaxInlineData: r.MaxInlineData},
		AHAttr: fromAHAttr(&r.AHAttr), AltAHAttr: fromAHAttr(&r.AltAHAttr), PKeyIndex: r.PKeyIndex,
		AltPKeyIndex: r.AltPKeyIndex, EnSQDAsyncNotify: r.EnSQDAsyncNotify, SQDraining: r.SQDraining,
		MaxRdAtomic: r.MaxRdAtomic, MaxDestRdAtomic: r.MaxDestRdAtomic, MinRNRTimer: r.MinRNRTimer, PortNum: r.PortNum,
		Timeout: r.Timeout, RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry, AltPortNum: r.AltPortNum,
		AltTimeout: r.AltTimeout}, ibv.QPAttrMask(r.QPAttrMask), 0
}

func (id *identifier) initQPAttr(a []uint64) syscall.Errno {
	if a[0] == 0 || a[1] == 0 {
		return syscall.EINVAL
	}
	attr, mask, errno := id.qpAttr(ibv.Ptr[ibv.QPAttr](a[0]).Deref().QPState)
	if errno == 0 {
		*ibv.Ptr[ibv.QPAttr](a[0]).Deref(), *ibv.Ptr[int32](a[1]).Deref() = attr, int32(mask)
	}
	return errno
}

// modify moves a queue pair.
func (b *Backend) modify(qp uint64, attr ibv.QPAttr, mask ibv.QPAttrMask) syscall.Errno {
	own, errno := allocate[ibv.QPAttr](b)
	if errno != 0 {
		return errno
	}
	defer free(b, own)
	*own = attr
	return b.modifyQP([]uint64{qp, addressOf(own), uint64(mask)})
}

// ready moves the identifier's queue pair, if any, to RTS. It first repeats the move to INIT, whose attributes depend
// on the connection: before there is one, they allow no reads. 255 reads mean the kernel's number.
func (id *identifier) ready(initiator, responder uint8) syscall.Errno {
	qp := uint64(id.record.QP)
	if qp == 0 {
		return 0
	}
	for _, to := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		attr, mask, errno := id.qpAttr(to)
		if errno != 0 {
			return errno
		}
		if to == ibv.QPS_RTR && responder != 255 {
			attr.MaxDestRdAtomic = responder
		}
		if to == ibv.QPS_RTS && initiator != 255 {
			attr.MaxRdAtomic = initiator
		}
		if errno := id.backend.modify(qp, attr, mask); errno != 0 {
			return errno
		}
	}
	return 0
}

// toError moves the identifier's queue pair, if any, to ERR.
func (id *identifier) toError() syscall.Errno { return id.moveTo(ibv.QPS_ERR) }

func (id *identifier) moveTo(state ibv.QPState) syscall.Errno {
	if id.record.QP == 0 {
		return 0
	}
	return id.backend.modify(uint64(id.record.QP), ibv.QPAttr{QPState: state}, ibv.QP_STATE)
}

// createQP is rdma_create_qp.
func (id *identifier) createQP(a []uint64) syscall.Errno {
	if a[1] == 0 {
		return syscall.EINVAL
	}
	return id.createPlainQP(a[0], ibv.Ptr[ibv.QPInitAttr](a[1]).Deref())
}

func (id *identifier) createPlainQP(pd uint64, attr *ibv.QPInitAttr) syscall.Errno {
	ex := ibv.QPInitAttrEx{QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ,
		Cap: attr.Cap, QPType: attr.QPType, SQSigAll: attr.SQSigAll, CompMask: ibv.QP_INIT_ATTR_PD,
		PD: ibv.Ptr[ibv.PD](pd)}
	errno := id.createAnyQP(&ex)
	attr.SendCQ, attr.RecvCQ, attr.SRQ, attr.Cap = ex.SendCQ, ex.RecvCQ, ex.SRQ, ex.Cap
	return errno
}

// createQPEx is rdma_create_qp_ex.
func (id *identifier) createQPEx(a []uint64) syscall.Errno {
	if a[0] == 0 {
		return syscall.EINVAL
	}
	return id.createAnyQP(ibv.Ptr[ibv.QPInitAttrEx](a[0]).Deref())
}

func (id *identifier) createAnyQP(attr *ibv.QPInitAttrEx) syscall.Errno {
	b, r := id.backend, id.record
	if r.QP != 0 || r.Verbs == 0 {
		return syscall.EINVAL
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.QP_INIT_ATTR_PD, r.PD
	} else if p := find[domain](b, uint64(attr.PD)); p == nil || p.record.Context != r.Verbs {
		return syscall.EINVAL
	}
	if r.RecvCQ != 0 && attr.RecvCQ != 0 && r.RecvCQ != attr.RecvCQ || r.SendCQ != 0 && attr.SendCQ != 0 &&
		r.SendCQ != attr.SendCQ {
		return syscall.EINVAL
	}
	if r.QPType == ibv.QPT_XRC_RECV && (attr.CompMask&ibv.QP_INIT_ATTR_XRCD == 0 || attr.XRCD == 0) {
		xrcd, errno := b.managedXRCD(id.device)
		if errno != 0 {
			return errno
		}
		attr.CompMask, attr.XRCD = attr.CompMask|ibv.QP_INIT_ATTR_XRCD, ibv.Ptr[ibv.XRCD](xrcd)
	}
	if errno := id.createCQs(attr.SendCQ == 0 && r.SendCQ == 0, attr.Cap.MaxSendWR, attr.RecvCQ == 0 && r.RecvCQ == 0,
		attr.Cap.MaxRecvWR); errno != 0 {
		return errno
	}
	if attr.SendCQ == 0 {
		attr.SendCQ = r.SendCQ
	}
	if attr.RecvCQ == 0 {
		attr.RecvCQ = r.RecvCQ
	}
	if attr.SRQ == 0 {
		attr.SRQ = r.SRQ
	}
	qp, errno := b.newIDQP(r.Verbs, attr)
	if errno != 0 {
		id.destroyCQs()
		return errno
	}
	if errno := id.initQP(qp); errno != 0 {
		b.destroyQP(qp)
		id.destroyCQs()
		return errno
	}
	r.QP, r.PD = ibv.Ptr[ibv.QP](qp), attr.PD
	return 0
}

// newIDQP creates a queue pair, and stores its capacities in attr.
func (b *Backend) newIDQP(of ibv.Ptr[ibv.Context], attr *ibv.QPInitAttrEx) (uint64, syscall.Errno) {
	own, errno := allocate[ibv.QPInitAttrEx](b) // Go's stack may move
	if errno != 0 {
		return 0, errno
	}
	defer free(b, own)
	*own = *attr
	qp, errno := b.createQPEx(uint64(of), addressOf(own), 0, 0, 0, 0)
	*attr = *own
	return qp, errno
}

// initQP moves a new queue pair to INIT, or for datagrams to RTS.
func (id *identifier) initQP(qp uint64) syscall.Errno {
	b := id.backend
	attr, mask, errno := id.qpAttr(ibv.QPS_INIT)
	if errno == 0 {
		errno = b.modify(qp, attr, mask)
	}
	if errno != 0 || !id.datagrams() {
		return errno
	}
	if errno := b.modify(qp, ibv.QPAttr{QPState: ibv.QPS_RTR}, ibv.QP_STATE); errno != 0 {
		return errno
	}
	return b.modify(qp, ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE|ibv.QP_SQ_PSN)
}

// createCQs creates the missing completion queues of a queue pair, each with a channel.
func (id *identifier) createCQs(send bool, sends uint32, recv bool, recvs uint32) syscall.Errno {
	b, r := id.backend, id.record
	for _, side := range []struct {
		wanted  bool
		entries uint32
		channel *ibv.Ptr[ibv.CompChannel]
		cq      *ibv.Ptr[ibv.CQ]
	}{{recv, recvs, &r.RecvCQChannel, &r.RecvCQ}, {send, sends, &r.SendCQChannel, &r.SendCQ}} {
		if !side.wanted || side.entries == 0 {
			continue
		}
		channel, errno := b.createChannel([]uint64{uint64(r.Verbs)})
		if errno == 0 {
			*side.channel = ibv.Ptr[ibv.CompChannel](channel)
			var cq uint64
			cq, errno = b.createCQ([]uint64{uint64(r.Verbs), uint64(side.entries), addressOf(r), channel, 0})
			*side.cq = ibv.Ptr[ibv.CQ](cq)
		}
		if errno != 0 {
			id.destroyCQs()
			return errno
		}
	}
	return 0
}

// destroyCQs destroys the completion queues that createCQs created.
func (id *identifier) destroyCQs() {
	b, r := id.backend, id.record
	if r.QPType == ibv.QPT_XRC_RECV && r.SRQ != 0 { // its receives complete there
		return
	}
	for _, cq := range slices.Compact([]ibv.Ptr[ibv.CQ]{r.RecvCQ, r.SendCQ}) {
		b.destroyCQ(uint64(cq))
	}
	for _, channel := range slices.Compact([]ibv.Ptr[ibv.CompChannel]{r.RecvCQChannel, r.SendCQChannel}) {
		b.destroyChannel(uint64(channel))
	}
	r.RecvCQ, r.SendCQ, r.RecvCQChannel, r.SendCQChannel = 0, 0, 0, 0
}

// destroyQP is rdma_destroy_qp.
func (id *identifier) destroyQP() {
	id.backend.destroyQP(uint64(id.record.QP))
	id.record.QP = 0
	id.destroyCQs()
}

// createSRQ is rdma_create_srq.
func (id *identifier) createSRQ(a []uint64) syscall.Errno {
	if a[1] == 0 {
		return syscall.EINVAL
	}
	attr := ibv.Ptr[ibv.SRQInitAttr](a[1]).Deref()
	ex := ibv.SRQInitAttrEx{SRQContext: attr.SRQContext, Attr: attr.Attr, SRQType: ibv.SRQT_BASIC,
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD, PD: ibv.Ptr[ibv.PD](a[0])}
	if id.record.QPType == ibv.QPT_XRC_RECV {
		ex.SRQType = ibv.SRQT_XRC
	}
	errno := id.createAnySRQ(&ex)
	attr.Attr = ex.Attr
	return errno
}

// createSRQEx is rdma_create_srq_ex for basic queues and those of XRC.
func (id *identifier) createSRQEx(a []uint64) syscall.Errno {
	if a[0] == 0 {
		return syscall.EINVAL
	}
	return id.createAnySRQ(ibv.Ptr[ibv.SRQInitAttrEx](a[0]).Deref())
}

func (id *identifier) createAnySRQ(attr *ibv.SRQInitAttrEx) syscall.Errno {
	b, r := id.backend, id.record
	if r.Verbs == 0 || attr.CompMask&ibv.SRQ_INIT_ATTR_TYPE == 0 {
		return syscall.EINVAL
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.SRQ_INIT_ATTR_PD, r.PD
	}
	if attr.SRQType == ibv.SRQT_XRC {
		if errno := id.xrcParts(attr); errno != 0 {
			return errno
		}
	}
	srq, errno := b.newIDSRQ(r.Verbs, attr)
	if errno != 0 {
		id.destroyCQs()
		return errno
	}
	r.SRQ = ibv.Ptr[ibv.SRQ](srq)
	return 0
}

// newIDSRQ creates a shared receive queue, and stores its capacities in attr.
func (b *Backend) newIDSRQ(of ibv.Ptr[ibv.Context], attr *ibv.SRQInitAttrEx) (srq uint64, errno syscall.Errno) {
	if attr.SRQType == ibv.SRQT_BASIC && attr.CompMask&^(ibv.SRQ_INIT_ATTR_TYPE|ibv.SRQ_INIT_ATTR_PD) == 0 {
		plain, errno := allocate[ibv.SRQInitAttr](b)
		if errno != 0 {
			return 0, errno
		}
		defer free(b, plain)
		*plain = ibv.SRQInitAttr{SRQContext: attr.SRQContext, Attr: attr.Attr}
		srq, errno = b.createSRQ([]uint64{uint64(attr.PD), addressOf(plain)})
		attr.Attr = plain.Attr
		return srq, errno
	}
	own, errno := allocate[ibv.SRQInitAttrEx](b) // Go's stack may move
	if errno != 0 {
		return 0, errno
	}
	defer free(b, own)
	*own = *attr
	srq, errno = b.createSRQEx(uint64(of), addressOf(own), 0, 0, 0, 0)
	*attr = *own
	return srq, errno
}

// xrcParts sets the missing parts of an XRC shared receive queue: the domain of all identifiers on the device, and a
// completion queue.
func (id *identifier) xrcParts(attr *ibv.SRQInitAttrEx) syscall.Errno {
	if attr.CompMask&ibv.SRQ_INIT_ATTR_XRCD == 0 || attr.XRCD == 0 {
		xrcd, errno := id.backend.managedXRCD(id.device)
		if errno != 0 {
			return errno
		}
		attr.XRCD = ibv.Ptr[ibv.XRCD](xrcd)
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_CQ == 0 || attr.CQ == 0 {
		if errno := id.createCQs(false, 0, true, attr.Attr.MaxWR); errno != 0 {
			return errno
		}
		attr.CQ = id.record.RecvCQ
	}
	attr.CompMask |= ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ
	return 0
}

// destroySRQ is rdma_destroy_srq.
func (id *identifier) destroySRQ() {
	id.backend.destroySRQ(uint64(id.record.SRQ))
	id.record.SRQ = 0
	id.destroyCQs()
}
