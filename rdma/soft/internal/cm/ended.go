// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// mostRecent is the number of ended requests to remember.
const mostRecent = 1024

// recent remembers the last requests by sender.
type recent[V any] struct {
	of    map[peerKey]V
	order []peerKey // used as a ring once full
	next  int
}

// ending is the result of a request or of the answer to one. A duplicate, sent because the response was lost or
// delivered late, gets the same response.
type ending struct {
	tid     uint64
	refusal *message.MAD // nil: the sender no longer waits
}

// hasEnded reports whether a message belongs to a request that ended recently, and answers it.
func (c *Manager) hasEnded(at *verbs.Device, m *message.MAD) bool {
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
