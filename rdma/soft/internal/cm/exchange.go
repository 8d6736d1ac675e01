// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// exchange is a message that is sent until it is answered.
type exchange struct {
	message *message.MAD
	brief   bool // it may answer a forged request: it is sent for seconds only
	fail    func()
	sent    int
	timer   uint64 // 0 for none
}

// exchange sends a message, and again until conclude. When it was sent often enough, fail is called instead.
func (id *identifier) exchange(m *message.MAD, fail func()) {
	id.conclude()
	id.asked = &exchange{message: m, fail: fail, brief: m.Attribute == message.REP && id.peer.IsRemote()}
	id.ask()
}

// The caller holds Fabric.mu.
func (id *identifier) ask() {
	x := id.asked
	wait, ok := x.next(id.cm.response)
	if !ok {
		id.asked = nil
		x.fail()
		return
	}
	x.timer = id.cm.After(wait, id.ask) // before: the answer may come at once
	id.answer(x.message)
}

// next reports whether the message is to be sent once more, and how long to wait for its answer then. A peer that
// confirms a brief one late answers the second copy with an MRA. A DREQ is sent more often at first: until it arrives,
// the other side may wait for acknowledgements of a queue pair that is gone.
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

// conclude says that the answer came, or is not waited for any more.
func (id *identifier) conclude() {
	if id.asked != nil {
		id.cm.Cancel(id.asked.timer)
		id.asked = nil
	}
}

// Within a fabric, two hints travel beside the messages, both as MRAs. One says that the receiver's program has the
// message in hand: the sender does not send it again, and the answer has time. The other one says that the program has
// answered, so that the usual time counts again: where the answer is lost, the message is sent again. Other fabrics and
// kernels get the MRAs that Linux sends: one for each REQ and REP that comes again.

// takeInHand says that the program has a message of the other side's.
func (id *identifier) takeInHand(m *message.MAD) {
	again := id.inHand == m.TID
	id.inHand = m.TID
	c := id.cm
	if about := aboutOf(m.Attribute); m.From.IsRemote() && (!again || about == message.OfOther) {
		return
	}
	id.send(&message.MAD{Attribute: message.MRA, TID: m.TID, Of: aboutOf(m.Attribute),
		ServiceTimeout: timeCode((retries + 1) * c.response)})
}

// handBack says that the program has answered the message that it had in hand, if there was one.
func (id *identifier) handBack() {
	if id.inHand != 0 && !id.peer.IsRemote() {
		id.send(&message.MAD{Attribute: message.MRA, TID: id.inHand, Of: message.OfOther})
	}
}

// hinted handles an MRA. A virtual clock stands still for programs: it does not know whether they are at work.
func (id *identifier) hinted(m *message.MAD) {
	x, c := id.asked, id.cm
	if m.ServiceTimeout == 0 {
		id.resume()
		return
	}
	c.Cancel(x.timer)
	if x.timer = 0; !c.IsVirtual() {
		x.timer = c.After(codedTime(m.ServiceTimeout), func() {
			id.asked = nil
			x.fail()
		})
	}
}

// resume lets the usual time for an answer count from now on.
func (id *identifier) resume() {
	x, c := id.asked, id.cm
	c.Cancel(x.timer)
	x.sent, x.timer = 0, c.After(c.response, id.ask)
}

// send sends a message to the other end, or, as long as there is none, to the device that has the address looked for.
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

// answer sends the answer to a message that the program had in hand.
func (id *identifier) answer(m *message.MAD) {
	id.handBack()
	id.send(m)
}

// refuse answers a request for good, and again when it comes again.
func (id *identifier) refuse(m *message.MAD) {
	id.refusal = m
	id.answer(m)
}

// refuse answers a request that no identifier takes, or the answer to one.
func refuse(d *device.Device, m *message.MAD, reason uint16) {
	r := &message.MAD{Attribute: message.REJ, From: m.To, To: m.From, TID: m.TID, LocalID: m.RemoteID,
		RemoteID: m.LocalID, Of: aboutOf(m.Attribute), Reason: reason}
	if m.Attribute == message.SIDRReq {
		r.Attribute, r.Of, r.Reason, r.Status = message.SIDRRep, 0, 0, message.LookupUnsupported
		if reason == message.RejectConsumer {
			r.Status = message.LookupRejected
		}
	}
	d.SendMAD(r)
}

// disown answers an MRA or a REP of a request that its sender does not know of any more.
func disown(d *device.Device, m *message.MAD, of message.Of) {
	d.SendMAD(&message.MAD{
		Attribute: message.REJ, From: m.To, To: m.From, TID: m.TID, LocalID: m.RemoteID, RemoteID: m.LocalID,
		Of: of, Reason: message.RejectInvalidID,
	})
}

// leaveUnknown answers the end of a connection that is forgotten here: its sender asks until it hears so.
func leaveUnknown(d *device.Device, m *message.MAD) {
	d.SendMAD(&message.MAD{Attribute: message.DREP, From: m.To, To: m.From, TID: m.TID, LocalID: m.RemoteID,
		RemoteID: m.LocalID})
}
