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
	events  *eventDispatcher // kept open between connections
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
	failed  chan struct{} // closed after the last request; then err is set
	failure error

	mu         sync.Mutex
	unreleased error               // the first failure to release the objects of a failed connection
	more       int                 // number of such failures after the first
	holders    map[*shared]*holder // nil after Close
	drops      sync.WaitGroup      // running calls of drop; added to only while holders is not nil
}

var _ net.Listener = (*Listener)(nil)

// ListenConfig creates listeners. The zero value means the defaults.
type ListenConfig struct {
	Config
	// Backlog is the maximum number of connections that wait for Accept. It includes those being established, and those
	// whose peer's device has not acknowledged a message yet. Like any connection, each pins its Buffer, and half as
	// much again once it has sent more than a few bytes: 3 MiB with the defaults, and 403 MB for a Backlog of 128. A
	// software device allocates pages on first use. One host can occupy at most three quarters of the backlog. Further
	// requests wait and pin nothing. 0 means [DefaultBacklog], and values below 16 mean 16.
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
	return max(lc.Backlog, minBacklog), nil // with fewer, one host could occupy all of it
}

// Listen listens at "host:port" with the defaults of [ListenConfig]. An empty host means all addresses of all devices.
// Port 0 means a free port; Addr returns its number.
func Listen(ctx context.Context, address string) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, address)
}

// Listen listens at "host:port". If the host has several addresses, it uses the first. ctx limits the name lookup.
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

// ListenIB is Listen at an AF_IB address, on ports whose link layer is InfiniBand: see [cm.IBAddr]. Create the address
// with cm.NewIBAddr and RDMA_PS_TCP. The zero GID means all ports.
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
	if err = id.Listen(0); err != nil { // 0 is the maximum: places limits the connections instead
		return nil, err
	}
	l := &Listener{id: id, channel: channel, config: c, conns: make(chan *Conn),
		places: places.New(backlog, places.Waiting), failed: make(chan struct{}), holders: map[*shared]*holder{}}
	if id.PortNum() > 0 { // bound to one device: keep its shared objects
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

// closeIf closes o if *err is not nil, and joins the errors.
func closeIf(err *error, o interface{ Close() error }) {
	if *err != nil {
		*err = errors.Join(*err, o.Close())
	}
}

// Addr returns the listener's address: an [Addr], or a [cm.IBAddr] after ListenIB.
func (l *Listener) Addr() net.Addr { return l.local }

// serve accepts requests. Leak reports attribute its objects to by, the program's call of Listen or Accept.
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
		case lost != nil: // this side failed, so reject the peer
			l.noteRelease(e.ID.Close())
			continue
		}
		l.places.Go(l.ctx, id.peerHost(), func() {
			made.For(work, func() { l.handshake(id, e, work) })
		}, func() {
			l.noteRelease(id.Close()) // rejects the request
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
	if err := c.accept(l.ctx, e); err != nil { // the request is rejected
		l.noteRelease(c.release())
		return
	}
	l.hold(c)
	c.start()
	if !c.confirmed(l.ctx) { // the request was forged, or the peer has ended
		l.noteRelease(c.discard())
		return
	}
	select {
	case l.conns <- c:
	case <-l.ctx.Done():
		l.noteRelease(c.Close())
	}
}

// confirmed reports whether the peer's device acknowledges a message within HandshakeTimeout. Until then, the
// connection counts toward the backlog, because two forged packets are enough to create it.
func (c *Conn) confirmed(ctx context.Context) bool {
	late := newDeadline()
	late.expired = c.interrupt
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
	return heard() || c.gone // a peer that disconnected did exist: Read returns its data and the error
}

// holder keeps a device and its shared objects open between connections.
type holder struct {
	id     *endpoint // an otherwise unused ID on the device
	shared *shared
}

func (h *holder) close() error { return errors.Join(h.shared.leave(), h.id.Close()) }

// hold keeps the shared objects of c's device until the listener is closed or the device is removed. A listener at all
// addresses is not on a device, so hold creates an ID at c's address.
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
		return // without a holder, the next connection creates the shared objects again
	}
	l.holders[h.shared] = h
	h.id.forward(func(e cm.Event, err error) {
		if err != nil || e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
			go l.drop(h.shared)
		}
	})
}

// newHolder returns a holder for the device of an address.
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

// drop releases the holder of a removed device.
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

// dropAll releases all holders after running calls of drop have ended.
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

// leftover returns the error about objects that could not be released, or nil.
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
		c.id.Reject([]byte("no resources for another connection"))
		return err
	}
	if err = c.id.SetAckTimeout(c.config.AckTimeout); err != nil {
		return err
	}
	return c.id.accept(ctx, streamParam(c.link.Reads), c.protocol.Hello())
}

// String returns the address, and the device if the address belongs to one, such as "listener 127.0.0.1:5000 on
// mlx5_0", with the suffix ", closed" after Close. It is safe for concurrent use.
func (l *Listener) String() string {
	return textOf(l.id, "listener", l.ctx != nil && l.ctx.Err() != nil)
}

// LogValue returns String, for package log/slog.
func (l *Listener) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Accept waits for the next connection and returns it as a *Conn. The peer's device has acknowledged a message.
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

// Close stops listening and closes connections that Accept has not returned. The error also reports objects of failed
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
