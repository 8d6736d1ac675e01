// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"slices"
	"strings"
)

// state is the state of all programs at an event.
type state struct {
	mrs  []*region
	qps  []*queuePair
	ahs  map[ahKey]string // destination GIDs
	gids map[string][]string
}

type ahKey struct {
	trace *Trace
	at    Address
}

type region struct {
	trace           *Trace
	device          string
	pd, at          Address
	bytes           uint64
	lkey, rkey      uint32
	access          string
	created, closed uint64 // closed is 0 if it exists
}

// alive reports whether the region existed at a time.
func (r *region) alive(t uint64) bool { return r.created <= t && (r.closed == 0 || r.closed > t) }

// queuePair is a queue pair with its latest attributes.
type queuePair struct {
	Event // its creation, updated by later changes
	trace *Trace
	num   uint32
	gone  uint64
	// requests without a completion, the oldest first
	sends, recvs []*posted
	sent         []*WR // datagrams, completed or not
	srq          []*posted
	count        int // number of sends
	signaled     int
	arrived      int // completed receives
	byProgram    bool
	disconnected bool
	left         uint64 // time of rdma_disconnect, or 0
	failed       *Finding
}

// posted is a pending request.
type posted struct {
	WR
	t uint64
}

// set applies the attributes of a change.
func (q *queuePair) set(e *Event) {
	if e.Errno != 0 {
		return
	}
	if e.State != "" {
		q.State = e.State
		q.byProgram = e.State == "ERR"
		if e.State == "RESET" {
			q.sends, q.recvs, q.failed = nil, nil, nil
		}
	}
	if e.Access != "" {
		q.Access = e.Access
	}
	if e.DGID != "" {
		q.DGID = e.DGID
	}
	for to, from := range map[**uint32]*uint32{&q.DestQP: e.DestQP, &q.QKey: e.QKey, &q.RQPSN: e.RQPSN,
		&q.SQPSN: e.SQPSN, &q.PKeyIndex: e.PKeyIndex, &q.MTU: e.MTU, &q.Timeout: e.Timeout, &q.RetryCnt: e.RetryCnt,
		&q.RNRRetry: e.RNRRetry, &q.RdAtomic: e.RdAtomic, &q.DestRdAtomc: e.DestRdAtomc} {
		if from != nil {
			*to = from
		}
	}
}

// find returns the newest queue pair with a number, preferably of the same program.
func (s *state) find(t *Trace, num uint32) (found *queuePair) {
	for _, q := range s.qps {
		if q.num == num && (found == nil || q.trace == t || found.trace != t) {
			found = q
		}
	}
	return found
}

// findID returns the newest queue pair of a connection manager ID, or nil.
func (s *state) findID(t *Trace, id Address) *queuePair {
	for _, q := range slices.Backward(s.qps) {
		if q.trace == t && id != 0 && q.CMID == id {
			return q
		}
	}
	return nil
}

// peer returns the peer of a queue pair, or nil.
func (s *state) peer(q *queuePair) *queuePair {
	if q.DestQP == nil {
		return nil
	}
	return s.find(q.trace, *q.DestQP)
}

// local returns a region by its owner's key. Keys are per device.
func (s *state) local(t *Trace, device string, lkey uint32, at uint64) *region {
	return s.region(func(r *region) bool { return r.trace == t && r.device == device && r.lkey == lkey }, at)
}

// region returns the matching region that exists at a time, or the latest one.
func (s *state) region(is func(*region) bool, at uint64) (last *region) {
	for _, r := range s.mrs {
		if is(r) && (last == nil || !last.alive(at)) {
			last = r
		}
	}
	return last
}

// update updates the state. The caller handles completions.
func (s *state) update(t *Trace, e *Event) {
	switch {
	case e.Verb == "rdma_disconnect": // it moves the queue pair to ERR first, even if the call fails
		if q := s.findID(t, e.CMID); q != nil && q.left == 0 {
			q.left = e.T
		}
	case e.Errno != 0:
	case strings.HasPrefix(e.Verb, "ibv_reg_mr"):
		s.mrs = append(s.mrs, &region{trace: t, device: e.Device, pd: e.PD, at: e.At, bytes: e.Bytes, lkey: e.LKey,
			rkey:   e.RKey,
			access: e.Access, created: e.T})
	case e.Verb == "ibv_dereg_mr":
		if r := s.local(t, e.Device, e.LKey, e.T); r != nil && r.closed == 0 {
			r.closed = e.T
		}
	case strings.Contains(e.Verb, "_create_qp") && e.QP != nil:
		s.qps = append(s.qps, &queuePair{Event: *e, trace: t, num: *e.QP})
	case (e.Verb == "ibv_destroy_qp" || e.Verb == "rdma_destroy_qp") && e.QP != nil:
		if q := s.find(t, *e.QP); q != nil {
			q.gone = e.T
		}
	case e.Verb == "ibv_create_ah":
		s.ahs[ahKey{t, e.AH}] = e.DGID
	case e.Verb == "ibv_modify_qp" && e.QP != nil, e.Verb == "rdma_connect" && e.QP != nil,
		e.Verb == "rdma_accept" && e.QP != nil:
		if q := s.find(t, *e.QP); q != nil {
			q.set(e)
		}
	case e.GIDs != "":
		s.gids[e.Device] = strings.Split(e.GIDs, " ")
	}
	s.post(t, e)
}

// post records requests.
func (s *state) post(t *Trace, e *Event) {
	if e.QP == nil || e.WRs == nil || e.Errno != 0 {
		return
	}
	if e.Verb == "ibv_post_srq_recv" {
		for _, q := range s.qps {
			if q.trace == t && q.SRQ != nil && *q.SRQ == *e.QP {
				for _, wr := range e.WRs {
					q.srq = append(q.srq, &posted{wr, e.T})
				}
			}
		}
		return
	}
	q := s.find(t, *e.QP)
	if q == nil {
		return
	}
	for _, wr := range e.WRs {
		if e.Verb == "ibv_post_recv" {
			q.recvs = append(q.recvs, &posted{wr, e.T})
			continue
		}
		q.count++
		if wr.has("SIGNALED") || q.All != 0 {
			q.signaled++
		}
		q.sends = append(q.sends, &posted{wr, e.T})
		if wr.To != 0 {
			q.sent = append(q.sent, &wr)
		}
	}
}

// complete returns the request of a completion and whether it is a receive. It completes all earlier requests, too.
func (q *queuePair) complete(wc *Completion) (request *posted, receive bool) {
	is := func(p *posted) bool { return p.ID == wc.ID }
	recv := strings.HasPrefix(wc.Op, "RECV")
	if i := slices.IndexFunc(q.sends, is); i >= 0 && !recv {
		request = q.sends[i]
		q.sends = q.sends[i+1:]
		return request, false
	}
	for _, list := range []*[]*posted{&q.recvs, &q.srq} {
		if i := slices.IndexFunc(*list, is); i >= 0 {
			request = (*list)[i]
			*list = slices.Delete(slices.Clone(*list), i, i+1)
			q.arrived++
			return request, true
		}
	}
	return nil, recv
}
