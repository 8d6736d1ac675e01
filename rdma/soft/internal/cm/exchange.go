// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// exchange is a message that is retransmitted until it is answered.
type exchange struct {
	message *message.MAD
	brief   bool // retransmitted only for seconds, because it may answer a forged request
	fail    func()
	sent    int
	timer   uint64 // 0: no timer
}

// exchange sends a message and retransmits it until conclude. After the last retransmission it calls fail.
func (id *identifier) exchange(m *message.MAD, fail func()) {
	id.conclude()
	id.asked = &exchange{message: m, fail: fail, brief: m.Attribute == message.REP && id.peer.IsRemote()}
	id.ask()
}

// The caller holds Core.Mu.
func (id *identifier) ask() {
	x := id.asked
	wait, ok := x.next(id.cm.response)
	if !ok {
		id.asked = nil
		x.fail()
		return
	}
	x.timer = id.cm.After(wait, id.ask) // first: send may return with the answer
	id.answer(x.message)
}

// next reports whether to send the message once more, and how long to wait for its answer. A peer that is slow to
// confirm a brief exchange answers the second copy with an MRA. A DREQ is sent more frequently at first, because until
// it arrives the peer may retransmit to a queue pair that no longer exists.
func (x *exchange) next(response time.Duration) (wait time.Duration, ok bool) {
	n := x.sent
	x.sent++
	if x.brief {
		if parts := [...]time.Duration{1, 1, 2, 2, 4, 6}; n < len(parts) {
			return response * parts[n] / 8, true
		}
		return 0, false
	}
	if x.message.Attribute == message.DREQ {
		if parts := [...]time.Duration{1, 2, 5}; n < len(parts) {
			return response * parts[n] / 8, true
		}
		n -= 2
	}
	return response, n <= retries
}

// conclude ends the exchange.
func (id *identifier) conclude() {
	if id.asked != nil {
		id.cm.Clock.Cancel(id.asked.timer)
		id.asked = nil
	}
}

// Within a fabric, MRAs serve as two hints. The first means that the receiver's program is processing the message, and
// stops its retransmission. The second means that the program has answered, and resumes the usual timeout, in case the
// answer is lost. Other fabrics and kernels get MRAs as from Linux: one for each repeated REQ and REP.

// beginProcessing sends the hint that the program is processing the peer's message.
func (id *identifier) beginProcessing(m *message.MAD) {
	again := id.processingTID == m.TID
	id.processingTID = m.TID
	c := id.cm
	if about := aboutOf(m.Attribute); m.From.IsRemote() && (!again || about == message.OfOther) {
		return
	}
	id.send(&message.MAD{Attribute: message.MRA, TID: m.TID, Of: aboutOf(m.Attribute),
		ServiceTimeout: timeCode((retries + 1) * c.response)})
}

// endProcessing sends the hint that the program has answered the message, if it was processing one.
func (id *identifier) endProcessing() {
	if id.processingTID != 0 && !id.peer.IsRemote() {
		id.send(&message.MAD{Attribute: message.MRA, TID: id.processingTID, Of: message.OfOther})
	}
}

// hinted handles an MRA. With a virtual clock, the timeout stops while a program processes a message.
func (id *identifier) hinted(m *message.MAD) {
	x, c := id.asked, id.cm
	if m.ServiceTimeout == 0 {
		id.resume()
		return
	}
	c.Clock.Cancel(x.timer)
	if x.timer = 0; !c.Clock.IsVirtual() {
		x.timer = c.After(codedTime(m.ServiceTimeout), func() {
			id.asked = nil
			x.fail()
		})
	}
}

// resume restarts the usual timeout.
func (id *identifier) resume() {
	x, c := id.asked, id.cm
	c.Clock.Cancel(x.timer)
	x.sent, x.timer = 0, c.After(c.response, id.ask)
}

// send sends a message to the peer, or, if it is not yet known, to the device with the destination address.
func (id *identifier) send(m *message.MAD) {
	c := id.cm
	m.From, m.LocalID, m.To, m.RemoteID = id.device.AddressOf(id.local.Addr()), id.number, id.peer, id.peerNumber
	if id.peerNumber == 0 {
		to, ok := c.Reach(id.to.Addr())
		if !ok {
			return
		}
		if other, ok := c.Elsewhere(id.to.Addr()); ok && c.listener(id.space, id.to) == nil {
			to = other
		}
		id.peer = to
		m.To = id.peer
	}
	id.device.SendMAD(m)
}

// answer sends the program's answer to a message.
func (id *identifier) answer(m *message.MAD) {
	id.endProcessing()
	id.send(m)
}

// refuse rejects a request, and again if it is retransmitted.
func (id *identifier) refuse(m *message.MAD) {
	id.refusal = m
	id.answer(m)
}

// replyTo returns a reply to a message that belongs to no identifier.
func replyTo(m *message.MAD, attribute message.Attribute) *message.MAD {
	return &message.MAD{Attribute: attribute, From: m.To, To: m.From, TID: m.TID, LocalID: m.RemoteID,
		RemoteID: m.LocalID}
}

// refuse rejects a request without a listener, or an unexpected reply.
func refuse(d *verbs.Device, m *message.MAD, reason uint16) {
	r := replyTo(m, message.REJ)
	r.Of, r.Reason = aboutOf(m.Attribute), reason
	if m.Attribute == message.SIDRReq {
		r.Attribute, r.Of, r.Reason, r.Status = message.SIDRRep, 0, 0, message.LookupUnsupported
		if reason == message.RejectConsumer {
			r.Status = message.LookupRejected
		}
	}
	d.SendMAD(r)
}

// disown rejects an MRA or a REP for a request that no longer exists.
func disown(d *verbs.Device, m *message.MAD, of message.Of) {
	r := replyTo(m, message.REJ)
	r.Of, r.Reason = of, message.RejectInvalidID
	d.SendMAD(r)
}

// leaveUnknown answers the DREQ of an unknown connection, so that its sender stops retransmitting.
func leaveUnknown(d *verbs.Device, m *message.MAD) { d.SendMAD(replyTo(m, message.DREP)) }
