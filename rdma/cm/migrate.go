package cm

import (
	"errors"
	"slices"

	"github.com/goverbs/goverbs/generated/librdmacm"
)

// Migrate moves the ID to an event channel, which makes it asynchronous; nil makes it synchronous, with a channel of its own. Nobody may wait
// for its events meanwhile.
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
	id.mu.Lock()
	from, wasSync := id.channel, id.sync
	id.mu.Unlock()
	toSync := to == nil
	if toSync {
		if wasSync {
			return invalid(verb, id.name(), "it is synchronous already")
		}
		if to, err = CreateEventChannelOn(id.backend); err != nil {
			return err
		}
	}
	if wasSync {
		err = from.free(id) // it goes away
	}
	if err == nil {
		err = to.adopt(verb, id, from, toSync)
	}
	if err != nil {
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

// adopt moves an ID, and what was kept for it, from another channel to this one, which is its own or not.
func (ch *EventChannel) adopt(verb string, id *ID, from *EventChannel, own bool) error {
	if err := ch.use(verb, ch.name); err != nil {
		return err
	}
	defer ch.done()
	from.calls.Lock()
	defer from.calls.Unlock()
	if err := librdmacm.MigrateID(id.c, ch.c); err != nil {
		return wrap(verb, id.name(), err)
	}
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
	kept := from.forget(id)
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

// lockCalls takes the lock of the ID's channel for calls, and gives the channel.
func (id *ID) lockCalls() *EventChannel {
	for {
		id.mu.Lock()
		ch := id.channel
		id.mu.Unlock()
		ch.calls.Lock()
		id.mu.Lock()
		moved := id.channel != ch
		id.mu.Unlock()
		if !moved {
			return ch
		}
		ch.calls.Unlock()
	}
}

// forget takes an ID off the channel, with the events of it that were kept.
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
