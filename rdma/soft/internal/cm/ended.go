// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// mostEndings is how many ended requests are remembered.
const mostEndings = 1024

// endings are the requests and answers to them that ended last, by their senders. One that comes again, because what
// was said to it was lost, or the network kept it for a while, is no other one: it hears the same.
type endings struct {
	of    map[peerKey]ending
	order []peerKey // a ring, once it is full
	next  int
}

type ending struct {
	tid     uint64
	refusal *message.MAD // nil where the sender waits for no answer any more
}

// repeats says whether a message is one of those, which is then answered.
func (e *endings) repeats(at *device.Device, m *message.MAD) bool {
	end, ok := e.of[peerKey{m.From.Link, m.LocalID}]
	if !ok || end.tid != m.TID {
		return false
	}
	if end.refusal != nil {
		at.SendMAD(end.refusal)
	}
	return true
}

func (e *endings) add(sender peerKey, end ending) {
	if e.of == nil {
		e.of = map[peerKey]ending{}
	}
	if _, ok := e.of[sender]; !ok {
		if len(e.order) < mostEndings {
			e.order = append(e.order, sender)
		} else {
			delete(e.of, e.order[e.next])
			e.order[e.next] = sender
			e.next = (e.next + 1) % mostEndings
		}
	}
	e.of[sender] = end
}
