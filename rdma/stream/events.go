// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// eventDispatcher receives the events of many connections from one channel and passes each to its ID's endpoint. An
// idle connection therefore needs no descriptor, and no goroutine that waits for a disconnect.
type eventDispatcher struct {
	backend runtime.Backend
	channel *cm.EventChannel
	ended   chan struct{}
	cancel  context.CancelFunc
	users   int // guarded by dispatchers.mu

	mu        sync.Mutex // guards the fields below
	endpoints map[*endpoint]struct{}
	err       error // why the channel delivers no more events
}

// manyIDs is the number of IDs per dispatcher above which another one is created, up to the number of processors. A
// channel delivers one event at a time.
const manyIDs = 64

// dispatchers holds the dispatchers of all backends.
var dispatchers struct {
	mu  sync.Mutex
	all []*eventDispatcher
}

// shareDispatcher returns the dispatcher with the fewest users. The caller must call its leave method.
func shareDispatcher(backend runtime.Backend) (*eventDispatcher, error) {
	dispatchers.mu.Lock()
	defer dispatchers.mu.Unlock()
	var best *eventDispatcher
	n := 0
	for _, d := range dispatchers.all {
		if d.backend != backend || d.failure() != nil {
			continue
		}
		if n++; best == nil || d.users < best.users {
			best = d
		}
	}
	if best != nil && (best.users < manyIDs || n >= goruntime.GOMAXPROCS(0)) {
		best.users++
		return best, nil
	}
	var channel *cm.EventChannel
	var err error
	if made.Shared(func() { channel, err = cm.CreateEventChannelOn(backend) }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &eventDispatcher{backend: backend, channel: channel, ended: make(chan struct{}), cancel: cancel, users: 1,
		endpoints: map[*endpoint]struct{}{}}
	dispatchers.all = append(dispatchers.all, d)
	go d.dispatch(ctx)
	return d, nil
}

// leave removes a user. The last one ends the dispatcher.
func (d *eventDispatcher) leave() error {
	dispatchers.mu.Lock()
	defer dispatchers.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	dispatchers.all = slices.DeleteFunc(dispatchers.all, func(other *eventDispatcher) bool { return other == d })
	d.cancel()
	<-d.ended
	return d.channel.Close()
}

// dispatch delivers events until ctx ends or the channel fails.
func (d *eventDispatcher) dispatch(ctx context.Context) {
	defer close(d.ended)
	for {
		e, err := d.channel.Event(ctx)
		switch {
		case err == nil:
			e.ID.Value().(*endpoint).put(e)
		case ctx.Err() != nil:
			return
		default:
			d.fail(err)
			return
		}
	}
}

// fail passes the error to all endpoints. No endpoint can be added afterwards.
func (d *eventDispatcher) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	for p := range d.endpoints {
		p.fail(err)
	}
}

// failure returns the error after which there are no more events, or nil.
func (d *eventDispatcher) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// add returns an endpoint for the ID that create creates on the dispatcher's channel.
func (d *eventDispatcher) add(create func(p *endpoint) error) (*endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	p := &endpoint{by: d, more: make(chan struct{}, 1)}
	if err := create(p); err != nil {
		return nil, err
	}
	d.endpoints[p] = struct{}{}
	return p, nil
}

func (d *eventDispatcher) remove(p *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.endpoints, p)
}

// endpoint is an ID whose events a dispatcher delivers. It queues events.
type endpoint struct {
	*cm.ID
	by *eventDispatcher

	mu     sync.Mutex // guards the fields below
	events []cm.Event
	err    error // why there are no more events
	to     func(cm.Event, error)

	more chan struct{} // holds a token after an event
}

// newEndpoint creates an ID for a connection, or for one address of a listener.
func newEndpoint(backend runtime.Backend) (*endpoint, error) {
	d, err := shareDispatcher(backend)
	if err != nil {
		return nil, err
	}
	p, err := d.create()
	if err != nil {
		return nil, errors.Join(err, d.leave())
	}
	return p, nil
}

// create creates an ID and its endpoint.
func (d *eventDispatcher) create() (*endpoint, error) {
	return d.add(func(p *endpoint) (err error) {
		if p.ID, err = d.channel.CreateID(rdmacm.PS_TCP); err == nil {
			p.SetValue(p)
		}
		return err
	})
}

// adoptRequest moves the ID of a request from its listener's channel to a dispatcher.
func adoptRequest(id *cm.ID, backend runtime.Backend) (*endpoint, error) {
	d, err := shareDispatcher(backend)
	if err != nil {
		return nil, err
	}
	p, err := d.add(func(p *endpoint) error {
		p.ID = id
		id.SetValue(p)
		return id.Migrate(d.channel)
	})
	if err != nil {
		return nil, errors.Join(err, d.leave())
	}
	return p, nil
}

// Close closes the ID and releases the dispatcher.
func (p *endpoint) Close() error {
	if err := p.ID.Close(); err != nil {
		return err
	}
	p.by.remove(p)
	return p.by.leave()
}

func (p *endpoint) put(e cm.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to != nil {
		p.to(e, nil)
		return
	}
	p.events = append(p.events, e)
	signal(p.more)
}

func (p *endpoint) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; p.to != nil {
		p.to(cm.Event{}, err)
	}
	signal(p.more)
}

// next waits for the next event.
func (p *endpoint) next(ctx context.Context) (cm.Event, error) {
	for {
		p.mu.Lock()
		err := p.err
		if len(p.events) > 0 {
			e := p.events[0]
			p.events = p.events[1:]
			p.mu.Unlock()
			return e, nil
		}
		p.mu.Unlock()
		if err != nil {
			return cm.Event{}, err
		}
		select {
		case <-p.more:
		case <-ctx.Done():
			return cm.Event{}, ctx.Err()
		}
	}
}

// forward passes queued and future events to a function, which must not block. A nil function ends that, and forward
// then waits for a call in progress.
func (p *endpoint) forward(to func(cm.Event, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	if to == nil {
		return
	}
	for _, e := range p.events {
		to(e, nil)
	}
	p.events = nil
	if p.err != nil {
		to(cm.Event{}, p.err)
	}
}

// await waits for the event that reports an operation's success, or for an error event. It drops other events, which do
// not matter before the connection exists.
func (p *endpoint) await(ctx context.Context, verb string, success rdmacm.CMEventType) (cm.Event, error) {
	for {
		e, err := p.next(ctx)
		if err != nil {
			return cm.Event{}, verberr.Wrap(verb, p.String(), err)
		}
		if err := e.Err(verb); err != nil || e.Type == success {
			return e, err
		}
	}
}

// resolve resolves the peer's address, an [Addr] or a [cm.IBAddr]. local may be invalid.
func (p *endpoint) resolve(ctx context.Context, local netip.AddrPort, to net.Addr, timeout time.Duration) error {
	var err error
	if ib, ok := to.(cm.IBAddr); ok {
		err = p.ResolveIBAddr(ctx, nil, ib, timeout)
	} else {
		peer := to.(Addr).AddrPort
		if local.Port() != 0 && !local.Addr().IsValid() {
			anywhere := netip.IPv6Unspecified()
			if peer.Addr().Is4() {
				anywhere = netip.IPv4Unspecified()
			}
			local = netip.AddrPortFrom(anywhere, local.Port())
		}
		err = p.ResolveAddr(ctx, local, peer, timeout)
	}
	if err == nil {
		_, err = p.await(ctx, "rdma_resolve_addr", rdmacm.CM_EVENT_ADDR_RESOLVED)
	}
	return err
}

func (p *endpoint) resolveRoute(ctx context.Context, timeout time.Duration) error {
	err := p.ResolveRoute(ctx, timeout)
	if err == nil {
		_, err = p.await(ctx, "rdma_resolve_route", rdmacm.CM_EVENT_ROUTE_RESOLVED)
	}
	return err
}

// connect connects, and returns the event with the peer's private data.
func (p *endpoint) connect(ctx context.Context, param *rdmacm.ConnParam, private []byte) (cm.Event, error) {
	if err := p.Connect(ctx, param, private); err != nil {
		return cm.Event{}, err
	}
	e, err := p.await(ctx, "rdma_connect", rdmacm.CM_EVENT_ESTABLISHED)
	if errors.Is(err, context.DeadlineExceeded) {
		err = verberr.Explain("rdma_connect", p.String(), "the peer does not answer: "+p.NoAnswerHint(),
			context.DeadlineExceeded)
	}
	return e, err
}

// accept accepts a request, and waits until the peer has confirmed the connection.
func (p *endpoint) accept(ctx context.Context, param *rdmacm.ConnParam, private []byte) error {
	err := p.Accept(ctx, param, private)
	if err == nil {
		_, err = p.await(ctx, "rdma_accept", rdmacm.CM_EVENT_ESTABLISHED)
	}
	return err
}

// addrs returns the addresses of both sides.
func (p *endpoint) addrs() (local, remote net.Addr) { return addrsOf(p.ID) }

func addrsOf(id *cm.ID) (local, remote net.Addr) {
	if ib, ok := id.LocalIBAddr(); ok {
		peer, _ := id.PeerIBAddr()
		return ib, peer
	}
	return Addr{id.LocalAddr()}, Addr{id.PeerAddr()}
}

// peerHost returns the address of the peer's host, even for an AF_IB address.
func (p *endpoint) peerHost() netip.Addr {
	if a, ok := p.PeerIBAddr(); ok {
		return netip.AddrFrom16(*a.GID.Raw())
	}
	return p.PeerAddr().Addr()
}

// text returns the result of String for a connection on the endpoint.
func (p *endpoint) text(kind string, closed bool) string {
	if p == nil {
		return textOf(nil, kind, closed)
	}
	return textOf(p.ID, kind, closed)
}

// textOf returns the result of String for a connection or listener on an ID.
func textOf(id *cm.ID, kind string, closed bool) string {
	text := strings.Replace(strings.TrimSuffix(id.String(), ", closed"), "ID", kind, 1)
	if closed {
		text += ", closed"
	}
	return text
}
