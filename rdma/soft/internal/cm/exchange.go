// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// exchange is a message that is sent until it is answered.
type exchange struct {
	message *message.MAD
	fail    func()
	sent    int
	timer   uint64 // 0 for none
}

// exchange sends a message, and again until conclude. When it was sent often enough, fail is called instead.
func (id *identifier) exchange(m *message.MAD, fail func()) {
	id.conclude()
	id.asked = &exchange{message: m, fail: fail}
	id.ask()
}

// The caller holds Fabric.mu.
func (id *identifier) ask() {
	x := id.asked
	if x.sent > retries {
		id.asked = nil
		x.fail()
		return
	}
	x.sent++
	x.timer = id.cm.After(id.cm.response, id.ask) // before: the answer may come at once
	id.answer(x.message)
}

// conclude says that the answer came, or is not waited for any more.
func (id *identifier) conclude() {
	if id.asked != nil {
		id.cm.Cancel(id.asked.timer)
		id.asked = nil
	}
}

// Two hints travel beside the messages, both as MRAs. One says that the receiver's program has the message in hand: the
// sender does not send it again, and the answer has time. The other one says that the program has answered, so that the
// usual time counts again: where the answer is lost, the message is sent again.

// takeInHand says that the program has a message of the other side's.
func (id *identifier) takeInHand(m *message.MAD) {
	id.inHand = m.TID
	c := id.cm
	id.send(&message.MAD{Attribute: message.MRA, TID: m.TID, Of: aboutOf(m.Attribute),
		ServiceTimeout: timeCode((retries + 1) * c.response)})
}

// handBack says that the program has answered the message that it had in hand, if there was one.
func (id *identifier) handBack() {
	if id.inHand != 0 {
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
	m.From, m.LocalID, m.To, m.RemoteID = id.device.Address(), id.number, id.peer, id.peerNumber
	if id.peerNumber == 0 {
		to := c.Owner(id.to.Addr())
		if to == nil {
			return
		}
		id.peer = to.Address()
		m.To = id.peer
	}
	id.device.SendMAD(m)
}

// answer sends the answer to a message that the program had in hand.
func (id *identifier) answer(m *message.MAD) {
	id.handBack()
	id.send(m)
}

// refuse answers a request that no identifier takes.
func refuse(d *device.Device, m *message.MAD, reason uint16) {
	r := &message.MAD{Attribute: message.REJ, From: d.Address(), To: m.From, TID: m.TID, RemoteID: m.LocalID,
		Reason: reason}
	if m.Attribute == message.SIDRReq {
		r.Attribute, r.Reason, r.Status = message.SIDRRep, 0, message.LookupUnsupported
	}
	d.SendMAD(r)
}

// disown answers an MRA of a request that its sender does not know of any more.
func disown(d *device.Device, m *message.MAD) {
	d.SendMAD(&message.MAD{
		Attribute: message.REJ, From: d.Address(), To: m.From, TID: m.TID, LocalID: m.RemoteID, RemoteID: m.LocalID,
		Of: message.OfMRA, Reason: message.RejectInvalidID,
	})
}
