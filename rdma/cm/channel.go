// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/readiness"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// EventChannel receives the events of any number of asynchronous [ID]s. Waiting goroutines use Go's netpoller and block
// no thread. An EventChannel is safe for concurrent use.
//
// Man: rdma_create_event_channel(3)
type EventChannel struct {
	object
	c       *rdmacm.EventChannel
	fd      int32 // of C's channel; kept for error texts after c is destroyed
	backend runtime.Backend
	number  uint64 // creation order among all channels, for lockBoth
	ready   *readiness.FD

	// calls is held while C takes an event and it is copied and acknowledged, because C then reads and writes the
	// event's ID. It is also held while an ID gets or loses a queue pair that events may change, and while a listener
	// is destroyed.
	calls sync.Mutex
	get   func() bool
	c1    *ibv.Ptr[rdmacm.CMEvent]
	event Event // the last event; guarded by ready's turn, like the fields above
	err   error

	mu       sync.Mutex // guards the fields below
	ids      map[*ID]struct{}
	stopping bool    // the synchronous ID that owns the channel is being closed
	kept     []Event // events received by other waits, before or while their IDs moved here
}

var channels atomic.Uint64

// CreateEventChannel creates an event channel of the kernel's connection manager, or of the built-in software fabric:
// see "Which library" in the package's documentation.
//
// C: rdma_create_event_channel
//
// Man: rdma_create_event_channel(3)
func CreateEventChannel() (*EventChannel, error) {
	return CreateEventChannelOn(nil)
}

// CreateEventChannelOn creates an event channel of a software backend. A nil backend selects by GOVERBS_DEVICE, like
// CreateEventChannel; runtime.Native selects rdma-core.
func CreateEventChannelOn(backend runtime.Backend) (*EventChannel, error) {
	const verb = "rdma_create_event_channel"
	backend, err := chosen.Of(backend)
	if err != nil {
		return nil, err
	}
	c, err := librdmacm.From{Backend: backend}.CreateEventChannel()
	if err != nil {
		reason := ""
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EPERM) {
			reason = "check the RDMA device and the module rdma_ucm. Without an adapter, " + chosen.Hint()
		}
		return nil, verberr.Injected(backend, verberr.Explain(verb, "", reason, err))
	}
	ch := &EventChannel{c: c, fd: c.FD, backend: backend, number: channels.Add(1), ids: map[*ID]struct{}{},
		c1: new(ibv.Ptr[rdmacm.CMEvent])}
	if ch.ready, err = readiness.New(c.FD, "event channel"); err != nil {
		librdmacm.DestroyEventChannel(c)
		return nil, verberr.Wrap(verb, "", fmt.Errorf("wait for its descriptor: %w", err))
	}
	ch.get = ch.take
	ch.created(ch.name(), ch.ready.Poke, ch.destroy)
	return ch, nil
}

// C returns C's object, for calls of generated/librdmacm. It belongs to the EventChannel.
func (ch *EventChannel) C() *rdmacm.EventChannel { return ch.c }

func (ch *EventChannel) name() string { return fmt.Sprintf("event channel %d", ch.fd) }

// take takes an event from C, copies it and acknowledges it. It returns false if there was none.
func (ch *EventChannel) take() bool {
	ch.calls.Lock()
	defer ch.calls.Unlock()
	if ch.err = librdmacm.GetCMEvent(ch.c, ch.c1); ch.err != nil {
		return !errors.Is(ch.err, syscall.EAGAIN)
	}
	ch.event = ch.copyEvent(ch.c1.Deref())
	if id := ch.event.ID; id != nil {
		id.updateName()
		if ends[ch.event.Type] {
			id.disconnected.Store(true)
		}
	}
	ch.err = librdmacm.AckCMEvent(ch.c1.Deref())
	return true
}

// ends contains the events after which a connection sends no RDMA_CM_EVENT_DISCONNECTED.
var ends = map[rdmacm.CMEventType]bool{rdmacm.CM_EVENT_DISCONNECTED: true, rdmacm.CM_EVENT_REJECTED: true,
	rdmacm.CM_EVENT_UNREACHABLE: true, rdmacm.CM_EVENT_CONNECT_ERROR: true}

// Event waits for the next event. Each event goes to one waiting goroutine. Events of closed IDs are dropped.
//
// C: rdma_get_cm_event, rdma_ack_cm_event
//
// Man: rdma_get_cm_event(3)
func (ch *EventChannel) Event(ctx context.Context) (Event, error) {
	const verb = "rdma_get_cm_event"
	if err := ch.use(verb, ch.name); err != nil {
		return Event{}, err
	}
	defer ch.done()
	select {
	case ch.ready.Turn <- struct{}{}:
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
	defer func() { <-ch.ready.Turn }()
	for {
		if e, ok := ch.takeKept(func(Event) bool { return true }); ok {
			return e, nil
		}
		got, err := ch.ready.Wait(ctx, ch.get, func() bool { return ch.isStopping() || ch.hasKept() })
		if err == nil && got {
			err = ch.err
		}
		switch {
		case err != nil:
			return Event{}, verberr.Wrap(verb, ch.name(), err)
		case got && ch.event.ID == nil: // the ID is closed, or was created by other code
			continue
		case got:
			e := ch.event
			if e.Type == rdmacm.CM_EVENT_ESTABLISHED {
				e.ID.updateReads(e.Conn.InitiatorDepth)
			}
			return e, nil
		case ctx.Err() != nil:
			return Event{}, ctx.Err()
		case !ch.isStopping(): // an event was kept
			continue
		}
		return Event{}, closedError(verb, ch.name())
	}
}

// Events returns an iterator that waits for events until there is an error, which it yields last; see
// [EventChannel.Event]. The loop may end at any time.
func (ch *EventChannel) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := ch.Event(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// keep queues events that other waits received, for Event.
func (ch *EventChannel) keep(events ...Event) {
	if len(events) == 0 {
		return
	}
	ch.mu.Lock()
	ch.kept = append(ch.kept, events...)
	ch.mu.Unlock()
	ch.ready.Poke()
}

// takeKept removes and returns the first queued event for which wanted reports true.
func (ch *EventChannel) takeKept(wanted func(Event) bool) (e Event, ok bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return takeFirst(&ch.kept, wanted)
}

// all returns the IDs of the channel.
func (ch *EventChannel) all() []*ID {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return slices.Collect(maps.Keys(ch.ids))
}

func (ch *EventChannel) hasKept() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return len(ch.kept) > 0
}

// stop ends all present and future waits, because the ID that owns the channel is being closed.
func (ch *EventChannel) stop() {
	ch.mu.Lock()
	ch.stopping = true
	ch.mu.Unlock()
	ch.ready.Poke()
}

// resume undoes stop.
func (ch *EventChannel) resume() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.stopping = false
}

func (ch *EventChannel) isStopping() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.stopping || ch.life.IsClosed()
}

// CreateID creates an asynchronous ID: its methods start operations, and events report their outcome.
//
// C: rdma_create_id
//
// Man: rdma_create_id(3)
func (ch *EventChannel) CreateID(ps rdmacm.PortSpace) (*ID, error) {
	const verb = "rdma_create_id"
	if err := ch.use(verb, ch.name); err != nil {
		return nil, err
	}
	defer ch.done()
	c := new(ibv.Ptr[rdmacm.CMID])
	if err := librdmacm.CreateID(ch.c, c, 0, ps); err != nil {
		return nil, verberr.Injected(ch.backend, verberr.Explain(verb, "", portSpaceReason(ps, err), err))
	}
	return newID(ch, c.Deref(), nil), nil
}

func portSpaceReason(ps rdmacm.PortSpace, err error) string {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPROTONOSUPPORT) {
		return fmt.Sprintf("unknown port space %v", ps)
	}
	return ""
}

// Close closes the channel. First close its IDs, or migrate them to other channels. Goroutines waiting for events
// return an error.
//
// C: rdma_destroy_event_channel
//
// Man: rdma_create_event_channel(3)
func (ch *EventChannel) Close() error {
	if err := ch.free(nil); err != nil {
		return err
	}
	return ch.life.Close()
}

func (ch *EventChannel) destroy() (gone bool, err error) {
	if err := ch.free(nil); err != nil { // events since then may have created IDs
		return false, err
	}
	ch.ready.Close()
	return true, verberr.Wrap("rdma_destroy_event_channel", "event channel", librdmacm.DestroyEventChannel(ch.c))
}

// free returns an error if the channel has IDs other than except.
func (ch *EventChannel) free(except *ID) error {
	return ch.freeOf(map[*ID]bool{except: true}, func(Event) bool { return false })
}

// freeOf returns an error if the channel has IDs other than those in except and those of kept events for which closing
// reports true.
func (ch *EventChannel) freeOf(except map[*ID]bool, closing func(Event) bool) error {
	ch.mu.Lock()
	for _, e := range ch.kept {
		if closing(e) {
			except[e.ID] = true
		}
	}
	var one *ID
	n := 0
	for id := range ch.ids {
		if !except[id] {
			one = id
			n++
		}
	}
	ch.mu.Unlock()
	if n == 0 {
		return nil
	}
	return life.InUse(ch.name(), mustClose(one.name(), n-1))
}

// mustClose returns an error text: one ID, and a number of others, must be closed or migrated first.
func mustClose(one string, more int) string {
	const first = " must be closed or migrated first"
	switch more {
	case 0:
		return one + first
	case 1:
		return one + " and one more ID" + first
	}
	return fmt.Sprintf("%s and %d more IDs", one, more) + first
}
