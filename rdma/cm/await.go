package cm

import (
	"context"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

// begin begins something, and waits for the event that tells of its success when the ID is synchronous.
func (id *ID) begin(ctx context.Context, verb string, do func() error, success ...rdmacm.CMEventType) error {
	_, err := id.beginEvent(ctx, verb, do, success...)
	return err
}

func (id *ID) beginEvent(ctx context.Context, verb string, do func() error, success ...rdmacm.CMEventType) (Event, error) {
	if err := id.use(verb, id.name); err != nil {
		return Event{}, err
	}
	defer id.done()
	if err := ctx.Err(); err != nil {
		return Event{}, err
	}
	if err := do(); err != nil {
		return Event{}, wrapOnce(verb, id.name(), err)
	}
	if !id.Synchronous() {
		return Event{}, nil
	}
	return id.await(ctx, verb, success...)
}

// wrapOnce wraps what is not wrapped yet.
func wrapOnce(verb, object string, err error) error {
	if _, ok := err.(*rdma.VerbError); ok {
		return err
	}
	return wrap(verb, object, err)
}

// Synchronous says whether methods wait for the outcome.
func (id *ID) Synchronous() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.sync
}

// failures are the events that end what was begun.
var failures = map[rdmacm.CMEventType]bool{
	rdmacm.CM_EVENT_ADDR_ERROR: true, rdmacm.CM_EVENT_ROUTE_ERROR: true, rdmacm.CM_EVENT_CONNECT_ERROR: true, rdmacm.CM_EVENT_UNREACHABLE: true,
	rdmacm.CM_EVENT_REJECTED: true, rdmacm.CM_EVENT_DISCONNECTED: true, rdmacm.CM_EVENT_DEVICE_REMOVAL: true,
	rdmacm.CM_EVENT_MULTICAST_ERROR: true, rdmacm.CM_EVENT_ADDRINFO_ERROR: true,
}

// await waits for one of the events of success, or for a failure. Other events are kept for Event.
func (id *ID) await(ctx context.Context, verb string, success ...rdmacm.CMEventType) (Event, error) {
	for {
		e, err := id.channel.Event(ctx)
		if err != nil {
			return Event{}, wrapOnce(verb, id.name(), err)
		}
		for _, s := range success {
			if e.Type == s && e.Status == 0 {
				return e, nil
			}
		}
		if failures[e.Type] || e.Status != 0 {
			return e, &EventError{Verb: verb, Object: id.name(), Event: e}
		}
		id.mu.Lock()
		id.pending = append(id.pending, e)
		id.mu.Unlock()
	}
}

// Event waits for the next event of a synchronous ID that no other method has waited for: that the peer has disconnected, say. Those of an
// asynchronous one arrive at its channel.
//
// C: rdma_get_cm_event, rdma_ack_cm_event
//
// Man: rdma_get_cm_event(3)
func (id *ID) Event(ctx context.Context) (Event, error) {
	const verb = "rdma_get_cm_event"
	if err := id.use(verb, id.name); err != nil {
		return Event{}, err
	}
	defer id.done()
	id.mu.Lock()
	if !id.sync {
		id.mu.Unlock()
		return Event{}, invalid(verb, "ID", "it is asynchronous: its events arrive at its event channel")
	}
	if len(id.pending) > 0 {
		e := id.pending[0]
		id.pending = id.pending[1:]
		id.mu.Unlock()
		return e, nil
	}
	ch := id.channel
	id.mu.Unlock()
	return ch.Event(ctx)
}
