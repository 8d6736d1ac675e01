// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/runtime"
)

// Listener is a net.Listener of stream connections.
type Listener struct {
	id      *cm.ID
	channel *cm.EventChannel // receives requests
	events  *eventDispatcher // kept alive for the connections
	config  Config
	local   net.Addr
	conns   chan *Conn
	places  *places.Places // limits connections that Accept has not returned
	shared  *shared        // objects shared by the connections, if the listener is on a device; or nil

	cancel  context.CancelFunc
	ctx     context.Context
	serving sync.WaitGroup
	once    sync.Once
	ended   error
	failed  chan struct{} // closed when no more requests can come; then
	failure error

	mu         sync.Mutex
	unreleased error               // from the first failed connection whose objects could not be released
	more       int                 // number of later ones
	holders    map[*shared]*holder // by shared objects of a device; nil after Close
	drops      sync.WaitGroup      // running drops of removed devices; added to only while holders is not nil
}

var _ net.Listener = (*Listener)(nil)

// ListenConfig creates listeners. The zero value has the defaults.
type ListenConfig struct {
	Config
	// Backlog is the maximum number of connections that wait for Accept, including those that are being established or
	// whose peer's device has not acknowledged a message. Like any connection, each pins its Buffer, and half as much
	// again when it has sent more than a few bytes: 3 MiB with the defaults, and 403 MB for all 128 together; a
	// software device allocates pages on use. One host gets at most three quarters of the backlog. Further requests
	// wait and pin nothing. 0 means [DefaultBacklog]; less than 16 means 16.
	Backlog int
}

const minBacklog = 16

// backlog returns Backlog, or its default.
func (lc *ListenConfig) backlog() (int, error) {
	switch {
	case lc.Backlog < 0:
		return 0, errors.New("stream: negative Backlog in ListenConfig")
	case lc.Backlog == 0:
		return DefaultBacklog, nil
	}
	return max(lc.Backlog, minBacklog), nil // with fewer, one host could use all of it
}

// Listen listens at "host:port" with the defaults of [ListenConfig]. An empty host means all addresses of all devices.
// Port 0 means a free port, which Addr returns.
func Listen(ctx context.Context, address string) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, address)
}

// Listen listens at "host:port"; if the host has several addresses, at the first one. ctx limits the name lookup.
func (lc *ListenConfig) Listen(ctx context.Context, address string) (*Listener, error) {
	config, err := lc.Config.complete()
	if err != nil {
		return nil, err
	}
	all, err := config.lookup(ctx, "ip", address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rdma", Err: err}
	}
	return lc.listen(config, Addr{all[0]})
}

// ListenIB is Listen at an AF_IB address, on ports with InfiniBand's link layer: see [cm.IBAddr]. Create the address
// with cm.NewIBAddr and RDMA_PS_TCP; without a GID it means all ports.
func (lc *ListenConfig) ListenIB(at cm.IBAddr) (*Listener, error) {
	config, err := lc.Config.completeIB()
	if err != nil {
		return nil, err
	}
	return lc.listen(config, at)
}

// listen listens at an [Addr] or a [cm.IBAddr].
func (lc *ListenConfig) listen(config Config, at net.Addr) (*Listener, error) {
	backlog, err := lc.backlog()
	if err != nil {
		return nil, err
	}
	l, err := listen(config, backlog, at)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rdma", Addr: at, Err: err}
	}
	return l, nil
}

func listen(c Config, backlog int, at net.Addr) (_ *Listener, err error) {
	channel, err := cm.CreateEventChannelOn(c.Backend)
	if err != nil {
		return nil, err
	}
	defer closeIf(&err, channel)
	id, err := channel.CreateID(rdmacm.PS_TCP)
	if err != nil {
		return nil, err
	}
	defer closeIf(&err, id)
	if err = c.options(id); err != nil {
		return nil, err
	}
	if ib, ok := at.(cm.IBAddr); ok {
		err = id.BindIB(ib)
	} else {
		err = id.Bind(at.(Addr).AddrPort)
	}
	if err != nil {
		return nil, err
	}
	if err = id.Listen(0); err != nil { // the maximum: accepted requests wait for a place
		return nil, err
	}
	l := &Listener{id: id, channel: channel, config: c, conns: make(chan *Conn),
		places: places.New(backlog, places.Waiting), failed: make(chan struct{}), holders: map[*shared]*holder{}}
	if id.PortNum() > 0 { // the listener keeps the shared objects of its device
		if l.shared, err = share(id); err != nil {
			return nil, err
		}
	}
	if l.events, err = shareDispatcher(c.Backend); err != nil {
		return nil, errors.Join(err, l.shared.leave())
	}
	l.local, _ = addrsOf(id)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	place := made.Here()
	l.serving.Go(func() { l.serve(place) })
	return l, nil
}

// closeIf closes an object if there is an error, and joins the errors.
func closeIf(err *error, o interface{ Close() error }) {
	if *err != nil {
		*err = errors.Join(*err, o.Close())
	}
}

// Addr returns an [Addr], or an [cm.IBAddr] after ListenIB.
func (l *Listener) Addr() net.Addr { return l.local }

// serve accepts requests. Leak reports attribute its objects to by, the place of Listen or Accept in the program.
func (l *Listener) serve(by made.Place) {
	for {
		work := made.NewWork(by)
		var id *endpoint
		var e cm.Event
		var lost, err error
		made.For(work, func() {
			if e, err = l.request(); err == nil {
				id, lost = adoptRequest(e.ID, l.config.Backend)
			}
		})
		switch {
		case err != nil && l.ctx.Err() != nil:
			return
		case err != nil:
			l.failure = err
			close(l.failed)
			return
		case lost != nil: // an error of this side: the peer is rejected
			l.noteRelease(e.ID.Close())
			continue
		}
		l.places.Go(l.ctx, id.peerHost(), func() {
			made.For(work, func() { l.handshake(id, e, work) })
		}, func() {
			l.noteRelease(id.Close()) // which rejects the request
		})
	}
}

// request waits for the next request.
func (l *Listener) request() (cm.Event, error) {
	for {
		e, err := l.channel.Event(l.ctx)
		if err == nil {
			err = e.Err("rdma_get_request")
		}
		if err != nil || e.Type == rdmacm.CM_EVENT_CONNECT_REQUEST {
			return e, err
		}
	}
}

// handshake accepts a request and passes the connection to Accept.
func (l *Listener) handshake(id *endpoint, e cm.Event, work *made.Work) {
	c := newConn(id, l.config)
	c.work = work
	if err := c.accept(l.ctx, e); err != nil { // rejects the request
		l.noteRelease(c.release())
		return
	}
	l.hold(c)
	c.start()
	if !c.confirmed(l.ctx) { // a forged request, or a peer that has ended
		l.noteRelease(c.discard())
		return
	}
	select {
	case l.conns <- c:
	case <-l.ctx.Done():
		l.noteRelease(c.Close())
	}
}

// confirmed reports whether the peer acknowledges a message within HandshakeTimeout. Until then two forged packets may
// be all there is of it, and it stays in the backlog.
func (c *Conn) confirmed(ctx context.Context) bool {
	late := newDeadline()
	late.came = c.interrupt
	late.set(time.Now().Add(c.config.HandshakeTimeout))
	defer late.stop()
	defer context.AfterFunc(ctx, c.interrupt)()
	heard := func() bool { return c.link.Answered || c.link.Acked > 0 || c.protocol.Unread() > 0 || c.peerFin != 0 }
	over := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return heard() || c.err != nil || c.gone || ctx.Err() != nil || isDone(late.passed())
	}
	c.mu.Lock()
	if c.err == nil && !c.gone && c.link.Messages == 0 {
		c.sendProbe()
	}
	c.mu.Unlock()
	for !over() {
		c.awaitEnd(late, over)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return heard() || c.gone // a peer that disconnected did exist: Read returns its data and the reason
}

// holder keeps a device and its shared objects open for connections.
type holder struct {
	id     *endpoint // an otherwise unused ID on the device
	shared *shared
}

func (h *holder) close() error { return errors.Join(h.shared.leave(), h.id.Close()) }

// hold keeps the shared objects of c's device until the listener is closed or the device is removed. A listener at all
// addresses is on no device, so hold creates an ID at c's address.
func (l *Listener) hold(c *Conn) {
	local, _ := c.id.addrs()
	at, ok := local.(Addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok || l.holders == nil || l.holders[c.shared] != nil || l.shared != nil {
		return
	}
	h, err := newHolder(c.config.Backend, at)
	if err != nil {
		return // the next connection creates the shared objects again
	}
	l.holders[h.shared] = h
	h.id.forward(func(e cm.Event, err error) {
		if err != nil || e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
			go l.drop(h.shared)
		}
	})
}

// newHolder holds the device of an address.
func newHolder(backend runtime.Backend, at Addr) (h *holder, err error) {
	made.Shared(func() {
		var id *endpoint
		if id, err = newEndpoint(backend); err != nil {
			return
		}
		var s *shared
		if err = id.Bind(netip.AddrPortFrom(at.Addr(), 0)); err == nil {
			s, err = share(id.ID)
		}
		if err != nil {
			err = errors.Join(err, id.Close())
			return
		}
		h = &holder{id, s}
	})
	return h, err
}

// drop releases the shared objects of a removed device.
func (l *Listener) drop(of *shared) {
	l.mu.Lock()
	h := l.holders[of]
	if h == nil {
		l.mu.Unlock()
		return
	}
	delete(l.holders, of)
	l.drops.Add(1)
	l.mu.Unlock()
	l.noteRelease(h.close())
	l.drops.Done()
}

// dropAll releases the shared objects of all devices, after running drops have ended.
func (l *Listener) dropAll() (err error) {
	l.mu.Lock()
	all := l.holders
	l.holders = nil
	l.mu.Unlock()
	l.drops.Wait()
	for _, h := range all {
		err = errors.Join(err, h.close())
	}
	return err
}

// noteRelease records a failure to release objects of a failed connection, for Close.
func (l *Listener) noteRelease(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreleased == nil {
		l.unreleased = err
	} else {
		l.more++
	}
}

// leftover returns the error for objects that could not be released, or nil.
func (l *Listener) leftover() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreleased == nil {
		return nil
	}
	return fmt.Errorf("releasing a failed connection, and %d more: %w", l.more, l.unreleased)
}

func (c *Conn) accept(ctx context.Context, e cm.Event) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.HandshakeTimeout)
	defer cancel()
	if err = c.protocol.ParseHello(e.PrivateData); err != nil {
		c.id.Reject([]byte(err.Error()))
		return err
	}
	if err = c.open(oneRead.AtMost(readsOf(e)), true); err != nil {
		c.id.Reject([]byte("no resources for one more connection"))
		return err
	}
	if err = c.id.SetAckTimeout(c.config.AckTimeout); err != nil {
		return err
	}
	return c.id.accept(ctx, streamParam(c.link.Reads), c.protocol.Hello())
}

// String returns the address, and the device if the address belongs to one: "listener 127.0.0.1:5000 on mlx5_0", with
// the suffix ", closed" after Close. It is safe for concurrent use.
func (l *Listener) String() string {
	return textOf(l.id, "listener", l.ctx != nil && l.ctx.Err() != nil)
}

// LogValue is String, for package log/slog.
func (l *Listener) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Accept waits for the next connection whose peer's device has acknowledged a message. It returns a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptRDMA(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptRDMA is Accept with a context, and returns a *Conn.
func (l *Listener) AcceptRDMA(ctx context.Context) (*Conn, error) {
	var err error
	select {
	case c := <-l.conns:
		c.work.Taken(made.Here())
		return c, nil
	case <-l.ctx.Done():
		err = net.ErrClosed
	case <-l.failed:
		err = l.failure
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, &net.OpError{Op: "accept", Net: "rdma", Addr: l.local, Err: err}
}

// Close stops listening. Accepted connections stay open; others are closed. The error also reports objects of failed
// connections that could not be released.
func (l *Listener) Close() error {
	first := false
	l.once.Do(func() {
		first = true
		l.cancel()
		l.serving.Wait()
		l.places.Wait()
		l.ended = errors.Join(l.dropAll(), l.shared.leave(), l.id.Close(), l.channel.Close(), l.events.leave(),
			l.leftover())
	})
	switch {
	case !first:
		return &net.OpError{Op: "close", Net: "rdma", Addr: l.local, Err: net.ErrClosed}
	case l.ended != nil:
		return &net.OpError{Op: "close", Net: "rdma", Addr: l.local, Err: l.ended}
	}
	return nil
}
