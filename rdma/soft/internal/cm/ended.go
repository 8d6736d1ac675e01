// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// mostRecent is how many requests are remembered.
const mostRecent = 1024

// recent is what is known of the last requests, by their senders.
type recent[V any] struct {
	of    map[peerKey]V
	order []peerKey // a ring, once it is full
	next  int
}

// ending is how a request, or the answer to one, ended. One that comes again, because what was said to it was lost, or
// the network kept it for a while, is no other one: it hears the same.
type ending struct {
	tid     uint64
	refusal *message.MAD // nil where the sender waits for no answer any more
}

// hasEnded says whether a message is one that has ended lately, which is then answered.
func (c *Manager) hasEnded(at *device.Device, m *message.MAD) bool {
	end, ok := c.ended.of[peerKey{m.From.Link, m.LocalID}]
	if !ok || end.tid != m.TID {
		return false
	}
	if end.refusal != nil {
		at.SendMAD(end.refusal)
	}
	return true
}

func (r *recent[V]) add(sender peerKey, v V) {
	if r.of == nil {
		r.of = map[peerKey]V{}
	}
	if _, ok := r.of[sender]; !ok {
		if len(r.order) < mostRecent {
			r.order = append(r.order, sender)
		} else {
			delete(r.of, r.order[r.next])
			r.order[r.next] = sender
			r.next = (r.next + 1) % mostRecent
		}
	}
	r.of[sender] = v
}
