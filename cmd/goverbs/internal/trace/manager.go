// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// idKey identifies an ID of the connection manager.
type idKey struct {
	trace *Trace
	at    Address
}

// idState is the state of an ID of the connection manager.
type idState struct {
	request *Event // latest request, until its event; or nil
	peer    string
}

// track records requests of IDs whose events are traced. The kernel retransmits for about a minute before it reports
// UNREACHABLE; if the program destroys the ID earlier, there is no event.
func (j *analyzer) track(t *Trace, e *Event) {
	key := idKey{t, e.CMID}
	q := j.ids[key]
	switch {
	case e.CMID == 0 || e.Errno != 0:
	case e.Alone != 0:
		delete(j.ids, key)
	case q == nil && (e.Verb == "rdma_create_id" || e.Verb == "rdma_migrate_id" || e.Event != ""):
		// The event of a connection request carries the new ID.
		j.ids[key] = &idState{}
	case q == nil:
	case e.Event != "", e.Verb == "rdma_reject", e.Verb == "rdma_disconnect":
		q.request = nil
	case e.Verb == "rdma_destroy_id":
		j.noAnswer(q, e.T)
		delete(j.ids, key)
	case e.Verb == "rdma_resolve_addr":
		q.request, q.peer = e, e.Peer
	case e.Verb == "rdma_resolve_route", e.Verb == "rdma_connect", e.Verb == "rdma_accept":
		q.request = e
	}
}

// pending explains requests that are pending at the end of the traces.
func (j *analyzer) pending() {
	for key, q := range j.ids {
		j.noAnswer(q, key.trace.end())
	}
}

// noAnswer explains a request without an answer.
func (j *analyzer) noAnswer(q *idState, at uint64) {
	if q.request == nil {
		return
	}
	const check = "check the address, that an RDMA device there has it (goverbs gids), and that firewalls allow UDP " +
		"port 4791; test the path with goverbs ping"
	c := map[string]cause{
		"rdma_resolve_addr": {"address-timeout",
			"no answer to address resolution: the address is unused or its host down",
			"check the address and the host: ping, and ip neighbour"},
		"rdma_resolve_route": {"route-timeout", "no route to the address: perhaps there is no subnet " +
			"manager, or the host is down", check},
		"rdma_connect": {"connect-timeout", "no answer, not even a rejection: perhaps no host has the address, it " +
			"has no RDMA device, packets are lost, or the program there takes the connection late", check},
		"rdma_accept": {"accept-timeout", "the peer has not confirmed the connection: perhaps it has timed out, " +
			"or packets are lost", "check the peer, and trace it, too"},
	}[q.request.Verb]
	waited := time.Duration(max(at, q.request.T) - q.request.T).Round(time.Millisecond)
	finding := fmt.Sprintf("no answer in %v", waited)
	if q.peer != "" {
		finding += " from " + q.peer
	}
	j.add(q.request, nil, finding, c)
}

// idCause explains a failed call of the connection manager by Linux's errno.
func idCause(e *Event) cause {
	const enodev, eaddrinuse, eaddrnotavail, enetunreach, etimedout, ehostunreach = 19, 98, 99, 101, 110, 113
	switch e.Errno {
	case enetunreach, ehostunreach:
		return cause{"address-unresolved", "this host has no route to " + cmp.Or(e.Peer, "the address"),
			"check the address, and ip route"}
	case enodev, eaddrnotavail:
		return cause{"address-without-device", "no RDMA device of this host has the address or a route to it",
			"list the addresses of devices with goverbs gids"}
	case eaddrinuse:
		return cause{"address-in-use", "another ID, perhaps of another program, uses the port",
			"find it with rdma resource show cm_id; use another port, or 0 for a free one"}
	case etimedout:
		return cause{"unreachable", "no answer from the peer", "test the path with goverbs ping"}
	}
	if strings.HasPrefix(e.Verb, "rdma_create_qp") {
		return cause{"capacity", "the request exceeds a limit of the device", "see the limits with goverbs query"}
	}
	return cause{"call-failed", e.Error, "see the error of the call"}
}

// end returns the start of the last event.
func (t *Trace) end() (at uint64) {
	for _, e := range t.Events {
		at = max(at, e.T)
	}
	return at
}

// async explains an event of a device or of the connection manager.
func (j *analyzer) async(t *Trace, e *Event) {
	var q *queuePair
	if e.QP != nil {
		q = j.find(t, *e.QP)
	}
	causes := map[string]cause{
		"CQ_ERR": {"cq-overrun", "a completion queue overflowed",
			"make it at least as deep as all queues that use it"},
		"PORT_ERR":     {"link-down", "a port went down", "check the link"},
		"DEVICE_FATAL": {"device-gone", "the device failed or was removed", "close all objects and reopen the device"},
	}
	if e.Event == "DISCONNECTED" && q != nil {
		q.disconnected = true
	}
	c, ok := causes[e.Event]
	if !ok {
		c, ok = managerCause(e)
	}
	if ok {
		f := j.add(e, q, e.Event+" "+e.Status, c)
		if q != nil && q.failed == nil {
			q.failed = f
		}
	}
}

var (
	noListener = cause{"rejected", "no listener on the port",
		"start the listener, and check the port"}
	rejectedByProgram = cause{"rejected", "the listening program rejected the connection", "check its log"}
)

// managerCause explains events of the connection manager.
func managerCause(e *Event) (c cause, ok bool) {
	host := strings.HasPrefix(e.Status, "-110") // ETIMEDOUT
	switch e.Event {
	case "ADDR_ERROR":
		c = cause{"address-unresolved", "no RDMA device of this host has a route to the address",
			"check the address; list this host's with goverbs gids"}
		if host {
			c.why, c.fix = "no answer to address resolution", "check the address and the host"
		}
	case "ROUTE_ERROR":
		c = cause{"route-unresolved", "no route to the address", "test it with goverbs ping"}
	case "UNREACHABLE":
		c = cause{"unreachable", "no answer from the peer: it is down, has no RDMA device with the address, or " +
			"packets are lost", "allow UDP port 4791 in firewalls; test the path with goverbs ping"}
		switch e.Status { // status of a SIDR reply
		case "1":
			c = noListener
		case "2":
			c = rejectedByProgram
		}
	case "REJECTED":
		c = cause{"rejected", "the peer rejected: no listener on the port, or the program rejected",
			"start it"}
		switch e.Status { // reject reasons of the InfiniBand connection manager
		case "8":
			c = noListener
		case "28":
			c = rejectedByProgram
		}
	case "CONNECT_ERROR":
		c = cause{"connect-failed", "the connection failed", "check the peer"}
	default:
		return c, false
	}
	return c, true
}
