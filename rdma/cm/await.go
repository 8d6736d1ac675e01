// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"slices"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// begin starts an operation. On a synchronous ID it waits for an event that reports success, or for a failure.
func (id *ID) begin(ctx context.Context, verb string, do func() error, success ...rdmacm.CMEventType) error {
	_, err := id.beginEvent(ctx, verb, do, success...)
	return err
}

func (id *ID) beginEvent(ctx context.Context, verb string, do func() error, success ...rdmacm.CMEventType) (Event,
	error) {
	return id.beginBy(ctx, verb, id.withID, do, success...)
}

// beginBy is beginEvent with the function that calls C: withID or withIDUpdatingName.
func (id *ID) beginBy(ctx context.Context, verb string, call func(func() error) error, do func() error,
	success ...rdmacm.CMEventType) (Event, error) {
	if err := id.use(verb, id.name); err != nil {
		return Event{}, err
	}
	defer id.done()
	if err := ctx.Err(); err != nil {
		return Event{}, id.failed(verb, err)
	}
	if err := call(do); err != nil {
		return Event{}, id.failed(verb, err)
	}
	if !id.Synchronous() {
		return Event{}, nil
	}
	return id.await(ctx, verb, success...)
}

// Synchronous reports whether the ID's methods wait for the outcome.
func (id *ID) Synchronous() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.sync
}

// await waits for one of the events of success, or for a failure. It keeps other events for Event.
func (id *ID) await(ctx context.Context, verb string, success ...rdmacm.CMEventType) (Event, error) {
	ends := func(e Event) bool { return e.failed() || slices.Contains(success, e.Type) }
	e, ok := id.takePending(ends)
	for !ok {
		ch, err := id.ownChannel(verb)
		if err != nil {
			return Event{}, err
		}
		if e, err = ch.Event(ctx); err != nil {
			return Event{}, id.failed(verb, err)
		}
		to := id
		if e.ID != id && e.Listener != id { // a request's ID that is migrating to another channel
			to = e.ID
		}
		if ok = to == id && ends(e); !ok {
			to.keep(e, to != id)
		}
	}
	if e.Status == 0 && slices.Contains(success, e.Type) {
		return e, nil
	}
	return e, e.Err(verb)
}

// ownChannel returns the channel of a synchronous ID.
func (id *ID) ownChannel(verb string) (*EventChannel, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if !id.sync {
		return nil, verberr.Invalid(verb, id.name(), "the ID is asynchronous: its events arrive at its event channel")
	}
	return id.channel, nil
}

// keep queues an event of the ID for a later wait. foreign means that a wait of another ID received the event; then
// this ID may have its own channel by now.
func (id *ID) keep(e Event, foreign bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if foreign && id.sync {
		id.channel.keep(e)
		return
	}
	id.pending = append(id.pending, e)
}

// takePending removes and returns the first queued event for which wanted reports true.
func (id *ID) takePending(wanted func(Event) bool) (e Event, ok bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	return takeFirst(&id.pending, wanted)
}

func takeFirst(events *[]Event, wanted func(Event) bool) (e Event, ok bool) {
	if i := slices.IndexFunc(*events, wanted); i >= 0 {
		e, ok = (*events)[i], true
		*events = slices.Delete(*events, i, i+1)
	}
	return e, ok
}

// Event waits for the next event of a synchronous ID that no other method has waited for, such as the peer's
// disconnect. Events of an asynchronous ID arrive at its channel. If ctx ends first, the error wraps ctx's error.
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
	ch, err := id.ownChannel(verb)
	if err != nil {
		return Event{}, err
	}
	if e, ok := id.takePending(func(Event) bool { return true }); ok {
		return e, nil
	}
	e, err := ch.Event(ctx)
	return e, id.failed(verb, err)
}
