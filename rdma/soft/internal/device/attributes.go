// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// set keeps the values of attributes.
func (q *QP) set(attr *ibv.QPAttr, mask ibv.QPAttrMask) {
	to := &q.attr
	has := func(one ibv.QPAttrMask) bool { return mask&one != 0 }
	if has(ibv.QP_EN_SQD_ASYNC_NOTIFY) {
		to.EnSQDAsyncNotify = attr.EnSQDAsyncNotify
	}
	if has(ibv.QP_ACCESS_FLAGS) {
		to.QPAccessFlags = attr.QPAccessFlags
	}
	if has(ibv.QP_PKEY_INDEX) {
		to.PKeyIndex = attr.PKeyIndex
		q.out.PKey = q.port.pkeys[attr.PKeyIndex]
	}
	if has(ibv.QP_PORT) {
		to.PortNum = attr.PortNum
	}
	if has(ibv.QP_QKEY) {
		to.QKey = attr.QKey
	}
	if has(ibv.QP_AV) {
		to.AHAttr = resolved(&attr.AHAttr)
	}
	if has(ibv.QP_DEST_QPN) {
		to.DestQPNum = attr.DestQPNum
		q.out.DestQP, q.back.DestQP = attr.DestQPNum, attr.DestQPNum
	}
	if has(ibv.QP_AV) || has(ibv.QP_DEST_QPN) {
		q.face()
	}
	if has(ibv.QP_PATH_MTU) {
		to.PathMTU = attr.PathMTU
	}
	if has(ibv.QP_TIMEOUT) {
		to.Timeout = attr.Timeout
	}
	if has(ibv.QP_RETRY_CNT) {
		to.RetryCnt = attr.RetryCnt
	}
	if has(ibv.QP_RNR_RETRY) {
		to.RNRRetry = attr.RNRRetry
	}
	if has(ibv.QP_RQ_PSN) {
		q.receiver.Reset(attr.RQPSN & psnMask)
		q.heard = false
	}
	if has(ibv.QP_MAX_QP_RD_ATOMIC) {
		to.MaxRdAtomic = attr.MaxRdAtomic
	}
	if has(ibv.QP_MIN_RNR_TIMER) {
		to.MinRNRTimer = attr.MinRNRTimer
		q.back.Timer = attr.MinRNRTimer
	}
	if has(ibv.QP_SQ_PSN) {
		q.psn = attr.SQPSN & psnMask
	}
	if has(ibv.QP_MAX_DEST_RD_ATOMIC) {
		to.MaxDestRdAtomic = attr.MaxDestRdAtomic
	}
	if has(ibv.QP_PATH_MIG_STATE) {
		to.PathMigState = attr.PathMigState
	}
}

// face directs the queue pair's messages to the peer named in its attributes.
func (q *QP) face() {
	q.out.To = message.Address{}
	if gid := *q.attr.AHAttr.GRH.DGID.Raw(); !isMulticast(gid) {
		q.out.To = q.on.addressOf(gid, q.attr.DestQPNum)
	}
	q.out.From.GID, _ = q.port.gidAt(q.attr.AHAttr.GRH.SGIDIndex)
	q.back.From, q.back.To = q.out.From, q.out.To
	if q.sender == nil && q.state < ibv.QPS_RTR && q.kind != ibv.QPT_UD && q.on.wire.Packets(&q.out.To) {
		q.sender, q.arriving = &transport.Sender{}, &arriving{}
	}
}

// psns are the sequence numbers of the packets that the queue pair sends and expects next.
func (q *QP) psns() (next, expects uint32) {
	next = q.psn
	if q.sender != nil && q.pending.len() > 0 { // of which not all are sent, or are sent again
		next, _ = q.sender.UnderWay()
	}
	return next, q.receiver.Expects
}
