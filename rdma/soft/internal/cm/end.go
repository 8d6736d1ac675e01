// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"slices"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// part ends everything that the identifier does and informs the peer.
func (id *identifier) part() {
	c := id.cm
	asked := id.asked
	id.conclude()
	c.Clock.Cancel(id.timer)
	id.informPeer(asked)
	for len(id.groups) > 0 {
		id.leaveGroup(id.groups[0])
	}
	id.unbind()
	id.forgetRemote()
	id.forgetNumber()
	c.ids = slices.DeleteFunc(c.ids, func(other *identifier) bool { return other == id })
	var requests []*identifier // undelivered requests; parted last, because that queues events
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
		verbs.Forget(id.addresses)
		id.addresses = nil
	}
	id.gone = true
}

func (id *identifier) release() {
	if id.shares != nil {
		id.shares.put()
		id.shares = nil
	}
	if id.record == nil {
		return
	}
	if id.record.Route.PathRec != 0 {
		verbs.Free(id.record.Route.PathRec.Deref())
	}
	verbs.Forget(id.record)
	id.record = nil
	if id.sync {
		id.channel.close()
	}
}

// informPeer tells the peer that the identifier is being destroyed. asked is its outstanding message, or nil.
func (id *identifier) informPeer(asked *exchange) {
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
			id.startDisconnectRetry(&exchange{message: id.disconnectRequest()})
		}
	case leaving:
		if asked != nil && asked.timer != 0 { // not confirmed by an MRA hint
			id.startDisconnectRetry(asked)
		}
	case left:
		id.replyDisconnect()
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
	verbs.Forget(ch.record)
}

// withdraw removes a request that no program has received.
func (id *identifier) withdraw() {
	id.listener.channel.events.Drop(func(e *event) bool { return e.request == id })
	id.listener.wait(id, -1)
	id.state = over
	id.part()
}

// withdrawn handles a request whose sender timed out. If a program has received it, rdma_accept fails, because Linux
// has no event for requests that are not yet accepted.
func (id *identifier) withdrawn() {
	if id.record == nil {
		id.withdraw()
		return
	}
	id.state = over
	id.forgetRemote()
}
