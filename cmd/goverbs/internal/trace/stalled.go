// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"fmt"
	"slices"
)

// grh is the space for a GRH before a datagram.
const grh = 40

// stalled explains queue pairs with a pending request but no failure.
func (j *analyzer) stalled() {
	for _, q := range j.qps {
		if q.failed != nil {
			continue
		}
		end := &Event{Verb: "the end"}
		if n := len(q.trace.Events); n > 0 {
			end.T = q.trace.Events[n-1].T
		}
		if c, ok := j.pendingCause(q); ok {
			q.failed = j.add(end, q, "request did not complete", c)
		}
	}
}

// pendingCause explains a pending request.
func (j *analyzer) pendingCause(q *queuePair) (c cause, ok bool) {
	if c, ok := j.dropped(q); ok {
		return c, true
	}
	if c, ok := j.duplicates(q); ok {
		return c, true
	}
	waits := slices.IndexFunc(q.sends, func(p *posted) bool { return p.has("SIGNALED") || q.All != 0 })
	switch peer := j.peer(q); {
	case q.count > 0 && q.signaled == 0:
		return cause{"never-signaled", fmt.Sprintf("%d sends were posted, none of them signaled", q.count),
			"set IBV_SEND_SIGNALED on some of them, or sq_sig_all; otherwise the send queue fills up"}, true
	case waits < 0 || q.gone != 0:
		return c, false
	case peer != nil && q.Type == "RC" && len(peer.recvs)+len(peer.srq) == 0 && q.RNRRetry != nil && *q.RNRRetry == 7 &&
		consumesReceive(q.sends[waits].Op):
		return cause{"no-receive", "the peer has no receive posted, and rnr_retry 7 retries forever",
			"post receives before the peer sends"}, true
	}
	return cause{"not-polled", fmt.Sprintf("request %d is signaled, but its completion was not polled",
		q.sends[waits].ID),
		"poll the send completion queue, or wait for its event"}, true
}

// duplicates detects messages with sequence numbers before the expected one: the peer acknowledges and drops them as
// duplicates.
func (j *analyzer) duplicates(q *queuePair) (c cause, ok bool) {
	peer := j.peer(q)
	if q.count == 0 || peer == nil || peer.arrived > 0 || peer.DestQP == nil || *peer.DestQP != q.num {
		return c, false
	}
	c = j.unanswered(q, peer)
	return c, c.name == "psn-mismatch"
}

// consumesReceive reports whether an operation consumes a receive at the peer.
func consumesReceive(op string) bool {
	return slices.Contains([]string{"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE_WITH_IMM"}, op)
}

// dropped explains datagrams and UC messages that did not arrive, which no status reports.
func (j *analyzer) dropped(q *queuePair) (c cause, ok bool) {
	for _, e := range q.trace.Events {
		if e.QP == nil || *e.QP != q.num || e.WRs == nil || e.T < q.T || e.Errno != 0 || e.Verb == "ibv_post_recv" {
			continue
		}
		for i := range e.WRs {
			wr := &e.WRs[i]
			switch q.Type {
			case "UD":
				c, ok = j.datagram(q, wr)
			case "UC":
				if peer := j.peer(q); consumesReceive(wr.Op) && (peer == nil || peer.arrived == 0) {
					if c = j.unanswered(q, peer); peer != nil && len(peer.recvs) == 0 && c.name == "path-lost" {
						c = cause{"no-receive", "the peer had no receive posted, and UC drops such messages",
							"post receives before the peer sends"}
					}
					ok = true
				}
			}
			if ok {
				return c, true
			}
		}
	}
	return c, false
}

// datagram explains a lost datagram.
func (j *analyzer) datagram(q *queuePair, wr *WR) (c cause, ok bool) {
	peer := j.find(q.trace, wr.To)
	to := fmt.Sprintf("the datagram for QP %#x", wr.To)
	gid := j.ahs[ahKey{q.trace, wr.AH}]
	switch {
	case peer == nil:
		return cause{"peer-unknown", to + ": unknown in all traces", "check the exchanged QP number"}, true
	case peer.arrived > 0:
		return c, false
	case peer.gone != 0:
		return cause{"peer-destroyed", to + ": already destroyed", "exchange the number of a current queue pair"}, true
	case gid != "" && len(j.gids[peer.Device]) > 0 && !slices.Contains(j.gids[peer.Device], gid):
		return cause{"wrong-gid", "no port of the receiver has GID " + gid, "list GIDs with goverbs gids"}, true
	case peer.State != "RTR" && peer.State != "RTS":
		return cause{"peer-not-ready", to + ": it is in state " + peer.State, "move it to RTR"}, true
	case peer.QKey != nil && wr.QKey&0x80000000 == 0 && wr.QKey != *peer.QKey:
		return cause{"qkey-mismatch", fmt.Sprintf("%s has Q_Key %#x, the receiver %#x", to, wr.QKey, *peer.QKey),
			"use the receiver's Q_Key in the request"}, true
	case len(peer.recvs) == 0:
		return cause{"no-receive", to + ": dropped for lack of a receive", "post receives first"}, true
	case peer.recvs[0].bytes() < wr.bytes()+grh:
		return cause{"grh-room", fmt.Sprintf("the receive has %d bytes, the datagram needs %d plus %d for the GRH",
			peer.recvs[0].bytes(), wr.bytes(), grh), "post receives 40 bytes larger than the datagram"}, true
	}
	return cause{"path-lost", to + " was lost, or its completion was not polled",
		"poll the receiver's completion queue; test the path with goverbs ping"}, true
}
