package soft

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// send sends a message to the other end, or, as long as there is none, to the device that has the address looked for.
func (id *cmID) send(m *message.MAD) {
	c := id.cm
	m.From, m.LocalID, m.To, m.RemoteID = id.device.address(), id.number, id.peer, id.peerNumber
	if id.peerNumber == 0 {
		to := c.owner(id.to.Addr())
		if to == nil {
			return
		}
		m.To = to.address()
	}
	id.device.sendMAD(m)
}

// answer sends the answer to a message that the program had in hand.
func (id *cmID) answer(m *message.MAD) {
	id.handBack()
	id.send(m)
}

// connectRequest is the message that asks for a connection, or of datagrams looks a service up.
func (id *cmID) connectRequest(p *rdmacm.ConnParam, private []byte) *message.MAD {
	d := id.device
	m := &message.MAD{
		Attribute: message.SIDRReq, TID: id.tid, ServiceID: serviceID(id.space, id.to.Port()), PKey: d.pkeys[0], Source: id.local, Dest: id.to.Addr(), Private: private,
	}
	if id.datagrams() {
		return m
	}
	m.Attribute, m.Transport, m.CAGUID, m.ECE = message.REQ, transportOf(id.kind), d.guid, id.ece.ofMessage()
	m.QPN, m.PSN, m.SRQ, m.FlowControl = p.QPNum&message.Number, id.psn, p.SRQ != 0, p.FlowControl != 0
	m.ResponderResources, m.InitiatorDepth, m.RetryCount, m.RNRRetryCount = p.ResponderResources, p.InitiatorDepth, p.RetryCount, p.RNRRetryCount
	m.RemoteTimeout = timeCode(id.cm.response)
	m.LocalTimeout, m.MaxRetries = m.RemoteTimeout, cmRetries
	m.Path = message.Path{
		Local: d.gids[d.gidOf(id.local.Addr())], Remote: id.gidOfPeer(), Rate: uint8(ibv.RATE_100_GBPS), TrafficClass: id.tos, HopLimit: cmHops,
		AckTimeout: id.timeout, MTU: id.mtu(),
	}
	return m
}

// connectReply is the message that accepts a request.
func (id *cmID) connectReply() *message.MAD {
	p := &id.param
	return &message.MAD{
		Attribute: message.REP, TID: id.tid, CAGUID: id.device.guid, QPN: id.qpn & message.Number, PSN: id.psn, AckDelay: ackDelay,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RNRRetryCount: p.RNRRetryCount, FlowControl: p.FlowControl != 0, SRQ: p.SRQ != 0,
		ECE: message.ECE{Vendor: id.peerECE.vendor & message.Number, Options: id.ece.options}, Private: id.private,
	}
}

// lookupReply is the message that answers a lookup.
func (id *cmID) lookupReply() *message.MAD {
	return &message.MAD{
		Attribute: message.SIDRRep, TID: id.tid, Status: message.LookupFound, QPN: id.param.QPNum & message.Number, QKey: rdmacm.UDP_QKEY, Private: id.private,
	}
}

// rejection is the message that refuses the other side's request, or its answer to one.
func (id *cmID) rejection(of message.Of, reason uint16, private []byte) *message.MAD {
	if id.datagrams() {
		return &message.MAD{Attribute: message.SIDRRep, TID: id.tid, Status: message.LookupRejected}
	}
	return &message.MAD{Attribute: message.REJ, TID: id.tid, Of: of, Reason: reason, Private: private}
}

// disconnectRequest is the message that ends a connection.
func (id *cmID) disconnectRequest() *message.MAD {
	return &message.MAD{Attribute: message.DREQ, TID: id.cm.nextTID(), QPN: id.peerQPN & message.Number}
}

// refuse answers a request that no identifier takes.
func refuse(d *device, m *message.MAD, reason uint16) {
	r := &message.MAD{Attribute: message.REJ, From: d.address(), To: m.From, TID: m.TID, RemoteID: m.LocalID, Reason: reason}
	if m.Attribute == message.SIDRReq {
		r.Attribute, r.Reason, r.Status = message.SIDRRep, 0, message.LookupUnsupported
	}
	d.sendMAD(r)
}

// disown answers an MRA of a request that its sender does not know of any more.
func disown(d *device, m *message.MAD) {
	d.sendMAD(&message.MAD{
		Attribute: message.REJ, From: d.address(), To: m.From, TID: m.TID, LocalID: m.RemoteID, RemoteID: m.LocalID,
		Of: message.OfMRA, Reason: message.RejectInvalidID,
	})
}

func (e cmECE) ofMessage() message.ECE {
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

// serviceID names a port of a port space.
func serviceID(space rdmacm.PortSpace, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// nextTID is the ID of another transaction.
func (c *cmManager) nextTID() uint64 {
	c.lastTID++
	return c.lastTID
}

// nextPSN is where the numbers of a connection's packets start.
func (c *cmManager) nextPSN() uint32 {
	c.psn = (c.psn + 0x10001) & message.Number
	return c.psn
}

// takeNumber gives the identifier its communication ID.
func (id *cmID) takeNumber() {
	c := id.cm
	for c.lastNumber++; c.lastNumber == 0 || c.numbered[c.lastNumber] != nil; c.lastNumber++ {
	}
	id.number = c.lastNumber
	c.numbered[id.number] = id
}

// forgetNumber lets no message find the identifier any more.
func (id *cmID) forgetNumber() {
	c := id.cm
	delete(c.numbered, id.number)
	if sender := (cmPeer{id.peer.Link, id.peerNumber}); c.requests[sender] == id {
		delete(c.requests, sender)
	}
}

// forgetRemote lets the other side's queue pair be connected again.
func (id *cmID) forgetRemote() {
	c := id.cm
	if remote := (cmRemoteQP{id.peer.Link, id.peerQPN}); c.connected[remote] == id {
		delete(c.connected, remote)
	}
}
