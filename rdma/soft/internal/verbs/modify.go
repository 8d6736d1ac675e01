// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// modifyQP implements ibv_modify_qp.
func modifyQP(of ibv.Ptr[qpRecord], to ibv.Ptr[ibv.QPAttr], mask ibv.QPAttrMask) runtime.Errno {
	q := FindQP(of)
	if q == nil || to == 0 {
		return syscall.EINVAL
	}
	return q.modify(of.Deref(), to.Deref(), mask)
}

// modify changes attributes and the state, and updates the record of the handle.
func (q *QP) modify(record *qpRecord, attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	f := q.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	if FindQP(mem.AddressOf(record)) != q { // another goroutine destroyed it
		return syscall.EINVAL
	}
	if q.Device.Gone {
		return syscall.EIO
	}
	from, to := q.State, q.State
	if mask&ibv.QP_CUR_STATE != 0 && attr.CurQPState != from {
		return syscall.EINVAL
	}
	if mask&ibv.QP_STATE != 0 {
		to = attr.QPState
	}
	mask = q.answersTo(mask)
	required, optional, ok := q.takesMask(from, to)
	if !ok || mask&required != required || mask&^(required|optional|ibv.QP_STATE) != 0 {
		return syscall.EINVAL
	}
	if from == ibv.QPS_SQD && q.Attr.SQDraining != 0 && to != ibv.QPS_ERR && to != ibv.QPS_RESET {
		return syscall.EINVAL
	}
	if errno := q.check(attr, mask); errno != 0 {
		return errno
	}
	q.Set(attr, mask)
	if to != from {
		q.SetState(to)
	} else if to == ibv.QPS_RTS {
		f.Ready = append(f.Ready, q)
	}
	if mask&ibv.QP_STATE != 0 {
		record.QPBase.State = to
	}
	if to == ibv.QPS_RTR {
		record.QPBase.QPNum = q.Number // a target of dynamic connections gets it here
	}
	return 0
}

// answersTo removes attributes of the other end of an XRC connection: programs set them as for RC, and the kernel's
// uverbs ignores them.
func (q *QP) answersTo(mask ibv.QPAttrMask) ibv.QPAttrMask {
	switch q.Kind {
	case ibv.QPT_XRC_SEND:
		return mask &^ (ibv.QP_MAX_DEST_RD_ATOMIC | ibv.QP_MIN_RNR_TIMER)
	case ibv.QPT_XRC_RECV:
		return mask &^ (ibv.QP_MAX_QP_RD_ATOMIC | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY)
	}
	return mask
}

// qpAccess are the access flags of queue pairs.
const qpAccess = resource.QueueAccess | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
	ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_FLUSH_PERSISTENT

// check checks the values of attributes.
func (q *QP) check(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	has := func(one ibv.QPAttrMask) bool { return mask&one != 0 }
	switch {
	case has(ibv.QP_PORT) && attr.PortNum != PortNum,
		has(ibv.QP_PKEY_INDEX) && int(attr.PKeyIndex) >= len(q.Device.PKeys),
		has(ibv.QP_ACCESS_FLAGS) && attr.QPAccessFlags&^qpAccess != 0,
		has(ibv.QP_AV) && q.Dynamic == nil && q.Device.checkAH(&attr.AHAttr) != 0, // dynamic ones have no peer here
		has(ibv.QP_PATH_MTU) && (attr.PathMTU < ibv.MTU_256 || attr.PathMTU > q.Device.MTU),
		has(ibv.QP_DEST_QPN) && attr.DestQPNum > engine.PSNMask,
		has(ibv.QP_TIMEOUT) && attr.Timeout > 31,
		has(ibv.QP_RETRY_CNT) && attr.RetryCnt > 7,
		has(ibv.QP_RNR_RETRY) && attr.RNRRetry > 7,
		has(ibv.QP_MIN_RNR_TIMER) && attr.MinRNRTimer > 31,
		has(ibv.QP_MAX_QP_RD_ATOMIC) && attr.MaxRdAtomic > MaxReads,
		has(ibv.QP_MAX_DEST_RD_ATOMIC) && attr.MaxDestRdAtomic > MaxReads,
		has(ibv.QP_PATH_MIG_STATE) && attr.PathMigState > ibv.MIG_ARMED,
		has(ibv.QP_ALT_PATH), // there is no migration here
		has(ibv.QP_CAP),      // nor queues that grow
		has(ibv.QP_RATE_LIMIT):
		return syscall.EINVAL
	}
	return 0
}

// queryQP implements ibv_query_qp: all attributes, whatever the mask.
func queryQP(of ibv.Ptr[qpRecord], to ibv.Ptr[ibv.QPAttr], mask ibv.QPAttrMask,
	initTo ibv.Ptr[ibv.QPInitAttr]) runtime.Errno {
	if to == 0 || initTo == 0 {
		return syscall.EINVAL
	}
	q := lockedQP(of)
	if q == nil {
		return syscall.EINVAL
	}
	defer q.Fabric().Unlock()
	if mask&^(ibv.QP_RATE_LIMIT<<1-1) != 0 {
		return syscall.EOPNOTSUPP
	}
	attr := q.Attr
	attr.QPState, attr.CurQPState, attr.Cap = q.State, q.State, q.Cap
	attr.SQPSN, attr.RQPSN = q.PSNs()
	attr.PathMTU = max(attr.PathMTU, ibv.MTU_256)        // a value of the type, also before it is set
	attr.AHAttr.IsGlobal, attr.AltAHAttr.IsGlobal = 1, 1 // as all are over Ethernet
	*to.Deref() = attr
	base := &of.Deref().QPBase
	init := ibv.QPInitAttr{QPContext: base.QPContext, SendCQ: base.SendCQ, RecvCQ: base.RecvCQ, SRQ: base.SRQ,
		Cap: q.Cap, QPType: base.QPType}
	if q.Signals {
		init.SQSigAll = 1
	}
	*initTo.Deref() = init
	of.Deref().QPBase.State = q.State
	return 0
}

// Enhanced connection establishment lets two devices of a vendor agree on options. This one has no vendor and no
// options.

// setECE implements ibv_set_ece. It accepts no options of another vendor's device.
func setECE(of ibv.Ptr[ibv.QP], options ibv.Ptr[ibv.ECE]) runtime.Errno {
	if FindQP(of) == nil || options == 0 {
		return syscall.EINVAL
	}
	ece := options.Deref()
	switch {
	case ece.VendorID == 0: // the library refuses it for every device
		return syscall.EOPNOTSUPP
	case ece.CompMask != 0:
		return syscall.EINVAL
	}
	ece.Options = 0
	return 0
}

// queryECE implements ibv_query_ece. Options are vendor-specific, and this device reports none.
func queryECE(of ibv.Ptr[ibv.QP], to ibv.Ptr[ibv.ECE]) runtime.Errno {
	if FindQP(of) == nil || to == 0 {
		return syscall.EINVAL
	}
	return syscall.EOPNOTSUPP
}
