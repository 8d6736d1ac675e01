// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"fmt"
	"slices"
)

// flushed explains a queue pair in ERR none of whose requests failed.
func (j *analyzer) flushed(q, peer *queuePair, r *posted, receive bool) cause {
	own, wrong := j.localError(q, r, receive)
	switch {
	case q.byProgram:
		return cause{"moved-to-error", "the program moved the queue pair to ERR",
			"none if this drains a connection"}
	case q.disconnected:
		return cause{"disconnected", "the connection was closed", "none if intended"}
	case wrong: // Soft-RoCE of newer kernels flushes requests that it rejects
		return own
	case r.Op == "BIND_MW":
		return bindFailed
	case peer != nil && peer.gone != 0:
		return cause{"peer-destroyed", fmt.Sprintf("QP %#x of the peer was destroyed", peer.num),
			"close connections on both ends together"}
	}
	return cause{"flushed", "the queue pair is in ERR: a request of the peer failed here",
		"trace the peer, too"}
}

// localError checks the memory of a request whose status does not indicate a memory error.
func (j *analyzer) localError(q *queuePair, r *posted, receive bool) (c cause, ok bool) {
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

var bindFailed = cause{"window-refused", "the memory window could not be bound",
	"bind to a region with MW_BIND access, of the same protection domain, within its bounds"}
