package cm

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Addr is an address of a stream connection over IP; of one over InfiniBand's own addresses it is [IBAddr].
type Addr struct{ netip.AddrPort }

// Network is "rdma".
func (Addr) Network() string { return "rdma" }

// Conn is a stream connection: a net.Conn that can be closed by halves. Bytes arrive in order, all of them, or the connection fails; who writes
// faster than the peer reads waits. What is written is in the peer's memory soon, whether it reads or not, as far as [Config].Buffer goes.
//
// Any number of goroutines may use it at once; Write is whole among other Writes. Write copies: its argument is the caller's when it returns.
type Conn struct {
	id            *ID
	config        Config
	local, remote net.Addr
	stream

	readDeadline, writeDeadline *deadline
	reading, writing            sync.Mutex // of who reads, of who writes
	readable, writable          chan struct{}

	// turn holds a token while somebody waits for completions, and handles them for all: who reads or writes, so that no other goroutine has to
	// be woken first, or else the pump.
	turn     chan struct{}
	turns    atomic.Uint64 // that were taken, or waited for
	released chan struct{} // holds a token when the turn was given back
	moved    chan struct{} // likewise when something that Close waits for may have happened
	waits    atomic.Pointer[waiting]

	mu        sync.Mutex
	err       error // why the connection is of no use any more
	dead      chan struct{}
	closed    chan struct{} // Close was called
	finWanted controlFlags  // the peer shall know
	finSent   controlFlags
	finSeq    uint64       // messages up to the one that said so
	peerFin   controlFlags // the peer said
	gone      bool         // the peer has disconnected

	cancel  context.CancelFunc
	workers sync.WaitGroup
	once    sync.Once
	ended   error
}

var _ net.Conn = (*Conn)(nil)

func newConn(id *ID, config Config) *Conn {
	c := &Conn{
		id: id, config: config, readDeadline: newDeadline(), writeDeadline: newDeadline(),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), dead: make(chan struct{}), closed: make(chan struct{}),
		turn: make(chan struct{}, 1), released: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	c.readDeadline.came, c.writeDeadline.came = c.interrupt, c.interrupt
	c.interrupt()
	return c
}

// start lets the connection work, now that the peer is known.
func (c *Conn) start() {
	c.local, c.remote = c.id.netAddrs()
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	signal(c.released)
	c.workers.Go(func() { c.pump(ctx) })
	c.workers.Go(func() { c.watch(ctx) })
	if c.config.Heartbeat > 0 {
		c.workers.Go(func() { c.beat(ctx) })
	}
}

// LocalAddr is an [Addr], or an [IBAddr] after DialIB and ListenIB.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is one of the same kind as LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline ends Reads at that time, those under way too; the zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.readDeadline, t) }

// SetWriteDeadline ends Writes at that time. What they have written until then is on its way.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.writeDeadline, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if isDone(c.closed) {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// opError is an error as package net gives it.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// fail ends the connection. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.dead)
		c.interrupt()
	}
}
