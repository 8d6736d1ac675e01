// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// Receive handles a message that arrived at a device. The identifier is found by the numbers in the message, and
// accepts messages only from its peer's port and identifier. Other messages are dropped and counted. The caller holds
// Core.Mu.
func (c *Manager) Receive(at *verbs.Device, m *message.MAD) { at.Count(c.receive(at, m)) }

// receive returns the reason why a message was dropped, or counters.Nothing.
func (c *Manager) receive(at *verbs.Device, m *message.MAD) counters.Counter {
	if c.acknowledged(at, m) {
		return counters.Nothing
	}
	switch m.Attribute {
	case message.REQ, message.SIDRReq:
		return c.requested(at, m)
	case message.MRA:
		return c.receiveMRA(at, m)
	}
	id := c.numbered[m.RemoteID]
	// withdraws a request whose identifier the sender does not know
	if m.Attribute == message.REJ && m.RemoteID == 0 {
		switch id = c.requests[peerKey{m.From.Link, m.LocalID}]; {
		case id == nil && c.passOn(at, m):
			return counters.Nothing
		case id != nil && m.TID != id.tid:
			return counters.CMLate
		}
	}
	if id == nil || id.device != at {
		switch m.Attribute {
		case message.DREQ:
			leaveUnknown(at, m)
		case message.REP:
			if c.hasEnded(at, m) {
				return counters.CMDuplicate
			}
			disown(at, m, message.OfREP)
		}
		return counters.CMUnknown
	}
	switch m.Attribute {
	case message.REJ:
		return id.refused(m)
	case message.REP:
		return id.replied(m)
	case message.SIDRRep:
		return id.looked(m)
	case message.RTU:
		if !id.isPeer(m) || id.state != accepting || m.TID != id.tid {
			return id.ignores(m)
		}
		id.establish()
	case message.DREQ:
		if !id.isPeer(m) || m.QPN != id.qpn&message.Number {
			return counters.CMWrongPeer
		}
		return id.left(m)
	case message.DREP:
		if !id.isPeer(m) || id.state != leaving || !id.asks(m.TID) {
			return id.ignores(m)
		}
		id.conclude()
		id.over(0)
	}
	return counters.Nothing
}

// ignores returns the counter for an unexpected message.
func (id *identifier) ignores(m *message.MAD) counters.Counter {
	if m.From.Link != id.peer.Link || id.peerNumber != 0 && m.LocalID != id.peerNumber {
		return counters.CMWrongPeer
	}
	return counters.CMLate
}

// isPeer reports whether a message comes from the peer.
func (id *identifier) isPeer(m *message.MAD) bool {
	return id.peerNumber != 0 && m.LocalID == id.peerNumber && m.From.Link == id.peer.Link
}

// isAnswer reports whether a message answers the identifier's request and comes from the port that the request was sent
// to.
func (id *identifier) isAnswer(m *message.MAD) bool {
	return id.state == requesting && m.TID == id.tid && m.From.Link == id.peer.Link
}

// asks reports whether the identifier waits for the answer to a message.
func (id *identifier) asks(tid uint64) bool { return id.asked != nil && id.asked.message.TID == tid }

// requested handles a REQ or SIDR_REQ.
func (c *Manager) requested(at *verbs.Device, m *message.MAD) counters.Counter {
	sender := peerKey{m.From.Link, m.LocalID}
	if id := c.requests[sender]; id != nil && (id.state != over || id.tid == m.TID) {
		id.requestedAgain(m)
		return counters.CMDuplicate
	}
	if c.hasEnded(at, m) {
		return counters.CMDuplicate
	}
	datagrams := m.Attribute == message.SIDRReq
	space, port := portOf(m.ServiceID)
	dest := m.Dest
	if !dest.IsValid() {
		dest = netip.AddrFrom16(m.To.GID).Unmap()
	}
	l := c.listener(space, netip.AddrPortFrom(dest, port))
	remote := remoteQP{m.From.Link, m.CAGUID, m.QPN}
	switch {
	case m.From.IsRemote() && !isPath(m):
		refuse(at, m, message.RejectInvalidGID)
		return counters.CMBadPath
	case l == nil:
		if c.passOn(at, m) {
			return counters.Nothing
		}
		refuse(at, m, message.RejectNoListener)
		return counters.CMNoListener
	case !m.Dest.IsValid(): // not for an IP service
		refuse(at, m, message.RejectConsumer)
		return counters.CMNoListener
	// it will be retransmitted
	case l.waiting == l.backlog || m.From.IsRemote() && l.waitingOf[m.From.Link] == l.share():
		return counters.CMCrowded
	case !datagrams && c.connected[remote] != nil:
		refuse(at, m, message.RejectStale)
		c.connected[remote].leave() // the peer no longer knows this connection
		return counters.CMStale
	}
	id := &identifier{
		cm: c, space: space, kind: l.kind, timeout: defaultTimeout, state: requested,
		local: netip.AddrPortFrom(m.Dest, port), to: m.Source, scope: at.Scope(m.Dest), device: at, tos: l.tos,
		listener: l, peer: m.From, peerNumber: m.LocalID, peerGUID: m.CAGUID, tid: m.TID,
		peerQPN: m.QPN, peerPSN: m.PSN, psn: c.nextPSN(at), peerECE: eceOptions{m.ECE.Vendor, m.ECE.Options},
		initiator: min(m.ResponderResources, verbs.MaxReads), responder: min(m.InitiatorDepth, verbs.MaxReads),
		retries: m.RetryCount, notReadyRetries: m.RNRRetryCount, pathMTU: m.Path.MTU,
	}
	if m.Path.AckTimeout != 0 {
		id.timeout = m.Path.AckTimeout
	}
	id.takeNumber()
	c.requests[sender] = id
	c.ids = append(c.ids, id)
	e := &event{kind: rdmacm.CM_EVENT_CONNECT_REQUEST, request: id, private: padded(m.Private, m.Attribute)}
	if !datagrams {
		c.connected[remote] = id
		e.conn = connParam(m)
		e.conn.ResponderResources, e.conn.InitiatorDepth = id.responder, id.initiator
	}
	id.rank = l.waitingOf[m.From.Link]
	l.wait(id, 1)
	if id.beginProcessing(m); id.state == requested { // stops the sender's retransmissions
		l.pushRequest(e)
	}
	return counters.Nothing
}

// pushRequest queues a request. Hosts take turns, so that a program that accepts one request after another serves each
// host soon.
func (id *identifier) pushRequest(e *event) {
	e.id = id
	id.channel.events.PushBefore(e, func(other *event) bool {
		return other.request != nil && other.id == id && other.request.rank > e.request.rank
	})
}

// share returns the number of requests in the backlog that one host may use.
func (id *identifier) share() int { return id.backlog - id.backlog/4 }

// wait adds n to the number of requests waiting at a listener.
func (id *identifier) wait(request *identifier, n int) {
	id.waiting += n
	if id.waitingOf == nil {
		id.waitingOf = map[uint64]int{}
	}
	link := request.peer.Link
	if id.waitingOf[link] += n; id.waitingOf[link] == 0 {
		delete(id.waitingOf, link)
	}
}

// isPath reports whether a request's path matches the addresses of its packet, so that other hosts reach only the
// address that they sent to.
func isPath(m *message.MAD) bool {
	return (!m.Dest.IsValid() || m.Source.Addr().As16() == m.From.GID && m.Dest.As16() == m.To.GID) &&
		(m.Attribute != message.REQ || m.Path.Local == m.From.GID && m.Path.Remote == m.To.GID)
}

// requestedAgain handles a duplicate request.
func (id *identifier) requestedAgain(m *message.MAD) {
	switch {
	case id.state == requested:
		id.beginProcessing(m)
	case id.state == accepting:
		id.answer(id.asked.message)
	case id.refusal != nil:
		id.send(id.refusal)
	case id.datagrams() && id.state == established:
		id.answer(id.lookupReply())
	}
}

// receiveMRA handles an MRA. It rejects an MRA for a message that nothing waits for.
func (c *Manager) receiveMRA(at *verbs.Device, m *message.MAD) counters.Counter {
	id := c.numbered[m.RemoteID]
	if id != nil && id.device == at && id.asks(m.TID) && (id.isAnswer(m) || id.isPeer(m)) {
		id.hinted(m)
		return counters.Nothing
	}
	if m.ServiceTimeout != 0 && !(id != nil && id.isConnected(m)) {
		disown(at, m, message.OfMRA)
	}
	if id == nil || id.device != at {
		return counters.CMUnknown
	}
	return id.ignores(m)
}

// isConnected reports whether a peer's message is about a request that already has its answer.
func (id *identifier) isConnected(m *message.MAD) bool {
	return id.state >= answered && id.state <= left && m.From.Link == id.peer.Link && m.From.IsRemote()
}

// replied handles a REP.
func (id *identifier) replied(m *message.MAD) counters.Counter {
	switch {
	case id.isAnswer(m):
		id.conclude()
		remote := remoteQP{m.From.Link, m.CAGUID, m.QPN}
		if old := id.cm.connected[remote]; old != nil {
			refuse(id.device, m, message.RejectStale)
			old.leave()
			id.rejected(message.RejectStale, nil)
			return counters.CMStale
		}
		id.cm.connected[remote] = id
		id.peer, id.peerNumber, id.peerQPN, id.peerPSN, id.state = m.From, m.LocalID, m.QPN, m.PSN, answered
		id.peerGUID = m.CAGUID
		id.initiator, id.responder = min(m.ResponderResources, verbs.MaxReads), min(m.InitiatorDepth, verbs.MaxReads)
		id.notReadyRetries = m.RNRRetryCount
		id.peerECE = eceOptions{m.ECE.Vendor, m.ECE.Options}
		e := &event{kind: rdmacm.CM_EVENT_CONNECT_RESPONSE, private: padded(m.Private, m.Attribute),
			conn: connParam(m)}
		e.conn.ResponderResources, e.conn.InitiatorDepth, e.conn.RetryCount = id.responder, id.initiator, 0
		id.push(e)
		id.beginProcessing(m)
		return counters.Nothing
	case !id.isPeer(m):
		return id.ignores(m)
	case id.state == answered:
		id.beginProcessing(m)
	case id.state == established: // the RTU was lost
		id.confirm()
	default:
		return counters.CMLate
	}
	return counters.CMDuplicate
}

// looked handles a SIDR_REP.
func (id *identifier) looked(m *message.MAD) counters.Counter {
	if !id.isAnswer(m) {
		return id.ignores(m)
	}
	id.conclude()
	if m.Status != message.LookupFound {
		id.state = over
		id.tell(rdmacm.CM_EVENT_UNREACHABLE, int32(m.Status))
		return counters.Nothing
	}
	id.state = established
	id.push(&event{
		kind: rdmacm.CM_EVENT_ESTABLISHED, private: padded(m.Private, m.Attribute),
		ud: rdmacm.UDParam{AHAttr: id.av(id.gidOfPeer()), QPNum: m.QPN, QKey: m.QKey},
	})
	return counters.Nothing
}

// refused handles a REJ.
func (id *identifier) refused(m *message.MAD) counters.Counter {
	switch {
	case !id.isAnswer(m) && !id.isPeer(m):
		return id.ignores(m)
	case m.Of == message.OfMRA && m.Reason == message.RejectInvalidID:
		if id.state != requested || id.record != nil {
			return counters.CMLate
		}
		id.withdraw()
	case id.state == requested:
		id.withdrawn()
	case id.state == established && m.TID != id.tid: // for another request
		return counters.CMLate
	default:
		was := id.state
		if id.rejected(int32(m.Reason), m.Private); id.state == was { // no connection or request
			return counters.CMLate
		}
	}
	return counters.Nothing
}

// left handles a DREQ.
func (id *identifier) left(m *message.MAD) counters.Counter {
	if id.state == accepting { // the peer got the REP, and its RTU was lost
		id.establish()
	}
	switch id.state {
	case established:
		id.state = left
		id.tell(rdmacm.CM_EVENT_DISCONNECTED, 0)
		id.beginProcessing(m)
	case left:
		id.beginProcessing(m)
		return counters.CMDuplicate
	case leaving: // both sides sent a DREQ
		id.conclude()
		id.processingTID = m.TID
		id.replyDisconnect()
		id.over(0)
	case over:
		id.processingTID = m.TID
		id.replyDisconnect()
		return counters.CMDuplicate
	default:
		return counters.CMLate
	}
	return counters.Nothing
}

// Removed notifies all identifiers on a removed device. Undelivered requests are dropped. The caller holds Core.Mu.
func (c *Manager) Removed(d *verbs.Device) {
	for _, id := range slices.Clone(c.ids) {
		if id.device != d || id.gone {
			continue
		}
		id.conclude()
		c.Clock.Cancel(id.timer)
		id.state = over
		if id.record == nil {
			id.withdraw()
		} else {
			id.tell(rdmacm.CM_EVENT_DEVICE_REMOVAL, 0)
		}
	}
}

// Cut resumes retransmission of messages over a link that went down, because the peer can no longer send hints. The
// caller holds Core.Mu.
func (c *Manager) Cut(d *verbs.Device) {
	for _, id := range c.ids {
		if id.asked != nil && (id.device == d || id.peer.Link == d.Address().Link) {
			id.resume()
		}
	}
}

// Moved notifies all identifiers bound to an address that moved to another device. The caller holds Core.Mu.
func (c *Manager) Moved(gid [16]byte, from *verbs.Device) {
	for _, id := range c.ids {
		if id.device == from && id.local.Addr().As16() == gid {
			id.tell(rdmacm.CM_EVENT_ADDR_CHANGE, 0)
		}
	}
}
