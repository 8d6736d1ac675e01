// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// qp returns the identifier's queue pair, or nil. It is stored in the record, where the program may change it.
func (id *identifier) qp() *verbs.QP {
	return verbs.Find[verbs.QP](uint64(id.record.QP))
}

// qpAttr returns the attributes that move the identifier's queue pair to a state from the previous one. It is called
// with the fabric's lock.
func (id *identifier) qpAttr(to ibv.QPState) (attr ibv.QPAttr, mask ibv.QPAttrMask, errno runtime.Errno) {
	connecting := id.state >= requesting && id.state <= left && !id.datagrams()
	from := map[ibv.QPState]ibv.QPState{ibv.QPS_INIT: ibv.QPS_RESET, ibv.QPS_RTR: ibv.QPS_INIT,
		ibv.QPS_RTS: ibv.QPS_RTR}
	if _, ok := from[to]; id.device == nil || connecting && !ok {
		return attr, 0, syscall.EINVAL
	}
	attr.QPState = to
	if !connecting { // no peer yet
		attr.PortNum, attr.QKey = verbs.PortNum, rdmacm.UDP_QKEY
		mask, _, _ = ibv.ModifyQPMask(id.kind, ibv.QPS_RESET, ibv.QPS_INIT)
		return attr, mask | ibv.QP_STATE, 0
	}
	if to != ibv.QPS_INIT && (id.state == requesting || id.state == left) {
		return attr, 0, syscall.EINVAL
	}
	attr.PortNum, attr.QPAccessFlags = verbs.PortNum, ibv.ACCESS_REMOTE_WRITE
	if id.responder > 0 {
		// as on Linux since 6.2 for a device with flush
		attr.QPAccessFlags |= ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_FLUSH_GLOBAL |
			ibv.ACCESS_FLUSH_PERSISTENT
	}
	if to != ibv.QPS_INIT {
		attr.AHAttr, attr.PathMTU = id.av(id.gidOfPeer()), id.mtu()
		attr.DestQPNum, attr.RQPSN, attr.MaxDestRdAtomic = id.peerQPN, id.psn, id.responder
		attr.SQPSN, attr.MaxRdAtomic = id.peerPSN, id.initiator
		attr.Timeout, attr.RetryCnt, attr.RNRRetry = id.timeout, id.retries, id.notReadyRetries
	}
	mask, _, _ = ibv.ModifyQPMask(id.kind, from[to], to)
	return attr, mask | ibv.QP_STATE, 0
}

// initQPAttr is rdma_init_qp_attr.
func initQPAttr(id *identifier, to ibv.Ptr[ibv.QPAttr], maskTo ibv.Ptr[int32]) runtime.Errno {
	if to == 0 || maskTo == 0 {
		return syscall.EINVAL
	}
	attr, mask, errno := id.qpAttr(to.Deref().QPState)
	if errno != 0 {
		return errno
	}
	*to.Deref(), *maskTo.Deref() = attr, int32(mask)
	return 0
}

// modify moves the identifier's queue pair to a state. It is called without the fabric's lock.
func (id *identifier) modify(q *verbs.QP, to ibv.QPState) (errno runtime.Errno) {
	var attr ibv.QPAttr
	var mask ibv.QPAttrMask
	id.locked(func() runtime.Errno {
		attr, mask, errno = id.qpAttr(to)
		return 0
	})
	if errno != 0 || mask == 0 {
		return errno
	}
	return q.Transit(&attr, mask)
}

// ready moves the identifier's queue pair, if any, to RTS. It first repeats the move to INIT, now that the peer is
// known.
func (id *identifier) ready() runtime.Errno {
	q := id.qp()
	if q == nil {
		return 0
	}
	for _, to := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		if errno := id.modify(q, to); errno != 0 {
			return errno
		}
	}
	return 0
}

// toError moves the identifier's queue pair, if any, to ERR.
func (id *identifier) toError() runtime.Errno {
	if q := id.qp(); q != nil {
		return q.Transit(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE)
	}
	return 0
}

// breakQP is toError with the fabric's lock.
func (id *identifier) breakQP() {
	if q := id.qp(); q != nil {
		q.BreakNow()
	}
}

// createQP is rdma_create_qp.
func createQP(id *identifier, pd ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.QPInitAttr]) runtime.Errno {
	if init == 0 {
		return syscall.EINVAL
	}
	return id.createPlainQP(pd, init.Deref())
}

func (id *identifier) createPlainQP(pd ibv.Ptr[ibv.PD], attr *ibv.QPInitAttr) runtime.Errno {
	ex := &ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
		CompMask: ibv.QP_INIT_ATTR_PD, PD: pd,
	}
	errno := id.createQP(ex)
	attr.SendCQ, attr.RecvCQ, attr.SRQ, attr.Cap = ex.SendCQ, ex.RecvCQ, ex.SRQ, ex.Cap
	return errno
}

// createQP is rdma_create_qp_ex.
func (id *identifier) createQP(attr *ibv.QPInitAttrEx) runtime.Errno {
	r := id.record
	c := verbs.Find[verbs.Context](uint64(r.Verbs))
	if r.QP != 0 || c == nil {
		return syscall.EINVAL
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.QP_INIT_ATTR_PD, r.PD
	} else if p := verbs.Find[verbs.PD](uint64(attr.PD)); p == nil || p.Context != c {
		return syscall.EINVAL
	}
	if r.RecvCQ != 0 && attr.RecvCQ != 0 && r.RecvCQ != attr.RecvCQ || r.SendCQ != 0 && attr.SendCQ != 0 &&
		r.SendCQ != attr.SendCQ {
		return syscall.EINVAL
	}
	if id.kind == ibv.QPT_XRC_RECV && (attr.CompMask&ibv.QP_INIT_ATTR_XRCD == 0 || attr.XRCD == 0) {
		domain, errno := id.xrcDomain()
		if errno != 0 {
			return errno
		}
		attr.CompMask, attr.XRCD = attr.CompMask|ibv.QP_INIT_ATTR_XRCD, domain
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
	address, errno := verbs.CreateQPEx(c, attr)
	if errno != 0 {
		id.destroyCQs()
		return errno
	}
	q := verbs.Find[verbs.QP](address)
	states := []ibv.QPState{ibv.QPS_INIT}
	if id.datagrams() {
		states = append(states, ibv.QPS_RTR, ibv.QPS_RTS)
	}
	for _, to := range states {
		if to == ibv.QPS_INIT {
			errno = id.modify(q, to)
		} else {
			mask, _, _ := ibv.ModifyQPMask(id.kind, to-1, to)
			errno = q.Transit(&ibv.QPAttr{QPState: to}, mask|ibv.QP_STATE)
		}
		if errno != 0 {
			verbs.DestroyQP(ibv.Ptr[ibv.QP](address))
			id.destroyCQs()
			return errno
		}
	}
	id.ece = eceOptions{} // the device supports no ECE
	id.cm.Lock()          // events use it
	defer id.cm.Unlock()
	r.QP, r.PD = ibv.Ptr[ibv.QP](address), attr.PD
	return 0
}

// createCQs creates the missing completion queues of a queue pair, each with a channel.
func (id *identifier) createCQs(send bool, sends uint32, recv bool, recvs uint32) runtime.Errno {
	r := id.record
	for _, side := range []struct {
		wanted  bool
		entries uint32
		channel *ibv.Ptr[ibv.CompChannel]
		cq      *ibv.Ptr[ibv.CQ]
	}{{recv, recvs, &r.RecvCQChannel, &r.RecvCQ}, {send, sends, &r.SendCQChannel, &r.SendCQ}} {
		if !side.wanted || side.entries == 0 {
			continue
		}
		channel, errno := verbs.CreateChannel(r.Verbs)
		if errno == 0 {
			*side.channel = ibv.Ptr[ibv.CompChannel](channel)
			var cq uint64
			cq, errno = verbs.CreateCQ(r.Verbs, int32(side.entries), uintptr(mem.AddressOf(r)), *side.channel, 0)
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
	r := id.record
	if id.kind == ibv.QPT_XRC_RECV && r.SRQ != 0 { // its receives complete there
		return
	}
	for _, cq := range slices.Compact([]ibv.Ptr[ibv.CQ]{r.RecvCQ, r.SendCQ}) {
		verbs.DestroyCQ(cq)
	}
	for _, channel := range slices.Compact([]ibv.Ptr[ibv.CompChannel]{r.RecvCQChannel, r.SendCQChannel}) {
		verbs.DestroyChannel(channel)
	}
	r.RecvCQ, r.SendCQ, r.RecvCQChannel, r.SendCQChannel = 0, 0, 0, 0
}

// destroyQP is rdma_destroy_qp.
func destroyQP(id *identifier) runtime.Errno {
	verbs.DestroyQP(id.record.QP)
	id.record.QP = 0
	id.destroyCQs()
	return 0
}
