// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"slices"

	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Migrate moves the ID to an event channel, which makes it asynchronous. With nil, it gets its own channel, which makes
// it synchronous. Goroutines that wait for events of a synchronous ID return an error. Migrate fails with rdma.ErrInUse
// if IDs of accepted requests are still on the channel that a synchronous ID owns.
//
// C: rdma_migrate_id
//
// Man: rdma_migrate_id(3)
func (id *ID) Migrate(to *EventChannel) (err error) {
	const verb = "rdma_migrate_id"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	id.record.Lock()
	defer id.record.Unlock()
	id.mu.Lock()
	from, wasSync := id.channel, id.sync
	id.mu.Unlock()
	toSync := to == nil
	if toSync {
		if wasSync {
			return verberr.Invalid(verb, id.name(), "already synchronous")
		}
		if to, err = CreateEventChannelOn(id.backend); err != nil {
			return err
		}
	}
	if err = to.adopt(verb, id, from, wasSync, toSync); err != nil {
		if toSync {
			err = errors.Join(err, to.Close())
		}
		return err
	}
	if wasSync {
		return from.Close()
	}
	return nil
}

// adopt moves an ID and its kept events from another channel to this one. It closes the other channel if the ID owned
// it.
func (ch *EventChannel) adopt(verb string, id *ID, from *EventChannel, wasOwn, own bool) error {
	if err := ch.use(verb, ch.name); err != nil {
		return err
	}
	defer ch.done()
	// Without both locks, a goroutine waiting here could take an event of the ID before C has moved it.
	defer lockBoth(from, ch)()
	if wasOwn { // with the lock held, no new request arrives there
		if err := from.free(id); err != nil {
			return err
		}
	}
	if err := librdmacm.MigrateID(id.c, ch.c); err != nil {
		return verberr.Wrap(verb, id.name(), err)
	}
	kept := from.forget(id)
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
	id.mu.Lock()
	defer id.mu.Unlock()
	id.channel, id.sync = ch, own
	if kept = append(id.pending, kept...); own {
		id.pending = kept
	} else {
		id.pending = nil
		ch.keep(kept...)
	}
	return nil
}

// lockBoth locks the call locks of two channels, which may be the same, in a fixed order. It returns the unlock
// function.
func lockBoth(a, b *EventChannel) (unlock func()) {
	if a == b {
		a.calls.Lock()
		return a.calls.Unlock
	}
	if a.number > b.number {
		a, b = b, a
	}
	a.calls.Lock()
	b.calls.Lock()
	return func() {
		b.calls.Unlock()
		a.calls.Unlock()
	}
}

// forget removes an ID from the channel and returns its kept events.
func (ch *EventChannel) forget(id *ID) (kept []Event) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.ids, id)
	ch.kept = slices.DeleteFunc(ch.kept, func(e Event) bool {
		own := e.ID == id || e.Listener == id
		if own {
			kept = append(kept, e)
		}
		return own
	})
	return kept
}
