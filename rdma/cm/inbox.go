// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	goruntime "runtime"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/runtime"
)

// postman takes the events of many streams' IDs out of one channel, and puts each into the inbox of its ID. So an idle
// stream has neither a descriptor nor a goroutine that waits for the peer to leave.
type postman struct {
	backend runtime.Backend
	ch      *EventChannel
	ended   chan struct{}
	cancel  context.CancelFunc
	users   int // which the lock of postmen guards

	mu  sync.Mutex // guards err, and that an ID of the channel has an inbox
	err error      // why no more events come
}

// manyIDs are enough for another postman, up to as many as there are processors: one call of C at a time takes an event
// of a channel.
const manyIDs = 64

// postmen are those of all libraries and fabrics.
var postmen struct {
	mu  sync.Mutex
	all []*postman
}

// sharePostman returns the one with the fewest users. Give it back with leave.
func sharePostman(backend runtime.Backend) (*postman, error) {
	postmen.mu.Lock()
	defer postmen.mu.Unlock()
	var best *postman
	n := 0
	for _, p := range postmen.all {
		if p.backend != backend || p.failure() != nil {
			continue
		}
		if n++; best == nil || p.users < best.users {
			best = p
		}
	}
	if best != nil && (best.users < manyIDs || n >= goruntime.GOMAXPROCS(0)) {
		best.users++
		return best, nil
	}
	var ch *EventChannel
	var err error
	if made.Shared(func() { ch, err = CreateEventChannelOn(backend) }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &postman{backend: backend, ch: ch, ended: make(chan struct{}), cancel: cancel, users: 1}
	postmen.all = append(postmen.all, p)
	go p.deliver(ctx)
	return p, nil
}

// leave ends it with its last user.
func (p *postman) leave() error {
	postmen.mu.Lock()
	defer postmen.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	postmen.all = slices.DeleteFunc(postmen.all, func(other *postman) bool { return other == p })
	p.cancel()
	<-p.ended
	return p.ch.Close()
}

// deliver hands out events until ctx ends, or until no more can come.
func (p *postman) deliver(ctx context.Context) {
	defer close(p.ended)
	for {
		e, err := p.ch.Event(ctx)
		switch {
		case err == nil:
			e.ID.inbox.put(e)
		case ctx.Err() != nil:
			return
		default:
			p.fail(err)
			return
		}
	}
}

// fail tells all IDs that no more events can come. The postman gets no more of them.
func (p *postman) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	for _, id := range p.ch.all() {
		id.inbox.fail(err)
	}
}

// failure is why no more events come, or nil.
func (p *postman) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// createID creates an ID whose events are handed out.
func (p *postman) createID(ps rdmacm.PortSpace) (*ID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	id, err := p.ch.CreateID(ps)
	if err == nil {
		id.inbox = newInbox(p)
	}
	return id, err
}

// adopt takes over the ID of a request.
func (p *postman) adopt(id *ID) error {
	id.inbox = newInbox(p)
	if err := id.Migrate(p.ch); err != nil {
		return err
	}
	return p.failure() // one from now on is told the ID
}

// closeServed closes an ID whose events are handed out, and leaves the postman.
func (id *ID) closeServed() error {
	if err := id.Close(); err != nil || id.inbox == nil {
		return err
	}
	return id.inbox.of.leave()
}

// inbox has the events of one ID until somebody asks.
type inbox struct {
	of *postman

	mu     sync.Mutex // guards what follows
	events []Event
	err    error // why no more come
	to     func(Event, error)

	more chan struct{} // holds a token after something has come
}

func newInbox(of *postman) *inbox { return &inbox{of: of, more: make(chan struct{}, 1)} }

func (b *inbox) put(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.to != nil {
		b.to(e, nil)
		return
	}
	b.events = append(b.events, e)
	signal(b.more)
}

func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err = err; b.to != nil {
		b.to(Event{}, err)
	}
	signal(b.more)
}

// event waits for the next event.
func (b *inbox) event(ctx context.Context) (Event, error) {
	for {
		b.mu.Lock()
		err := b.err
		if len(b.events) > 0 {
			e := b.events[0]
			b.events = b.events[1:]
			b.mu.Unlock()
			return e, nil
		}
		b.mu.Unlock()
		if err != nil {
			return Event{}, err
		}
		select {
		case <-b.more:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// forward gives what has come and will come to a function, which must not wait; nil ends that, and then none runs.
func (b *inbox) forward(to func(Event, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
	if to == nil {
		return
	}
	for _, e := range b.events {
		to(e, nil)
	}
	b.events = nil
	if b.err != nil {
		to(Event{}, b.err)
	}
}
