// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"slices"

	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// part ends all that the identifier does, and says so to the other side.
func (id *identifier) part() {
	c := id.cm
	asked := id.asked
	id.conclude()
	c.Cancel(id.timer)
	id.sayFarewell(asked)
	for len(id.groups) > 0 {
		id.leaveGroup(id.groups[0])
	}
	id.unbind()
	id.forgetRemote()
	id.forgetNumber()
	c.ids = slices.DeleteFunc(c.ids, func(other *identifier) bool { return other == id })
	var requests []*identifier // that nobody will take: they part afterwards, for that makes events
	if id.channel != nil {
		id.channel.events.Drop(func(e *event) bool {
			if e.id == id && e.request != nil {
				requests = append(requests, e.request)
			}
			return e.id == id
		})
	}
	for _, request := range requests {
		request.part()
	}
	if id.addresses != nil {
		device.Forget(id.addresses)
		id.addresses = nil
	}
	id.gone = true
}

// release frees the record.
func (id *identifier) release() {
	if id.shares != nil {
		id.shares.put()
		id.shares = nil
	}
	if id.record == nil {
		return
	}
	if id.record.Route.PathRec != 0 {
		device.Free(id.record.Route.PathRec.Deref())
	}
	device.Forget(id.record)
	id.record = nil
	if id.sync {
		id.channel.close()
	}
}

// sayFarewell tells the other side that the identifier is going, which waited for the answer to what it asked, or nil.
func (id *identifier) sayFarewell(asked *exchange) {
	switch id.state {
	case requesting:
		if !id.datagrams() {
			id.send(id.rejection(message.OfREQ, message.RejectTimeout, nil))
		}
	case requested, accepting:
		id.refuse(id.rejection(message.OfREQ, message.RejectConsumer, nil))
	case answered:
		id.refuse(id.rejection(message.OfREP, message.RejectConsumer, nil))
	case established:
		if !id.datagrams() {
			id.bidFarewell(&exchange{message: id.disconnectRequest()})
		}
	case leaving:
		if asked != nil && asked.timer != 0 { // the other side has not said that its program has it in hand
			id.bidFarewell(asked)
		}
	case left:
		id.sayGone()
	}
}

func (ch *channel) close() {
	c := ch.cm
	for i := len(c.ids) - 1; i >= 0; i-- {
		if id := c.ids[i]; id.channel == ch {
			id.part()
			id.release()
		}
	}
	ch.events.Close()
	c.channels--
	device.Forget(ch.record)
}

// vanish takes back a request that no program has taken.
func (id *identifier) vanish() {
	id.listener.channel.events.Drop(func(e *event) bool { return e.request == id })
	id.listener.wait(id, -1)
	id.state = over
	id.part()
}

// withdrawn is what becomes of a request whose sender gave up. No program hears of one that none has taken; the program
// that has it hears so from rdma_accept, for Linux has no events of what is not accepted yet.
func (id *identifier) withdrawn() {
	if id.record == nil {
		id.vanish()
		return
	}
	id.state = over
	id.forgetRemote()
}
