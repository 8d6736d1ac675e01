// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// Listener is a net.Listener.
type Listener struct {
	id     *cm.ID
	config Config
	local  net.Addr
	conns  chan *Conn
	places *places.Places // limits connections that Accept has not returned

	ctx     context.Context
	cancel  context.CancelFunc
	serving sync.WaitGroup
	once    sync.Once
	ended   error
	failed  chan struct{} // closed when no more requests can arrive, after setting
	failure error

	mu         sync.Mutex
	unreleased error // the first error of releasing a failed connection
}

var _ net.Listener = (*Listener)(nil)

// Listen listens at "host:port", with the defaults of [Config].
func Listen(ctx context.Context, address string) (*Listener, error) {
	return (*Config)(nil).Listen(ctx, address)
}

// Listen listens at "host:port". If the host has several addresses, it uses the first. An empty host means all
// addresses of all devices, and port 0 a free port, which Addr returns. ctx limits the lookup of the host.
func (c *Config) Listen(ctx context.Context, address string) (*Listener, error) {
	config, err := c.complete()
	if err != nil {
		return nil, err
	}
	all, err := lookup(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rdma", Err: err}
	}
	at := stream.Addr{AddrPort: all[0]}
	l, err := config.listen(at)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rdma", Addr: at, Err: err}
	}
	return l, nil
}

func (c Config) listen(at stream.Addr) (*Listener, error) {
	id, err := cm.CreateIDOn(c.Backend, rdmacm.PS_TCP)
	if err != nil {
		return nil, err
	}
	if err = id.Bind(at.AddrPort); err == nil {
		err = id.Listen(0) // 0: the largest backlog; places limits requests instead
	}
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	l := &Listener{id: id, config: c, local: stream.Addr{AddrPort: id.LocalAddr()}, conns: make(chan *Conn),
		places: places.New(c.Backlog, places.Waiting), failed: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.serving.Go(l.serve)
	return l, nil
}

// Addr returns a [stream.Addr].
func (l *Listener) Addr() net.Addr { return l.local }

// serve accepts requests. Requests that wait for a place have no connection memory yet.
func (l *Listener) serve() {
	for {
		id, e, err := l.id.GetRequest(l.ctx)
		switch {
		case err == nil:
			l.places.Go(l.ctx, id.PeerAddr().Addr(), func() { l.handshake(id) }, func() {
				l.released(id.Close()) // rejects the request
			})
		case e.Listener != nil: // a request was dropped for lack of resources
		default:
			l.failure = err
			close(l.failed)
			return
		}
	}
}

// handshake accepts a request and passes the connection to Accept.
func (l *Listener) handshake(id *cm.ID) {
	c := newConn(id, l.config, true)
	if err := c.accept(l.ctx); err != nil {
		l.released(c.release())
		return
	}
	c.start()
	select {
	case l.conns <- c:
	case <-l.ctx.Done():
		l.released(c.Close())
	}
}

func (l *Listener) released(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreleased == nil {
		l.unreleased = err
	}
}

func (c *Conn) accept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.HandshakeTimeout)
	defer cancel()
	if err := c.open(); err != nil {
		c.id.Reject(nil)
		return err
	}
	if err := c.id.SetAckTimeout(ackTimeout); err != nil {
		return err
	}
	return c.id.Accept(ctx, connParam(), nil)
}

// Accept waits for the next connection and returns it as a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	err := net.ErrClosed
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
	case <-l.failed:
		if l.ctx.Err() == nil {
			err = l.failure
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "rdma", Addr: l.local, Err: err}
}

// Close stops listening. Accepted connections stay open; others are closed.
func (l *Listener) Close() error {
	first := false
	l.once.Do(func() {
		first = true
		l.cancel()
		l.serving.Wait()
		l.places.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = errors.Join(l.id.Close(), l.unreleased)
	})
	switch {
	case !first:
		return &net.OpError{Op: "close", Net: "rdma", Addr: l.local, Err: net.ErrClosed}
	case l.ended != nil:
		return &net.OpError{Op: "close", Net: "rdma", Addr: l.local, Err: l.ended}
	}
	return nil
}
