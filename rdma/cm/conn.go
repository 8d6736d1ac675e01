package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

// Addr is an address of a stream connection.
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
	local, remote Addr
	stream

	readDeadline, writeDeadline *deadline
	reading, writing            sync.Mutex // of who reads, of who writes
	readable, writable          chan struct{}

	// turn holds a token while somebody waits for completions, and handles them for all: who reads or writes, so that no other goroutine has to
	// be woken first, or else the pump.
	turn     chan struct{}
	turns    atomic.Uint64
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

// waiting is what a wait for completions ends with.
type waiting struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// interrupt ends the wait of who has the turn: something else has happened.
func (c *Conn) interrupt() {
	w := new(waiting)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if old := c.waits.Swap(w); old != nil {
		old.cancel()
	}
}

// start lets the connection work, now that the peer is known.
func (c *Conn) start() {
	c.local, c.remote = Addr{c.id.LocalAddr()}, Addr{c.id.PeerAddr()}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	signal(c.released)
	c.workers.Go(func() { c.pump(ctx) })
	c.workers.Go(func() { c.watch(ctx) })
	if c.config.Heartbeat > 0 {
		c.workers.Go(func() { c.beat(ctx) })
	}
}

// LocalAddr is an [Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is an [Addr].
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

// Read reads what has arrived, once there is something.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		w := c.waits.Load() // before looking: what happens from here on ends the wait
		n, err := c.tryRead(p)
		switch {
		case err == io.EOF:
			return 0, err
		case err != nil:
			return n, c.opError("read", err)
		case n > 0 || len(p) == 0:
			return n, nil
		}
		c.await(w, c.readDeadline, c.readable, c.canRead)
	}
}

// canRead says whether Read has something to say. The caller holds mu.
func (c *Conn) canRead() bool { return c.arrived != c.read || c.peerFin&fin != 0 || c.err != nil }

// await returns when there may be something new: of completions, which it waits for itself when it is its turn, or else.
func (c *Conn) await(w *waiting, d *deadline, more <-chan struct{}, ready func() bool) {
	turn := c.turn
	c.mu.Lock()
	if c.gone {
		turn = nil // watch takes it
	}
	c.mu.Unlock()
	select {
	case turn <- struct{}{}:
		c.mu.Lock()
		now := ready() || c.gone
		c.mu.Unlock()
		if !now {
			c.takeTurn(w.ctx)
		}
		c.endTurn()
	case <-more:
	case <-d.passed():
	case <-c.closed:
	case <-c.dead:
	}
}

// takeTurn waits for completions and handles them. The caller has the turn.
func (c *Conn) takeTurn(ctx context.Context) {
	c.turns.Add(1)
	n, err := c.cq.Wait(ctx, c.wcs)
	if n > 0 {
		c.handle(c.wcs[:n])
	} else if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		c.fail(err)
		c.mu.Unlock()
	}
}

func (c *Conn) endTurn() {
	<-c.turn
	signal(c.released)
}

func (c *Conn) tryRead(p []byte) (int, error) {
	switch {
	case isDone(c.closed):
		return 0, net.ErrClosed
	case isDone(c.readDeadline.passed()):
		return 0, os.ErrDeadlineExceeded
	case len(p) == 0:
		return 0, nil
	}
	c.mu.Lock()
	from, to := c.read, c.arrived
	end, err := c.peerFin&fin != 0, c.err
	c.mu.Unlock()
	if from == to {
		switch {
		case end:
			return 0, io.EOF
		case err != nil:
			return 0, err
		}
		return 0, nil
	}
	n := c.copyOut(p, from, to) // what stands between the two is the reader's
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += uint64(n)
	c.sendControl()
	return n, nil
}

// Write sends all of p, waiting for the peer to take it.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		w := c.waits.Load() // before looking
		m, err := c.tryWrite(p[n:])
		n += m
		switch {
		case err != nil:
			return n, c.opError("write", err)
		case n == len(p):
			return n, nil
		case m > 0:
			continue
		}
		c.await(w, c.writeDeadline, c.writable, func() bool { return c.writeErr() != nil || c.room(len(p)-n) > 0 })
	}
}

// tryWrite sends one piece of p, if there is room for it.
func (c *Conn) tryWrite(p []byte) (int, error) {
	switch {
	case isDone(c.closed):
		return 0, net.ErrClosed
	case isDone(c.writeDeadline.passed()):
		return 0, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	room, at, err := c.room(len(p)), c.staged, c.writeErr()
	c.mu.Unlock()
	if err != nil || room == 0 || len(p) == 0 {
		return 0, err
	}
	piece := p[:room]
	inline := len(p) <= c.inline
	if !inline {
		copy(c.staging[at%uint64(len(c.staging)):], piece) // this part of the memory is the writer's
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	if !c.slotFree(keptByData) { // a control message took the last slot
		return 0, nil
	}
	if err := c.postData(piece, inline); err != nil {
		c.fail(err)
		return 0, err
	}
	return len(piece), nil
}

// writeErr says why nothing can be written any more, or nil. The caller holds mu.
func (c *Conn) writeErr() error {
	switch {
	case c.err != nil:
		return c.err
	case c.finWanted&fin != 0, c.peerFin&done != 0, c.gone:
		return epipe
	}
	return nil
}

// fail ends the connection. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.dead)
		c.interrupt()
	}
}

// CloseWrite says that no more will be written: the peer reads what was, and then io.EOF. Reading goes on.
func (c *Conn) CloseWrite() error {
	if isDone(c.closed) {
		return c.opError("close", net.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.opError("close", c.err)
	}
	c.want(fin)
	return nil
}

// want has the peer told something, as soon as there is room. The caller holds mu.
func (c *Conn) want(flags controlFlags) {
	c.finWanted |= flags
	c.sendControl()
	signal(c.writable) // who writes can't any more
	c.interrupt()
}

// Close ends the connection. It waits until all that was written is in the peer's memory and the peer knows that no more comes, for
// [Config].Linger at most, and then gives everything back. What the peer sends meanwhile is dropped; its next Write fails.
func (c *Conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.closed)
		c.interrupt()
		c.goodbye()
		c.ended = c.release()
	})
	switch {
	case !first:
		return c.opError("close", net.ErrClosed)
	case c.ended != nil:
		return c.opError("close", c.ended)
	}
	return nil
}

// goodbye tells the peer, and waits for its word.
func (c *Conn) goodbye() {
	c.mu.Lock()
	if c.cancel != nil && c.err == nil && !c.gone {
		c.want(fin | done)
	}
	c.mu.Unlock()
	late := newDeadline()
	late.came = c.interrupt
	late.set(time.Now().Add(c.config.Linger))
	defer late.stop()
	for {
		w := c.waits.Load()
		c.mu.Lock()
		over := c.parted()
		c.mu.Unlock()
		if over || isDone(late.passed()) {
			return
		}
		c.awaitEnd(w, late)
	}
}

// parted says whether there is nothing more to say. The caller holds mu.
func (c *Conn) parted() bool {
	return c.cancel == nil || c.err != nil || c.gone || c.finSent == fin|done && c.completed >= c.finSeq && c.peerFin&fin != 0
}

// awaitEnd is await of Close, which c.closed does not end.
func (c *Conn) awaitEnd(w *waiting, late *deadline) {
	select {
	case c.turn <- struct{}{}:
		c.mu.Lock()
		now := c.parted()
		c.mu.Unlock()
		if !now {
			c.takeTurn(w.ctx)
		}
		c.endTurn()
	case <-c.moved:
	case <-c.dead:
	case <-late.passed():
	}
}

// release disconnects and gives everything back.
func (c *Conn) release() error {
	c.readDeadline.stop()
	c.writeDeadline.stop()
	if c.cancel != nil {
		c.id.call("rdma_disconnect", c.id.disconnect) // fails where the connection is gone already
		c.cancel()
		c.interrupt()
		c.workers.Wait()
	}
	return errors.Join(c.stream.close(c.id), c.id.Close())
}

// watch waits for the peer to disconnect.
func (c *Conn) watch(ctx context.Context) {
	for {
		e, err := c.id.Event(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.mu.Lock()
				c.fail(err)
				c.mu.Unlock()
			}
			return
		}
		switch e.Type {
		case rdmacm.CM_EVENT_DISCONNECTED, rdmacm.CM_EVENT_DEVICE_REMOVAL:
			c.peerLeft(ctx, e)
			return
		}
	}
}

// peerLeft lets nothing more be sent, waits until everything that has arrived has completed, and handles it.
func (c *Conn) peerLeft(ctx context.Context, e Event) {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	c.interrupt()
	signal(c.writable)
	signal(c.moved)
	ctx, cancel := context.WithTimeout(ctx, c.config.Linger)
	defer cancel()
	c.qp.Drain(ctx)
	select {
	case c.turn <- struct{}{}:
		defer c.endTurn()
	case <-ctx.Done():
		return
	}
	for n, err := c.cq.Poll(c.wcs); n > 0 && err == nil; n, err = c.cq.Poll(c.wcs) {
		c.handle(c.wcs[:n])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
		c.fail(&EventError{Verb: "read", Object: c.id.name(), Event: e})
	} else if c.peerFin&fin == 0 {
		c.fail(econnreset)
	}
	signal(c.readable)
}

// pumpAfter is how long nobody else has to have waited for completions before the pump does.
const pumpAfter = 2 * time.Millisecond

// pump handles completions while nobody reads or writes.
func (c *Conn) pump(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.released:
		case <-ctx.Done():
			return
		}
		for before := c.turns.Load() - 1; before != c.turns.Load(); {
			before = c.turns.Load()
			timer.Reset(pumpAfter)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		w := c.waits.Load() // before looking
		c.mu.Lock()
		over := c.gone || c.err != nil || ctx.Err() != nil
		c.mu.Unlock()
		if over {
			return
		}
		select {
		case c.turn <- struct{}{}:
			c.takeTurn(w.ctx)
			c.endTurn()
		default: // who has it will give it back
		}
	}
}

// beat says something when nothing else is said.
func (c *Conn) beat(ctx context.Context) {
	ticker := time.NewTicker(c.config.Heartbeat)
	defer ticker.Stop()
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dead:
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		if c.messages == last && c.err == nil && !c.gone {
			c.sendHeartbeat()
		}
		last = c.messages
		c.mu.Unlock()
	}
}

// completionFailed ends the connection because of a completion that failed. The caller holds mu.
func (c *Conn) completionFailed(wc *ibv.WC) {
	err := rdma.CompletionErr(wc)
	switch wc.Status {
	case ibv.WC_WR_FLUSH_ERR: // after a failure, or because the connection is ending, which tells its reason itself
		return
	case ibv.WC_RETRY_EXC_ERR:
		err = fmt.Errorf("%w: the peer does not answer: %w", etimedout, err)
	case ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_REM_OP_ERR, ibv.WC_REM_ACCESS_ERR, ibv.WC_REM_INV_REQ_ERR:
		err = fmt.Errorf("%w: %w", econnreset, err)
	}
	c.fail(err)
}
