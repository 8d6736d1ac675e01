// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// EventError reports a failed operation, with its event. errors.Is matches the corresponding errno, such as
// ECONNREFUSED for a rejection (also of a datagram lookup), ETIMEDOUT for a peer that does not respond, and ENODEV for
// a removed device. errors.As converts it to an rdma.VerbError with the same errno.
//
// Man: rdma_get_cm_event(3)
type EventError struct {
	Verb   string // "rdma_connect"
	Object string // the ID
	Event  Event  // for a rejection, with the peer's PrivateData
	hint   string // instruction that reason appends
}

func (e *EventError) Error() string {
	s := e.Verb + ": " + e.Object + ": " + e.Event.Type.String()
	if reason := e.reason(); reason != "" {
		s += ": " + reason
	}
	if e.Event.Status != 0 {
		s += " (status " + strconv.Itoa(e.Event.Status) + ")"
	}
	return s + ": " + verberr.Text(e.errno())
}

// Rejection reasons over InfiniBand and RoCE that reason explains.
const (
	rejectStaleConn        = 10
	rejectNoListener       = 8 // an invalid service ID
	rejectConsumer         = 28
	rejectVendorOption     = 35
	rejectTimeout          = 4
	rejectNoResources      = 3
	rejectNoQP             = 1
	rejectUnsupportedReply = 9
)

// Status values of a datagram lookup (SIDR) that failed.
const (
	lookupNoListener = 1 // an unsupported service ID
	lookupRejected   = 2
)

// noQueuePair reports whether the peer answered a datagram lookup without a queue pair. If there is no answer, the
// event has the same type, and its status is 0 or a negative errno.
func (e *EventError) noQueuePair() bool {
	return e.Event.Type == rdmacm.CM_EVENT_UNREACHABLE && e.Event.Status > 0
}

// noListener reports whether the peer's host answered that there is no listener.
func (e *EventError) noListener() bool {
	return e.noQueuePair() && e.Event.Status == lookupNoListener ||
		e.Event.Type == rdmacm.CM_EVENT_REJECTED && e.Event.Status == rejectNoListener
}

func (e *EventError) reason() string {
	if e.noListener() {
		return "no listener" + e.hint
	}
	switch e.Event.Type {
	case rdmacm.CM_EVENT_ADDR_ERROR:
		others := ""
		if e.Event.ID != nil {
			others = addressesOf(e.Event.ID.backend)
		}
		switch errno := e.errno(); {
		case errno == syscall.ETIMEDOUT:
			return "no answer from the address: check that its host and link are up"
		case errno == syscall.EHOSTUNREACH && others != "":
			return "no device has the address" + others + otherProcessesHint(e.Event.ID.backend)
		}
		return "no RDMA device has a route to the address: check the route, and the device on its network interface"
	case rdmacm.CM_EVENT_ROUTE_ERROR:
		return "no path to the address"
	case rdmacm.CM_EVENT_UNREACHABLE:
		switch {
		case e.Event.Status == lookupRejected:
			return "the peer's program rejected it"
		case e.noQueuePair():
			return "the peer has no queue pair for the request"
		}
		return strings.TrimSuffix("the peer does not answer: "+e.hint, ": ")
	case rdmacm.CM_EVENT_CONNECT_ERROR:
		return "connecting the queue pair failed"
	case rdmacm.CM_EVENT_DISCONNECTED:
		return "the peer ended the connection"
	case rdmacm.CM_EVENT_DEVICE_REMOVAL:
		return "the device is being removed; close all of its objects"
	case rdmacm.CM_EVENT_MULTICAST_ERROR:
		return "the group cannot be joined, or was lost"
	case rdmacm.CM_EVENT_REJECTED:
		switch e.Event.Status {
		case rejectConsumer:
			return "the peer's program rejected it"
		case rejectVendorOption:
			return "the peer does not accept the ECE options"
		case rejectStaleConn:
			return "the peer still has an older connection with this queue pair number"
		case rejectNoQP, rejectNoResources:
			return "the peer has no resources left"
		case rejectTimeout:
			return "the peer timed out"
		}
		return "the peer rejected it"
	}
	return ""
}

// NoAnswerHint returns an instruction for error messages of a program that times out by itself while waiting for the
// peer. An [EventError] already includes it.
func (id *ID) NoAnswerHint() string {
	peer := id.PeerAddr().Addr().Unmap()
	b, software := id.backend.(interface{ Addresses() map[netip.Addr]string })
	switch {
	case !software:
		return "check that its address has an RDMA device, and that firewalls allow UDP port 4791 (RoCE)"
	case !peer.IsValid():
		return "check that the listener's process is running"
	case b.Addresses()[peer] != "":
		return "check that its program calls Accept, and that its link is up"
	}
	if peer.Is6() && peer.IsLinkLocalUnicast() {
		return fmt.Sprintf("perhaps no process has a device at %v: start the listener there, on an adapter or with "+
			"GOVERBS_DEVICE=soft@%v%%INTERFACE, and allow UDP port 4791 in firewalls", peer, peer.WithZone(""))
	}
	return fmt.Sprintf("perhaps no process has a device at %v: start the listener there, on an adapter or with "+
		"GOVERBS_DEVICE=soft@%v, and allow UDP port 4791 in firewalls", peer, peer)
}

// addressesOf returns text that lists the addresses of a software backend, or "" for other backends.
func addressesOf(backend runtime.Backend) string {
	b, ok := backend.(interface{ Addresses() map[netip.Addr]string })
	if !ok {
		return ""
	}
	all := b.Addresses()
	var texts []string
	for _, ip := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		texts = append(texts, fmt.Sprintf("%v (%s)", ip, all[ip]))
	}
	if len(texts) == 0 {
		return "; the software devices have no address"
	}
	return "; the software devices have " + strings.Join(texts, ", ")
}

// otherProcessesHint returns text about reaching other processes if no software device has a wire, or "".
func otherProcessesHint(backend runtime.Backend) string {
	b, _ := backend.(interface{ Addresses() map[netip.Addr]string })
	if b == nil || slices.ContainsFunc(slices.Collect(maps.Values(b.Addresses())), chosen.IsWired) {
		return ""
	}
	return " in this process; use a device soft@ADDRESS to reach others"
}

// localOnlyHint returns text for the error "no listener" if the peer's address is a software device without a wire, or "".
func (id *ID) localOnlyHint() string {
	b, software := id.backend.(interface{ Addresses() map[netip.Addr]string })
	if !software {
		return ""
	}
	device := b.Addresses()[id.PeerAddr().Addr().Unmap()]
	if device == "" || chosen.IsWired(device) {
		return ""
	}
	return fmt.Sprintf(" in this process, and %s reaches no other; to connect processes, give "+
		"each a device soft@ADDRESS with its own address", device)
}

// errno returns the errno that matches the event.
func (e *EventError) errno() runtime.Errno {
	if s := e.Event.Status; s < -1 && e.Event.Type != rdmacm.CM_EVENT_REJECTED {
		return runtime.Errno(-s)
	}
	switch e.Event.Type {
	case rdmacm.CM_EVENT_ADDR_ERROR, rdmacm.CM_EVENT_ROUTE_ERROR:
		return syscall.EHOSTUNREACH
	case rdmacm.CM_EVENT_UNREACHABLE:
		if e.noQueuePair() {
			return syscall.ECONNREFUSED
		}
		return syscall.ETIMEDOUT
	case rdmacm.CM_EVENT_REJECTED:
		return syscall.ECONNREFUSED
	case rdmacm.CM_EVENT_DISCONNECTED:
		return syscall.ECONNRESET
	case rdmacm.CM_EVENT_DEVICE_REMOVAL:
		return syscall.ENODEV
	}
	return syscall.EIO
}

// Is reports whether target is the errno of the event, or runtime.ErrNotSupported if that matches the errno.
func (e *EventError) Is(target error) bool {
	errno := e.errno()
	return target == errno || (&runtime.CallError{Errno: errno}).Is(target)
}

// As converts the error to an [rdma.VerbError], the error type of the package's other methods.
func (e *EventError) As(target any) bool {
	to, ok := target.(**rdma.VerbError)
	if ok {
		*to = &rdma.VerbError{Verb: e.Verb, Object: e.Object, Errno: e.errno(),
			Reason: strings.TrimSuffix(e.Event.Type.String()+": "+e.reason(), ": ")}
	}
	return ok
}

// Timeout reports whether the peer did not answer. A net.OpError with this error then is a timeout, too.
func (e *EventError) Timeout() bool { return e.errno() == syscall.ETIMEDOUT }

// invalid returns the error for invalid arguments, or the closed error if the ID is closed.
func (id *ID) invalid(verb, reason string) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return verberr.Invalid(verb, id.named(), "%s", reason)
}

// errnoReason pairs an errno of a call with its meaning.
type errnoReason struct {
	errno  runtime.Errno
	reason string
}

// failed returns err with the verb, the ID's name and the matching reason, or nil if err is nil.
func (id *ID) failed(verb string, err error, reasons ...errnoReason) error {
	if err == nil {
		return nil
	}
	reason := ""
	for _, b := range reasons {
		if errors.Is(err, b.errno) {
			reason = b.reason
		}
	}
	return verberr.Injected(id.backend, verberr.Explain(verb, id.name(), reason, err))
}
