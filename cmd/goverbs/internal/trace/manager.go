// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// idKey names an ID of the connection manager.
type idKey struct {
	trace *Trace
	at    Address
}

// question is what an ID has asked last. Its answer is an event.
type question struct {
	asks *Event // or nil: nothing is open
	peer string
}

// asked follows the questions of IDs whose events are in the trace. The kernel sends a message of the connection
// manager again for about a minute before it says UNREACHABLE; a program that gives up earlier ends the ID, and there
// is no event at all.
func (j *judge) asked(t *Trace, e *Event) {
	key := idKey{t, e.CMID}
	q := j.ids[key]
	switch {
	case e.CMID == 0 || e.Errno != 0:
	case e.Alone != 0:
		delete(j.ids, key)
	case q == nil && (e.Verb == "rdma_create_id" || e.Verb == "rdma_migrate_id" || e.Event != ""):
		// Of a request, the ID comes with the event.
		j.ids[key] = &question{}
	case q == nil:
	case e.Event != "", e.Verb == "rdma_reject", e.Verb == "rdma_disconnect":
		q.asks = nil
	case e.Verb == "rdma_destroy_id":
		j.unanswering(q, e.T)
		delete(j.ids, key)
	case e.Verb == "rdma_resolve_addr":
		q.asks, q.peer = e, e.Peer
	case e.Verb == "rdma_resolve_route", e.Verb == "rdma_connect", e.Verb == "rdma_accept":
		q.asks = e
	}
}

// unheard judges the questions that are open when the traces end.
func (j *judge) unheard() {
	for key, q := range j.ids {
		j.unanswering(q, key.trace.end())
	}
}

// unanswering judges a question to which there was no answer at a time.
func (j *judge) unanswering(q *question, at uint64) {
	if q.asks == nil {
		return
	}
	const check = "see that the address is right, that a device for RDMA has it there (goverbs gids), and that " +
		"firewalls let UDP 4791 through; goverbs ping tries the path"
	c := map[string]cause{
		"rdma_resolve_addr": {"address-timeout", "no answer came to who has the address: perhaps no host has it, or " +
			"it is down", "see that the address is right and the host is up: ping, and ip neighbour"},
		"rdma_resolve_route": {"route-timeout", "the way to the address was not found: perhaps there is no subnet " +
			"manager, or the host is down", check},
		"rdma_connect": {"connect-timeout", "nothing has come back, not even that nobody listens: perhaps no host " +
			"has the address, it has no device for RDMA, packets are lost, or the program there takes the connection " +
			"late", check},
		"rdma_accept": {"accept-timeout", "the other end has not confirmed the connection: perhaps it has given up, " +
			"or packets are lost", "look at the other end, and trace it as well"},
	}[q.asks.Verb]
	waited := time.Duration(max(at, q.asks.T) - q.asks.T).Round(time.Millisecond)
	what := fmt.Sprintf("no answer in %v", waited)
	if q.peer != "" {
		what += " from " + q.peer
	}
	j.add(q.asks, nil, what, c)
}

// refusedID judges a call of the connection manager that failed, by the numbers of Linux.
func refusedID(e *Event) cause {
	const enodev, eaddrinuse, eaddrnotavail, enetunreach, etimedout, ehostunreach = 19, 98, 99, 101, 110, 113
	switch e.Errno {
	case enetunreach, ehostunreach:
		return cause{"address-unresolved", "this host knows no way to " + cmp.Or(e.Peer, "the address"),
			"see that the address is right, and ip route"}
	case enodev, eaddrnotavail:
		return cause{"address-without-device", "no device for RDMA of this host has the address, or leads to it",
			"goverbs gids lists the addresses of devices"}
	case eaddrinuse:
		return cause{"address-in-use", "another ID, perhaps of another program, has the port",
			"rdma resource show cm_id tells whose; take another port, or 0 for a free one"}
	case etimedout:
		return cause{"unreachable", "the other host does not answer", "goverbs ping tries the path"}
	}
	if strings.HasPrefix(e.Verb, "rdma_create_qp") {
		return cause{"capacity", "the device does not have so much", "goverbs query tells the device's limits"}
	}
	return cause{"call-failed", e.Error, "the error of the call says more"}
}

// end is when the last event began.
func (t *Trace) end() (at uint64) {
	for _, e := range t.Events {
		at = max(at, e.T)
	}
	return at
}

// happened judges an event of a device or of the connection manager.
func (j *judge) happened(t *Trace, e *Event) {
	var q *queuePair
	if e.QP != nil {
		q = j.find(t, *e.QP)
	}
	causes := map[string]cause{
		"CQ_ERR": {"cq-overrun", "a completion queue had no room",
			"make it as deep as all queues that complete there"},
		"PORT_ERR":     {"link-down", "a port went down", "look at the link"},
		"DEVICE_FATAL": {"device-gone", "the device failed, or was unplugged", "close everything, and open it again"},
	}
	if e.Event == "DISCONNECTED" && q != nil {
		q.parted = true
	}
	c, ok := causes[e.Event]
	if !ok {
		c, ok = managed(e)
	}
	if ok {
		f := j.add(e, q, e.Event+" "+e.Status, c)
		if q != nil && q.failed == nil {
			q.failed = f
		}
	}
}

var (
	noListener = cause{"rejected", "nobody listens at the port there",
		"start the listener, and see that the port is the same"}
	saidNo = cause{"rejected", "the program that listens there said no", "look at its log"}
)

// managed are the causes of events of the connection manager.
func managed(e *Event) (c cause, ok bool) {
	host := strings.HasPrefix(e.Status, "-110") // ETIMEDOUT
	switch e.Event {
	case "ADDR_ERROR":
		c = cause{"address-unresolved", "no device of this host leads to the address",
			"see that the address is right; goverbs gids lists this host's"}
		if host {
			c.why, c.fix = "no host has answered for the address", "see that the address is right and the host is up"
		}
	case "ROUTE_ERROR":
		c = cause{"route-unresolved", "the way to the address is not known", "goverbs ping tries it"}
	case "UNREACHABLE":
		c = cause{"unreachable", "the other host does not answer: it is down, has no device for RDMA at the address, " +
			"or packets are lost", "let UDP 4791 through firewalls; goverbs ping tries the path"}
		switch e.Status { // the answers to a lookup of datagrams
		case "1":
			c = noListener
		case "2":
			c = saidNo
		}
	case "REJECTED":
		c = cause{"rejected", "the other end refused: nobody listens at the port, or the program there said no",
			"start it"}
		switch e.Status { // the reasons of InfiniBand's connection manager
		case "8":
			c = noListener
		case "28":
			c = saidNo
		}
	case "CONNECT_ERROR":
		c = cause{"connect-failed", "the connection could not be made", "look at the other end"}
	default:
		return c, false
	}
	return c, true
}
