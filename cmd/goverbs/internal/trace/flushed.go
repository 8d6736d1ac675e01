// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"fmt"
	"slices"
)

// flushed judges a queue pair that is in ERR without a request of its own that failed.
func (j *judge) flushed(q, peer *queuePair, r *posted, receive bool) cause {
	own, wrong := j.ownMistake(q, r, receive)
	switch {
	case q.byProgram:
		return cause{"moved-to-error", "the program moved the queue pair to ERR, which ends all requests",
			"this is how a connection is drained; otherwise do not move it"}
	case q.parted:
		return cause{"disconnected", "the connection was ended", "nothing, where that was meant"}
	case wrong: // newer kernels' Soft-RoCE flushes what it does not take
		return own
	case r.Op == "BIND_MW":
		return windowRefused
	case peer != nil && peer.gone != 0:
		return cause{"peer-destroyed", fmt.Sprintf("QP %#x of the other end was destroyed", peer.num),
			"end connections at both ends together"}
	}
	return cause{"flushed", "the queue pair is in ERR: a request of the other end failed here",
		"trace the other end as well"}
}

// ownMistake finds what is wrong with the memory of a request whose status does not speak of memory.
func (j *judge) ownMistake(q *queuePair, r *posted, receive bool) (c cause, ok bool) {
	if r.has("INLINE") {
		return c, false
	}
	if c = j.localMemory(q, r, receive); c.name != "memory-gone" {
		return c, true
	}
	if receive && q.Type == "UD" && slices.ContainsFunc(j.qps, func(from *queuePair) bool {
		return slices.ContainsFunc(from.sent, func(wr *WR) bool {
			return wr.To == q.num && wr.bytes()+grh > r.bytes()
		})
	}) {
		return tooSmall(q, r), true
	}
	return c, false
}

var windowRefused = cause{"window-refused", "the memory window could not be bound",
	"bind to a region with MW_BIND access, of the same protection domain, within its bounds"}
