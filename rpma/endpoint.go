// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"errors"
	"net/netip"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
)

// Endpoint listens for requests of peers.
type Endpoint struct {
	peer   *Peer
	id     *cm.ID
	events *cm.EventChannel
}

func (e *Endpoint) made() bool { return e != nil && e.id != nil }

// Listen listens at "host:port". No host means all addresses, and port 0 a free one, which Addr returns. ctx limits the
// lookup of a name.
//
// C: rpma_ep_listen
func (p *Peer) Listen(ctx context.Context, address string) (*Endpoint, error) {
	const op = "Peer.Listen"
	if !p.made() {
		return nil, neverMade(op)
	}
	at, err := p.device.manager.lookup(ctx, Local, address)
	if err != nil {
		return nil, failed(op, err)
	}
	e := &Endpoint{peer: p}
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

// Addr returns the address that the endpoint listens at.
func (e *Endpoint) Addr() netip.AddrPort {
	if !e.made() {
		return netip.AddrPort{}
	}
	return e.id.LocalAddr()
}

// NextConnRequest waits for the next request of a peer, and creates its queues as config says, which is nil for the
// defaults. If ctx ends, the error is ErrNoEvent. A request whose queues cannot be created is rejected.
//
// C: rpma_ep_next_conn_req, rpma_ep_get_fd
func (e *Endpoint) NextConnRequest(ctx context.Context, config *ConnConfig) (*ConnRequest, error) {
	const op = "Endpoint.NextConnRequest"
	if !e.made() {
		return nil, neverMade(op)
	}
	full, err := config.complete(op)
	if err != nil {
		return nil, err
	}
	event, err := e.events.Event(ctx)
	if err != nil {
		return nil, waitFailed(op, ctx, ErrNoEvent, err)
	}
	if event.Type != rdmacm.CM_EVENT_CONNECT_REQUEST {
		return nil, &Error{Op: op, Code: ErrInvalid, Err: &cm.EventError{Verb: "rdma_get_cm_event", Object: "listener",
			Event: event}}
	}
	l, err := newLink(op, e.peer, event.ID, &full)
	if err != nil {
		return nil, err
	}
	return &ConnRequest{link: l, passive: true, private: event.PrivateData}, nil
}

// Accept waits for a request, accepts it with private data, which may be nil, and waits until the connection is
// established. A peer that does not confirm within a few seconds is dropped, and Accept waits for the next request.
func (e *Endpoint) Accept(ctx context.Context, config *ConnConfig, private []byte) (*Conn, error) {
	for {
		request, err := e.NextConnRequest(ctx, config)
		if err != nil {
			return nil, err
		}
		c, err := request.Connect(private)
		if err != nil {
			return nil, err
		}
		limited, cancel := context.WithTimeout(ctx, cm.DefaultHandshakeTimeout)
		unconfirmed := c.WaitEstablished(limited)
		cancel()
		if unconfirmed == nil {
			return c, nil
		}
		if err := c.Close(); err != nil || ctx.Err() != nil {
			return nil, errors.Join(unconfirmed, err)
		}
		logWarn("a connection was not confirmed", "error", unconfirmed)
	}
}

// Connect makes a connection to the listener at "host:port", with private data, which may be nil, and waits until it is
// established.
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

// Close stops listening. Requests that nobody has taken are rejected; those that were taken live on.
//
// C: rpma_ep_shutdown
func (e *Endpoint) Close() error {
	const op = "Endpoint.Close"
	if e == nil || e.events == nil {
		return neverMade(op)
	}
	if e.id != nil {
		if err := e.id.Close(); err != nil {
			return failed(op, err)
		}
	}
	return failed(op, e.events.Close())
}
