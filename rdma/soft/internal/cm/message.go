// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// connectRequest returns a REQ, or a SIDR_REQ for datagrams.
func (id *identifier) connectRequest(p *rdmacm.ConnParam, private []byte) *message.MAD {
	d := id.device
	m := &message.MAD{
		Attribute: message.SIDRReq, TID: id.tid, ServiceID: serviceID(id.space, id.to.Port()), PKey: d.PKey(),
		Source: id.local, Dest: id.to.Addr(), Private: private,
	}
	if id.datagrams() {
		return m
	}
	m.Attribute, m.Transport, m.CAGUID, m.ECE = message.REQ, transportOf(id.kind), d.GUID, id.ece.ofMessage()
	m.QPN, m.PSN, m.SRQ, m.FlowControl = p.QPNum&message.Number, id.psn, p.SRQ != 0, p.FlowControl != 0
	m.ResponderResources, m.InitiatorDepth, m.RetryCount, m.RNRRetryCount = p.ResponderResources, p.InitiatorDepth,
		p.RetryCount, p.RNRRetryCount
	m.RemoteTimeout = timeCode(id.cm.response)
	m.LocalTimeout, m.MaxRetries = m.RemoteTimeout, retries
	m.Path = message.Path{
		Local: d.GIDAtIP(id.local.Addr()), Remote: id.gidOfPeer(), Rate: uint8(ibv.RATE_100_GBPS), TrafficClass: id.tos,
		LocalLID: message.NoLID, RemoteLID: message.NoLID, HopLimit: hops,
		AckTimeout: id.timeout, MTU: id.mtu(),
	}
	return m
}

// connectReply returns a REP.
func (id *identifier) connectReply() *message.MAD {
	p := &id.param
	return &message.MAD{
		Attribute: message.REP, TID: id.tid, CAGUID: id.device.GUID, QPN: id.qpn & message.Number, PSN: id.psn,
		AckDelay:           verbs.AckDelay,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RNRRetryCount: p.RNRRetryCount,
		FlowControl: p.FlowControl != 0, SRQ: p.SRQ != 0,
		ECE: message.ECE{Vendor: id.peerECE.vendor & message.Number, Options: id.ece.options}, Private: id.private,
	}
}

// lookupReply returns a SIDR_REP.
func (id *identifier) lookupReply() *message.MAD {
	return &message.MAD{
		Attribute: message.SIDRRep, TID: id.tid, ServiceID: serviceID(id.space, id.local.Port()),
		Status: message.LookupFound, QPN: id.param.QPNum & message.Number,
		QKey: rdmacm.UDP_QKEY, Private: id.private,
	}
}

// rejection returns a REJ for the peer's request or reply.
func (id *identifier) rejection(of message.Of, reason uint16, private []byte) *message.MAD {
	if id.datagrams() {
		return &message.MAD{Attribute: message.SIDRRep, TID: id.tid, Status: message.LookupRejected}
	}
	m := &message.MAD{Attribute: message.REJ, TID: id.tid, Of: of, Reason: reason, Private: private}
	if reason == message.RejectTimeout { // the peer finds the request by this GUID
		m.ARI = binary.BigEndian.AppendUint64(nil, id.device.GUID)
	}
	return m
}

// disconnectRequest returns a DREQ.
func (id *identifier) disconnectRequest() *message.MAD {
	return &message.MAD{Attribute: message.DREQ, TID: id.cm.nextTID(), QPN: id.peerQPN & message.Number}
}

func (e eceOptions) ofMessage() message.ECE {
	return message.ECE{Vendor: e.vendor & message.Number, Options: e.options}
}

func transportOf(kind ibv.QPType) message.Transport {
	switch kind {
	case ibv.QPT_UC:
		return message.UC
	case ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
		return message.XRC
	}
	return message.RC
}

// tick is the time of code 0. Each further code doubles it.
const tick = 4096 * time.Nanosecond

// timeCode returns the code of the shortest time that is at least d. It is at least 1, because 0 has a special meaning.
func timeCode(d time.Duration) uint8 {
	ticks := uint64((d + tick - 1) / tick)
	return uint8(min(max(bits.Len64(ticks-1), 1), message.MaxCode))
}

func codedTime(code uint8) time.Duration { return tick << min(code, message.MaxCode) }

// aboutOf returns the number of a message in an MRA.
func aboutOf(a message.Attribute) message.Of {
	switch a {
	case message.REQ:
		return message.OfREQ
	case message.REP:
		return message.OfREP
	}
	return message.OfOther
}

// connParam returns the parameters in a REQ or a REP for the program.
func connParam(m *message.MAD) rdmacm.ConnParam {
	p := rdmacm.ConnParam{
		ResponderResources: m.ResponderResources, InitiatorDepth: m.InitiatorDepth, RetryCount: m.RetryCount,
		RNRRetryCount: m.RNRRetryCount, QPNum: m.QPN,
	}
	if m.FlowControl {
		p.FlowControl = 1
	}
	if m.SRQ {
		p.SRQ = 1
	}
	return p
}

// padded appends zeros to private data, as it arrives, because messages do not contain its length.
func padded(b []byte, of message.Attribute) []byte {
	room := of.PrivateSize()
	return append(make([]byte, 0, room), b...)[:room]
}
