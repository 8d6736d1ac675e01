// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"net/netip"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// Set stores the attributes in mask.
func (q *QP) Set(attr *ibv.QPAttr, mask ibv.QPAttrMask) {
	to := &q.Attr
	has := func(one ibv.QPAttrMask) bool { return mask&one != 0 }
	keep(has(ibv.QP_EN_SQD_ASYNC_NOTIFY), &to.EnSQDAsyncNotify, attr.EnSQDAsyncNotify)
	keep(has(ibv.QP_ACCESS_FLAGS), &to.QPAccessFlags, attr.QPAccessFlags)
	keep(has(ibv.QP_PORT), &to.PortNum, attr.PortNum)
	keep(has(ibv.QP_QKEY), &to.QKey, attr.QKey)
	keep(has(ibv.QP_AV), &to.AHAttr, Resolved(&attr.AHAttr))
	keep(has(ibv.QP_DEST_QPN), &to.DestQPNum, attr.DestQPNum)
	keep(has(ibv.QP_PATH_MTU), &to.PathMTU, attr.PathMTU)
	keep(has(ibv.QP_TIMEOUT), &to.Timeout, attr.Timeout)
	keep(has(ibv.QP_RETRY_CNT), &to.RetryCnt, attr.RetryCnt)
	keep(has(ibv.QP_RNR_RETRY), &to.RNRRetry, attr.RNRRetry)
	keep(has(ibv.QP_MAX_QP_RD_ATOMIC), &to.MaxRdAtomic, attr.MaxRdAtomic)
	keep(has(ibv.QP_MIN_RNR_TIMER), &to.MinRNRTimer, attr.MinRNRTimer)
	keep(has(ibv.QP_MAX_DEST_RD_ATOMIC), &to.MaxDestRdAtomic, attr.MaxDestRdAtomic)
	keep(has(ibv.QP_PATH_MIG_STATE), &to.PathMigState, attr.PathMigState)
	keep(has(ibv.QP_SQ_PSN), &q.psn, attr.SQPSN&PSNMask)
	q.Out.DestQP, q.back.DestQP, q.back.Timer = to.DestQPNum, to.DestQPNum, to.MinRNRTimer
	if has(ibv.QP_PKEY_INDEX) {
		to.PKeyIndex = attr.PKeyIndex
		q.Out.PKey = q.Port.PKeys[attr.PKeyIndex]
	}
	if (has(ibv.QP_AV) || has(ibv.QP_DEST_QPN)) && q.Dynamic == nil {
		q.setPeer()
	}
	if has(ibv.QP_RQ_PSN) {
		q.Receiver.Reset(attr.RQPSN & PSNMask)
		q.heard = false
	}
}

func keep[T any](is bool, to *T, value T) {
	if is {
		*to = value
	}
}

// setPeer addresses the queue pair's messages to the peer in its attributes.
func (q *QP) setPeer() {
	q.Out.To = message.Address{}
	if gid := *q.Attr.AHAttr.GRH.DGID.Raw(); !IsMulticast(gid) {
		q.Out.To = q.On.AddressOf(gid, q.Attr.DestQPNum)
	}
	q.Out.From.GID, _ = q.Port.GIDAt(q.Attr.AHAttr.GRH.SGIDIndex)
	q.back.From, q.back.To = q.Out.From, q.Out.To
	if q.sender == nil && q.State < ibv.QPS_RTR && q.Kind != ibv.QPT_UD && q.On.Wire.Packets(&q.Out.To) {
		q.sender, q.arriving = &transport.Sender{}, &arriving{}
	}
}

// PSNs returns the sequence numbers of the next packets that the queue pair sends and expects.
func (q *QP) PSNs() (next, expects uint32) {
	next = q.psn
	if q.sender != nil && q.pending.len() > 0 { // not all of them are sent, or some are retransmitted
		next, _ = q.sender.UnderWay()
	}
	return next, q.Receiver.Expects
}

// ManagedEnd is the connection manager's view of one end of a connection.
type ManagedEnd struct {
	ID          uint32 // communication ID
	Local, Peer netip.AddrPort
}

// Connection is a connected queue pair; soft.Connection explains it.
type Connection struct {
	Device          string
	Type            ibv.QPType
	State           ibv.QPState
	QPN, PeerQPN    uint32
	Local, Peer     netip.Addr
	MTU             ibv.MTU
	NextPSN         uint32
	ExpectedPSN     uint32
	InFlight        uint32
	Window          uint32
	Queued          uint32
	SentAgain       uint64
	CMID            uint32
	CMLocal, CMPeer netip.AddrPort
}

func (q *QP) Connection(end ManagedEnd) Connection {
	c := Connection{
		Type: q.Kind, State: q.State, QPN: q.Number, PeerQPN: q.Attr.DestQPNum,
		Local: netip.AddrFrom16(q.Out.From.GID).Unmap(), Peer: netip.AddrFrom16(q.Out.To.GID).Unmap(),
		MTU: q.Attr.PathMTU, Queued: q.Posted - q.next,
		CMID: end.ID, CMLocal: end.Local, CMPeer: end.Peer,
	}
	if q.Dynamic != nil {
		c.Type = dynamicTransport
	}
	c.NextPSN, c.ExpectedPSN = q.PSNs()
	c.SentAgain = q.resent
	switch {
	case q.sender != nil:
		c.Window = q.sender.Window()
		_, c.InFlight = q.sender.UnderWay()
	case q.sent:
		c.InFlight = q.Out.Packets
	}
	return c
}
