// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"log/slog"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// Event is a copy of an event of an [ID]. The original has been acknowledged. rdmacm.EventMeaning explains the types.
//
// Man: rdma_get_cm_event(3)
type Event struct {
	Type rdmacm.CMEventType
	// Status is 0 or an error: usually a negative errno; for a rejection the reason, such as 28 after rdma_reject.
	Status int
	// ID is the event's ID. For RDMA_CM_EVENT_CONNECT_REQUEST it is a new ID, for Accept or Reject, which the receiver
	// must close.
	ID *ID
	// Listener is the ID that received the request.
	Listener *ID
	// Conn is valid in events of connections, as C's param.conn. Its PrivateData field is 0: see PrivateData below.
	Conn rdmacm.ConnParam
	// UD is valid in events of datagram services and multicast groups, as C's param.ud. Its PrivateData field is 0.
	UD rdmacm.UDParam
	// PrivateData is the peer's data, or nil. Over InfiniBand and RoCE it is padded with zeros: see the package
	// comment.
	PrivateData []byte
	// Group is set in multicast events: the number that Join returned.
	Group uint64
	// Arg is set in RDMA_CM_EVENT_USER: the argument of WriteEvent.
	Arg uint64
}

// String names the event and its ID. The zero value is "no event".
//
// C: rdma_event_str
//
// Man: rdma_event_str(3)
func (e Event) String() string {
	if e.ID == nil && e.Type == 0 { // every event has an ID
		return "no event"
	}
	s := e.Type.String()
	if e.ID != nil {
		s += " of " + e.ID.String()
	}
	if e.Status != 0 {
		s += fmt.Sprintf(" with status %d", e.Status)
	}
	return s
}

// copyEvent copies C's event. The caller holds ch.calls, which keeps the event's IDs valid.
func (ch *EventChannel) copyEvent(c *rdmacm.CMEvent) Event {
	e := Event{Type: c.Event, Status: int(c.Status)}
	if c.Event == rdmacm.CM_EVENT_CONNECT_REQUEST {
		e.Listener = knownID(c.ListenID)
		e.ID = newID(ch, c.ID.Deref(), e.Listener)
		e.ID.request = true
		e.ID.noReads.Store(c.Param.Conn().InitiatorDepth == 0)
	} else {
		e.ID = knownID(c.ID)
	}
	datagram := c.ID.Deref().QPType == ibv.QPT_UD
	switch c.Event {
	case rdmacm.CM_EVENT_MULTICAST_JOIN, rdmacm.CM_EVENT_MULTICAST_ERROR:
		e.UD = *c.Param.UD()
		e.Group = uint64(e.UD.PrivateData)
	case rdmacm.CM_EVENT_USER:
		e.Arg = *c.Param.Arg()
	case rdmacm.CM_EVENT_ADDR_RESOLVED, rdmacm.CM_EVENT_ROUTE_RESOLVED, rdmacm.CM_EVENT_ADDRINFO_RESOLVED,
		rdmacm.CM_EVENT_ADDRINFO_ERROR:
	default:
		if datagram {
			e.UD = *c.Param.UD()
			e.PrivateData = copyBytes(e.UD.PrivateData, e.UD.PrivateDataLen)
		} else {
			e.Conn = *c.Param.Conn()
			e.PrivateData = copyBytes(e.Conn.PrivateData, e.Conn.PrivateDataLen)
		}
	}
	e.Conn.PrivateData, e.UD.PrivateData = 0, 0
	return e
}

// copyBytes copies C memory.
func copyBytes(address uintptr, n uint8) []byte {
	if address == 0 || n == 0 {
		return nil
	}
	return append([]byte(nil), unsafe.Slice(ibv.Ptr[byte](address).Deref(), n)...)
}

// failures contains the events that end an operation with an error.
var failures = map[rdmacm.CMEventType]bool{
	rdmacm.CM_EVENT_ADDR_ERROR: true, rdmacm.CM_EVENT_ROUTE_ERROR: true, rdmacm.CM_EVENT_CONNECT_ERROR: true,
	rdmacm.CM_EVENT_UNREACHABLE: true, rdmacm.CM_EVENT_REJECTED: true, rdmacm.CM_EVENT_DISCONNECTED: true,
	rdmacm.CM_EVENT_DEVICE_REMOVAL: true, rdmacm.CM_EVENT_MULTICAST_ERROR: true, rdmacm.CM_EVENT_ADDRINFO_ERROR: true,
}

// failed reports whether the event ends an operation with an error. For RDMA_CM_EVENT_USER, the status is the program's
// and means no error.
func (e Event) failed() bool {
	return failures[e.Type] || e.Status != 0 && e.Type != rdmacm.CM_EVENT_USER
}

// Err returns an [EventError] if the event ends an operation or a connection with an error, and nil otherwise. Use it
// with asynchronous IDs, whose methods only start operations. verb is the operation, such as "rdma_connect".
func (e Event) Err(verb string) error {
	if !e.failed() {
		return nil
	}
	err := &EventError{Verb: verb, Event: e}
	if e.ID == nil {
		return err
	}
	err.Object = e.ID.name()
	switch {
	case err.noListener():
		err.hint = e.ID.localOnlyHint()
	case e.Type == rdmacm.CM_EVENT_UNREACHABLE && !err.noQueuePair():
		err.hint = e.ID.NoAnswerHint()
	}
	return err
}

// LogValue is String, for package log/slog.
func (e Event) LogValue() slog.Value { return slog.StringValue(e.String()) }
