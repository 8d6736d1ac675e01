// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma/cm"
)

// Endpoint listens for requests of peers. NextConnRequest returns requests, as in librpma's model, and Accept returns
// established connections. A program may use both, but NextConnRequest does not return requests that Accept has started
// to answer.
type Endpoint struct {
	peer   *Peer
	id     *cm.ID
	events *cm.EventChannel

	places *places.Places // limits requests being answered by Accept, and connections that it has not returned
	conns  chan *Conn
	ctx    context.Context // canceled by Close
	cancel context.CancelFunc

	mu      sync.Mutex // orders calls of accepts.Add before Close
	accepts sync.WaitGroup
}

// handshakes is the maximum number of connections that wait for Accept or are being established.
const handshakes = 16

// handshakeTimeout limits the time in which a peer must confirm a connection. Tests change it.
var handshakeTimeout = 5 * time.Second

func (e *Endpoint) created() bool { return e != nil && e.id != nil }

// Listen listens at "host:port". An empty host means all addresses, and port 0 a free port, which Addr returns. ctx
// limits the resolution of a name.
//
// C: rpma_ep_listen
func (p *Peer) Listen(ctx context.Context, address string) (*Endpoint, error) {
	const op = "Peer.Listen"
	if !p.created() {
		return nil, notCreated(op)
	}
	at, err := p.device.manager.lookup(ctx, Local, address)
	if err != nil {
		return nil, failed(op, err)
	}
	e := &Endpoint{peer: p, places: places.New(handshakes, places.Waiting), conns: make(chan *Conn)}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if e.events, err = p.device.manager.createEventChannel(); err != nil {
		return nil, failed(op, err)
	}
	if e.id, err = e.events.CreateID(rdmacm.PS_TCP); err == nil {
		if err = e.id.Bind(at); err == nil {
			err = e.id.Listen(0)
		}
	}
	if err != nil {
		e.Close()
		return nil, failed(op, err)
	}
	logInfo("listening", "address", e.Addr())
	return e, nil
}

// Addr returns the endpoint's address.
func (e *Endpoint) Addr() netip.AddrPort {
	if !e.created() {
		return netip.AddrPort{}
	}
	return e.id.LocalAddr()
}

// NextConnRequest waits for a peer's next request and creates its queues. A nil config means the defaults. If ctx ends,
// the error is ErrNoEvent. A request whose queues cannot be created is rejected.
//
// C: rpma_ep_next_conn_req, rpma_ep_get_fd
func (e *Endpoint) NextConnRequest(ctx context.Context, config *ConnConfig) (*ConnRequest, error) {
	const op = "Endpoint.NextConnRequest"
	if !e.created() {
		return nil, notCreated(op)
	}
	full, err := config.complete(op)
	if err != nil {
		return nil, err
	}
	for {
		event, err := e.request(op, ctx)
		if err != nil {
			return nil, err
		}
		l := &link{peer: e.peer, id: event.ID, srq: full.SRQ}
		if err = l.open(&full); err == nil {
			return &ConnRequest{link: l, passive: true, private: event.PrivateData}, nil
		}
		if err = l.unanswered(op, err); err != nil {
			return nil, err
		}
	}
}

// request waits for the event of the next request.
func (e *Endpoint) request(op string, ctx context.Context) (cm.Event, error) {
	for {
		event, err := e.events.Event(ctx)
		switch {
		case err != nil:
			return event, waitFailed(op, ctx, ErrNoEvent, err)
		case event.Type == rdmacm.CM_EVENT_CONNECT_REQUEST:
			return event, nil
		case event.ID == e.id:
			return event, &Error{Op: op, Code: ErrInvalid, Err: &cm.EventError{Verb: "rdma_get_cm_event",
				Object: "listener", Event: event}}
		}
		// An event of a request that Accept has queued. Answering that request returns the error.
	}
}

// Accept accepts requests and returns the first connection that is established. private is the private data for the
// peer, or nil. Accept answers several requests at once, with a limit per host, so that peers that do not confirm do
// not delay others; they are dropped after a few seconds.
//
// Other requests that it has started to answer, with the same config and private data, continue when it returns: later
// calls of Accept return their connections, and Close closes the remaining ones.
func (e *Endpoint) Accept(ctx context.Context, config *ConnConfig, private []byte) (*Conn, error) {
	const op = "Endpoint.Accept"
	if !e.created() {
		return nil, notCreated(op)
	}
	full, err := config.complete(op)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	if e.ctx.Err() != nil {
		e.mu.Unlock()
		return nil, closed(op)
	}
	e.accepts.Add(1)
	e.mu.Unlock()
	defer e.accepts.Done()

	ctx, stop := context.WithCancel(ctx)
	defer context.AfterFunc(e.ctx, stop)()
	a := &accepting{e: e, config: &full, private: bytes.Clone(private), failed: make(chan error, 1)}
	var taking sync.WaitGroup
	defer taking.Wait()
	defer stop()
	taking.Go(func() { a.receiveRequests(op, ctx) })
	select {
	case c := <-e.conns:
		return c, nil
	case err := <-a.failed:
		if e.ctx.Err() != nil {
			err = closed(op)
		}
		return nil, err
	}
}

// accepting is a call of Accept in progress.
type accepting struct {
	e       *Endpoint
	config  *ConnConfig
	private []byte
	failed  chan error // capacity 1
}

// fail makes Accept return err unless it has returned.
func (a *accepting) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}

// receiveRequests receives requests until ctx ends.
func (a *accepting) receiveRequests(op string, ctx context.Context) {
	for {
		event, err := a.e.request(op, ctx)
		if err != nil {
			a.fail(err)
			return
		}
		a.e.places.Go(a.e.ctx, event.ID.PeerAddr().Addr(), func() {
			if err := a.handshake(op, event); err != nil {
				logWarn("accepting a request failed", "error", err)
				a.fail(err)
			}
		}, func() {
			if err := event.ID.Close(); err != nil { // rejects the request
				a.fail(failed(op, err))
			}
		})
	}
}

// handshake accepts a request and passes its connection to a call of Accept. A failure of the peer is not an error.
func (a *accepting) handshake(op string, event cm.Event) error {
	l := &link{peer: a.e.peer, id: event.ID, srq: a.config.SRQ}
	err := l.open(a.config)
	if err == nil {
		err = l.id.Accept(a.e.ctx, param(), a.private) // asynchronous ID: does not wait
	}
	if err != nil {
		return l.unanswered(op, err)
	}
	c := newConn(l, event.PrivateData)
	ctx, cancel := context.WithTimeout(a.e.ctx, handshakeTimeout)
	defer cancel()
	if err := c.WaitEstablished(ctx); err != nil {
		logWarn("connection was not confirmed", "error", err)
		return failed(op, c.Close())
	}
	select {
	case a.e.conns <- c:
		return nil
	case <-a.e.ctx.Done():
		return failed(op, c.Close())
	}
}

// Connect connects to the listener at "host:port" and waits until the connection is established. private is the private
// data for the peer, or nil.
func (p *Peer) Connect(ctx context.Context, address string, config *ConnConfig, private []byte) (*Conn, error) {
	request, err := p.NewConnRequest(ctx, address, config)
	if err != nil {
		return nil, err
	}
	c, err := request.Connect(private)
	if err != nil {
		return nil, err
	}
	if err = c.WaitEstablished(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close stops listening. It rejects pending requests and closes connections that Accept has not returned. It does not
// affect requests and connections that the program has received.
//
// C: rpma_ep_shutdown
func (e *Endpoint) Close() error {
	const op = "Endpoint.Close"
	if e == nil || e.events == nil {
		return notCreated(op)
	}
	e.mu.Lock()
	e.cancel()
	e.mu.Unlock()
	e.accepts.Wait()
	e.places.Wait()
	if e.id != nil {
		if err := e.id.Close(); err != nil {
			return failed(op, err)
		}
	}
	return failed(op, e.events.Close())
}
