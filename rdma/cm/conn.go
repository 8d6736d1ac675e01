// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/registration"
)

// Addr is the address of a stream connection over IP. A connection over AF_IB has an [IBAddr].
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (Addr) Network() string { return "rdma" }

// Conn is a stream connection: a net.Conn whose two directions can be closed separately. All bytes arrive in order, or
// the connection fails. Write waits if the peer reads more slowly. Up to [Config].Buffer bytes are in the peer's memory
// soon after Write, whether the peer reads or not.
//
// Any number of goroutines may use it at once; concurrent Writes do not mix. Write copies: its argument belongs to the
// caller again when it returns.
type Conn struct {
	id            *ID
	config        Config
	work          *made.Work // of a connection that a listener has made
	local, remote net.Addr
	reactor       *reactor   // brings the completions, by the key
	shared        *streaming // that the reactor is of
	key           uint32
	protocol      protocol.Protocol
	link          *protocol.Link // the protocol's

	readDeadline, writeDeadline *deadline
	reader                      sync.Mutex // of the reading goroutine, also while it looks at what is lent; inside it
	reading, writing            sync.Mutex // by Read and by Write while they use the memory
	readable, writable          chan struct{}

	moved    chan struct{} // holds a token after something happened that Close may wait for
	returned chan struct{} // holds a token after all receives have completed

	mu        sync.Mutex
	err       error // why the connection failed
	dead      chan struct{}
	closed    chan struct{}  // Close was called
	finWanted protocol.Flags // flags that the peer has to be told
	finSent   protocol.Flags
	finSeq    uint64         // number of messages up to the one that told it
	endSeq    uint64         // number of messages up to the one that told Fin
	peerFin   protocol.Flags // flags that the peer told
	gone      bool           // the peer has disconnected
	started   bool           // the peer is known, and may be told something
	released  bool           // the objects are gone, or about to be

	learned learned                  // guarded by reading
	lends   []*lend                  // oldest first
	lenders sync.WaitGroup           // that wait for the device
	strays  []*rdma.Buffer           // of ReadFrom, which Close gives back
	word    [protocol.MaxInline]byte // of WriteBuffers; guarded by writing
	mapped  []mapping                // for the other end's WriteAt; guarded by writing
	watcher func(Readiness)          // is told of changes; or nil
	probe   probe
	beat    *time.Timer        // or nil
	ctx     context.Context    // of goroutines while it is open
	cancel  context.CancelFunc // or nil: it has not started
	workers sync.WaitGroup
	once    sync.Once
	ended   error
}

// lend is memory of the program that the device may read until a message has completed.
type lend struct {
	upTo  uint64             // messages
	back  chan struct{}      // holds a token when the device is done
	lease registration.Lease // of memory that the program has not registered itself
}

// mapping is memory that was mapped, or the place of one that is no more.
type mapping struct {
	mr     *rdma.MR
	offset int64
}

// Readiness is what a connection can do without waiting.
type Readiness struct {
	Read  bool  // Read returns bytes, io.EOF or an error
	Write bool  // Write sends something, however long it is, or returns an error
	Over  bool  // the peer has closed, and all that it sent was read
	Err   error // why the connection failed
}

var _ net.Conn = (*Conn)(nil)

func newConn(id *ID, config Config) *Conn {
	c := &Conn{
		id: id, config: config, readDeadline: newDeadline(), writeDeadline: newDeadline(),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), dead: make(chan struct{}),
		closed: make(chan struct{}), moved: make(chan struct{}, 1), returned: make(chan struct{}, 1),
	}
	c.protocol = config.Protocol.new()
	c.link = c.protocol.Objects()
	c.probe.timer = time.AfterFunc(time.Hour, c.ask)
	c.probe.timer.Stop()
	c.readDeadline.came, c.writeDeadline.came = c.interrupt, c.interrupt
	return c
}

// LocalAddr returns an [Addr], or an [IBAddr] after DialIB and ListenIB.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns an address of the same kind as LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline ends Reads at a time, also those under way; the zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.readDeadline, t) }

// SetWriteDeadline ends Writes at a time. Bytes that they have counted until then are sent.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.writeDeadline, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if isDone(c.closed) {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

// opError returns an error like those of package net.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// fail ends the connection. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.dead)
		c.changed()
		c.interrupt()
	}
}

// interrupt has waiting goroutines of this stream look again, because something else has happened than completions.
func (c *Conn) interrupt() {
	signal(c.readable)
	signal(c.writable)
	signal(c.moved)
	if r := c.reactor; r != nil && r.leader.Load() == c {
		r.interrupt()
	}
}

// changed tells who watches. The caller holds mu.
func (c *Conn) changed() {
	if c.watcher != nil && !c.released {
		c.watcher(c.readiness())
	}
}

// readiness is Ready. The caller holds mu. What a peer sent before it left may have to be handled still, until Read
// would say that there is no more.
func (c *Conn) readiness() Readiness {
	return Readiness{
		Read:  c.canRead() || isDone(c.closed),
		Write: c.writeErr() != nil || c.protocol.Room(math.MaxInt32, false) > 0, // for a write of any length
		Over:  (c.gone && c.canRead() || c.peerFin&protocol.Done != 0) && c.protocol.Unread() == 0,
		Err:   c.err,
	}
}

// canRead reports whether Read can return. The caller holds mu.
func (c *Conn) canRead() bool {
	return c.protocol.Unread() > 0 || c.peerFin&protocol.Fin != 0 || c.err != nil
}

// writeErr says why writing is impossible, or returns nil. The caller holds mu.
func (c *Conn) writeErr() error {
	switch {
	case isDone(c.closed): // which says so by itself, too
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.finWanted&protocol.Fin != 0, c.peerFin&protocol.Done != 0, c.gone:
		return verberr.EPIPE
	}
	return nil
}
