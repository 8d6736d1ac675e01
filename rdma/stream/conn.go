// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// Addr is the address of a stream connection over IP. Connections over AF_IB have a [cm.IBAddr].
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (Addr) Network() string { return "rdma" }

// Conn is a stream connection: a net.Conn whose directions can be closed separately. All bytes arrive in order, or the
// connection fails. Write waits while the peer reads too slowly. Up to [Config].Buffer bytes are sent to the peer's
// memory without waiting for its program to read.
//
// It is safe for concurrent use; concurrent Writes do not mix. Write copies its argument.
type Conn struct {
	id            *endpoint
	config        Config
	work          *made.Work // of a connection accepted by a listener
	local, remote net.Addr
	poller        *poller // receives completions by key
	shared        *shared // the poller's
	key           uint32
	protocol      protocol.Protocol
	link          *protocol.Link // the objects of the protocol

	reader  reader
	writer  writer
	lending lending

	eventArrived chan struct{} // holds a token after an event that may end a wait of Close
	returned     chan struct{} // holds a token after all receives have completed

	mu        sync.Mutex
	err       error // why the connection failed
	dead      chan struct{}
	closed    chan struct{}  // closed by Close
	finWanted protocol.Flags // flags that must be sent
	finSent   protocol.Flags
	finSeq    uint64         // number of messages, up to the one that sent these flags
	endSeq    uint64         // number of messages, up to the one that sent Fin
	peerFin   protocol.Flags // flags that the peer sent
	gone      bool           // the peer has disconnected
	started   bool           // the peer is known; control messages may be sent
	received  uint64         // number of messages
	released  bool           // objects are released, or being released

	watcher   func(Readiness)    // set by Watch, or nil
	heartbeat *time.Timer        // or nil
	ctx       context.Context    // of the connection's goroutines
	cancel    context.CancelFunc // nil before start
	workers   sync.WaitGroup
	once      sync.Once
	ended     error
}

var _ net.Conn = (*Conn)(nil)

func newConn(id *endpoint, config Config) *Conn {
	c := &Conn{
		id: id, config: config, dead: make(chan struct{}),
		closed: make(chan struct{}), eventArrived: make(chan struct{}, 1), returned: make(chan struct{}, 1),
	}
	c.protocol = config.Protocol.new()
	c.link = c.protocol.Objects()
	c.reader.begin(c.interrupt)
	c.writer.begin(c.interrupt, c.probePeer)
	return c
}

// Readiness reports which calls would not wait.
type Readiness struct {
	Read  bool  // Read would return bytes, io.EOF or an error
	Write bool  // Write would send some bytes or return an error
	Over  bool  // the peer has closed, and all of its data has been read
	Err   error // why the connection failed
}

// Ready returns the connection's readiness.
func (c *Conn) Ready() Readiness {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readiness()
}

// readiness is Ready. The caller holds mu. After a disconnect, messages that the peer sent before may still have to be
// handled; until then, Read would not return io.EOF.
func (c *Conn) readiness() Readiness {
	return Readiness{
		Read:  c.canRead() || isDone(c.closed),
		Write: c.writeErr() != nil || c.protocol.Room(math.MaxInt32, false) > 0, // room for a write of any length
		Over:  (c.gone && c.canRead() || c.peerFin&protocol.Done != 0) && c.protocol.Unread() == 0,
		Err:   c.err,
	}
}

// canRead reports whether Read can return. The caller holds mu.
func (c *Conn) canRead() bool {
	return c.protocol.Unread() > 0 || c.peerFin&protocol.Fin != 0 || c.err != nil
}

// writeErr returns why writing is impossible, or nil. The caller holds mu.
func (c *Conn) writeErr() error {
	switch {
	case isDone(c.closed): // not a failure of the connection: Close still sends the end of data
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.finWanted&protocol.Fin != 0, c.peerFin&protocol.Done != 0, c.gone:
		return syscall.EPIPE
	}
	return nil
}

// Watch sets a function that is called when the result of Ready may have changed, for programs that wait for many
// things at once and use TryRead and TryWrite. The calling goroutine also handles completions of other connections, so
// the function must return soon, and must not call methods of the connection. Call Watch once, before any other method.
func (c *Conn) Watch(changed func(Readiness)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = changed
}

// Poll handles messages that have arrived, for a program that calls Ready in a loop. TryRead and TryWrite do this, too.
func (c *Conn) Poll() { c.poller.tryPoll() }

// Rest marks the start (true) or end (false) of a period in which a thread of the program sleeps until Watch's function
// is called. During that period messages are handled at once, and otherwise with up to 10 ms delay.
func (c *Conn) Rest(asleep bool) { c.poller.rest(asleep) }

// await returns when ready may report true. It handles completions itself unless another goroutine does.
func (c *Conn) await(d *deadline, more <-chan struct{}, ready func() bool) {
	r := c.poller
	over := func() bool {
		c.mu.Lock()
		now := ready() || c.err != nil
		c.mu.Unlock()
		return now || isDone(d.passed()) || isDone(c.closed)
	}
	select {
	case r.turn <- struct{}{}: // tried alone first: faster than a select with two cases
		r.lead(c, over)
		return
	default:
	}
	select {
	case r.turn <- struct{}{}:
		r.lead(c, over)
	case <-more: // signaled by interrupt, too
		r.turns.Add(1) // makes the background goroutine release the queue
	}
}

// LocalAddr returns an [Addr], or a [cm.IBAddr] after DialIB and ListenIB.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address, of the same type as LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the deadline of current and future Reads. The zero time means no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.reader.deadline, t) }

// SetWriteDeadline sets the deadline of current and future Writes. Bytes that a Write has counted by then are sent.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.writer.deadline, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if isDone(c.closed) {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

// String returns the addresses and the device, such as "connection 127.0.0.1:4000 to 127.0.0.2:5000 on mlx5_0", with
// the suffix ", closed" after Close. It is safe for concurrent use.
func (c *Conn) String() string { return c.id.text("connection", isDone(c.closed)) }

// LogValue returns String, for package log/slog.
func (c *Conn) LogValue() slog.Value { return slog.StringValue(c.String()) }

// opError returns an error like those of package net.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// fail makes the connection fail with err. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.dead)
		c.changed()
		c.interrupt()
	}
}

// interrupt makes waiting goroutines of this connection check their conditions after an event other than a completion.
func (c *Conn) interrupt() {
	signal(c.reader.ready)
	signal(c.writer.ready)
	signal(c.eventArrived)
	if r := c.poller; r != nil && r.leader.Load() == c {
		r.interrupt()
	}
}

// changed calls the function of Watch. The caller holds mu.
func (c *Conn) changed() {
	if c.watcher != nil && !c.released {
		c.watcher(c.readiness())
	}
}

// start starts the connection after the peer is known.
func (c *Conn) start() {
	c.local, c.remote = c.id.addrs()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.Lock()
	c.started = true
	c.sendControl() // precedes any data
	c.mu.Unlock()
	c.id.forward(c.event)
	c.startHeartbeat()
}

// event handles an event of the ID, such as a disconnect by the peer.
func (c *Conn) event(e cm.Event, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.fail(err)
	case c.gone:
	case e.Type == rdmacm.CM_EVENT_DISCONNECTED, e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL:
		c.gone = true
		c.changed()
		c.interrupt()
		if e.Type == rdmacm.CM_EVENT_DISCONNECTED && c.sawEnd() {
			return
		}
		c.workers.Go(func() { c.peerLeft(e) })
	}
}

// sawEnd reports whether the peer has sent the end of data and the device reads no lent memory; then nothing is left to
// wait for. The caller holds mu.
func (c *Conn) sawEnd() bool {
	const last = protocol.Fin | protocol.Done
	return c.protocol.AnswersEnd() && c.peerFin&last == last && len(c.lending.all) == 0
}

// flushAfter is how long flush waits for receives to complete after the move to ERR, before it drains the queue pair.
const flushAfter = 100 * time.Millisecond

// peerLeft handles the peer's disconnect: it waits until all arrived messages are handled. Nothing more is sent.
func (c *Conn) peerLeft(e cm.Event) {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
		c.fail(e.Err("rdma_get_cm_event"))
	} else if c.peerFin&protocol.Fin == 0 {
		c.fail(syscall.ECONNRESET)
	}
	c.changed()
	c.interrupt()
}

// flush makes all receives complete and waits for their completions.
func (c *Conn) flush() {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Linger)
	defer cancel()
	_ = c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE)
	soon, stop := context.WithTimeout(ctx, flushAfter)
	defer stop()
	if c.awaitReturn(soon) || ctx.Err() != nil {
		return
	}
	if c.link.QP.Drain(ctx) == nil {
		c.poller.wake()
		c.awaitReturn(ctx)
	}
}

// awaitReturn waits until all receives have completed.
func (c *Conn) awaitReturn(ctx context.Context) bool {
	for {
		c.mu.Lock()
		out := c.link.RecvsOut
		c.mu.Unlock()
		if out == 0 {
			return true
		}
		select {
		case <-c.returned:
		case <-c.dead:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// startHeartbeat starts the timer that sends a heartbeat after a period without messages.
func (c *Conn) startHeartbeat() {
	every := c.config.Heartbeat
	if every <= 0 {
		return
	}
	last := uint64(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heartbeat = time.AfterFunc(every, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err != nil || c.gone || c.released {
			return
		}
		if now := c.link.Messages + c.received; now == last {
			c.sendProbe()
		} else {
			last = now
		}
		c.heartbeat.Reset(every)
	})
}

// completionFailed makes the connection fail because of a failed completion. The caller holds mu.
func (c *Conn) completionFailed(wc *ibv.WC) {
	if known := c.err != nil || c.gone || isDone(c.closed); known && wc.Status == ibv.WC_WR_FLUSH_ERR {
		return // the connection is ending, so its receives are flushed
	}
	err := rdma.CompletionErr(wc)
	switch wc.Status {
	case ibv.WC_WR_FLUSH_ERR:
		err = fmt.Errorf("%w: the queue pair has failed: %w", syscall.ECONNRESET, err)
	case ibv.WC_RETRY_EXC_ERR:
		err = fmt.Errorf("%w: the peer does not answer: %w", syscall.ETIMEDOUT, err)
	case ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_REM_OP_ERR, ibv.WC_REM_ACCESS_ERR, ibv.WC_REM_INV_REQ_ERR:
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	}
	c.fail(err)
}

// handle processes completions: it reposts their receives and wakes waiting goroutines.
func (c *Conn) handle(wcs []ibv.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return
	}
	bad := false
	for i := range wcs {
		wc := &wcs[i]
		recv := protocol.IsRecv(wc.WRID)
		probe := protocol.IsProbe(wc.WRID)
		sent := !recv && !probe && !protocol.IsFetch(wc.WRID)
		if recv {
			c.link.RecvsOut--
		}
		switch {
		case wc.Status != ibv.WC_SUCCESS:
			if sent {
				c.link.SendDone(wc.WRID, true) // the device no longer reads the send's memory
			}
			c.completionFailed(wc)
			continue
		case sent:
			c.link.SendDone(wc.WRID, false)
			continue
		case probe:
			c.link.ProbeDone()
			continue
		case bad: // ignore the peer's messages after a violation
			continue
		}
		flags, err := c.protocol.Received(wc, c.peerFin)
		if err != nil {
			c.fail(err)
			bad = true
			continue
		}
		c.peerFin |= flags
		if recv {
			c.received++
			c.protocol.AddRecv(wc)
		}
	}
	if c.link.Recvs.Len() >= c.link.RecvsAtOnce && c.err == nil && !c.gone {
		if err := c.link.PostRecvs(); err != nil {
			c.fail(err)
		}
	}
	if c.link.RecvsOut == 0 {
		signal(c.returned)
	}
	if c.peerFin&protocol.Done != 0 {
		c.finWanted |= protocol.Fin // writes fail from now on, so tell the peer that no data follows
	}
	c.sendControl()
	c.wakeLenders()
	signal(c.reader.ready)
	signal(c.writer.ready)
	signal(c.eventArrived)
	c.changed()
}

// sendControl sends pending credits and flags if there is room. The caller holds mu.
func (c *Conn) sendControl() {
	if c.err != nil || c.gone || !c.started || c.released {
		return
	}
	sent, err := c.protocol.SendPending(c.finWanted &^ c.finSent)
	if err != nil {
		c.fail(err)
		return
	}
	if sent != 0 {
		c.finSeq = c.link.Messages
	}
	if sent&protocol.Fin != 0 {
		c.endSeq = c.link.Messages
	}
	c.finSent |= sent
}

// sendProbe sends a probe, which the peer's device must acknowledge, unless the peer has closed. The caller holds mu.
func (c *Conn) sendProbe() {
	if c.peerFin&protocol.Done != 0 {
		return
	}
	if err := c.link.Probe(c.protocol.ProbeAt()); err != nil {
		c.fail(err)
	}
}

// CloseWrite ends writing: the peer reads all written data and then io.EOF. Reading remains possible. CloseWrite does
// not wait for the data to arrive; Close does, and reports data that did not.
func (c *Conn) CloseWrite() error {
	if isDone(c.closed) {
		return c.opError("close", net.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.opError("close", c.err)
	}
	c.want(protocol.Fin)
	if c.peerFin&protocol.Done != 0 {
		if err := c.undelivered(); err != nil {
			return c.opError("close", err)
		}
	}
	return nil
}

// want records flags to send to the peer, and sends them if there is room. The caller holds mu.
func (c *Conn) want(flags protocol.Flags) {
	c.finWanted |= flags
	c.sendControl()
	c.changed()
	c.interrupt()
}

// Close closes the connection. It first waits, at most for [Config].Linger, until all written data and the end of data
// are in the peer's memory, and then releases all resources.
//
// If the peer's device did not acknowledge everything, or the peer closed without reading everything, the error
// contains an [UndeliveredError], and data may be lost: it is not retransmitted. (With rsockets, which do not report
// how much was read, only missing acknowledgements are an error. On iWARP, TCP acknowledges data before it is in the peer's memory.) In contrast, Close of a TCP connection returns nil at
// once. Without an error the data has arrived; only a reply from the peer's program proves that it was read.
//
// Data that the peer sends during Close is dropped, and its next Write fails.
func (c *Conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.closed)
		c.interrupt()
		lost := c.sendEnd()
		c.ended = errors.Join(lost, c.release())
	})
	switch {
	case !first:
		return c.opError("close", net.ErrClosed)
	case c.ended != nil:
		return c.opError("close", c.ended)
	}
	return nil
}

// discard closes a connection that Accept has not returned. It sends nothing to the peer.
func (c *Conn) discard() (err error) {
	c.once.Do(func() {
		close(c.closed)
		c.interrupt()
		err = c.release()
	})
	return err
}

// lastAck is how long Close waits for the disconnect of a peer that has closed and may still wait for the
// acknowledgement of its last message. Soft-RoCE acknowledges a message only after it has delivered it, and not if the
// queue pair has been destroyed meanwhile. C's rsockets would then wait forever.
const lastAck = 500 * time.Millisecond

// sendEnd sends the end of data and waits for its acknowledgement. It returns an error if data did not arrive.
func (c *Conn) sendEnd() error {
	c.mu.Lock()
	if c.cancel != nil && c.err == nil && !c.gone {
		c.want(c.endFlags())
	}
	c.mu.Unlock()
	late := newDeadline()
	late.expired = c.interrupt
	late.set(time.Now().Add(c.config.Linger))
	defer late.stop()
	for leaving := false; ; {
		c.mu.Lock()
		over, left := c.finished(), c.peerFin&protocol.Done != 0 && !c.protocol.AnswersEnd()
		gone := c.gone
		c.mu.Unlock()
		if over || isDone(late.passed()) {
			if gone {
				c.workers.Wait() // the peer's last messages may acknowledge data
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.undelivered()
		}
		if left && !leaving {
			leaving = true
			late.set(time.Now().Add(min(lastAck, c.config.Linger)))
		}
		c.awaitEnd(late, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.finished() || isDone(late.passed())
		})
	}
}

// undelivered returns an error if the peer has not acknowledged all data and the end of data. Without the end, the
// peer's program sees a failed connection. The caller holds mu.
func (c *Conn) undelivered() error {
	peer := c.peerFin
	lost := c.protocol.Undelivered(peer)
	ended := c.link.Written == 0 || peer&protocol.Done != 0 ||
		c.finSent&protocol.Fin != 0 && c.link.Acked >= c.endSeq
	err := c.err
	switch {
	case c.cancel == nil || lost == 0 && ended:
		return nil
	case err != nil:
	case peer&protocol.Done != 0:
		err = fmt.Errorf("%w: the peer closed without reading all data", syscall.EPIPE)
	case c.gone:
		err = syscall.ECONNRESET
	default:
		err = fmt.Errorf("%w: Linger (%v) expired", syscall.ETIMEDOUT, c.config.Linger)
	}
	return &UndeliveredError{Bytes: lost, Err: err}
}

// endFlags returns the flags that Close sends. A peer that has closed already needs no Done. The caller holds mu.
func (c *Conn) endFlags() protocol.Flags {
	if c.protocol.AnswersEnd() && c.peerFin&protocol.Done != 0 {
		return protocol.Fin
	}
	return protocol.Fin | protocol.Done
}

// finished reports whether nothing is left to send. The caller holds mu.
func (c *Conn) finished() bool {
	if c.cancel == nil || c.err != nil || c.gone {
		return true
	}
	word := c.endFlags()
	sent := c.finSent&word == word && c.link.Completed >= c.finSeq
	if !c.protocol.AnswersEnd() {
		return sent // otherwise the peer disconnects after its own end is acknowledged
	}
	return sent && c.peerFin&protocol.Fin != 0 && !c.link.Offered()
}

// awaitEnd is await for Close: it ignores c.closed and returns after an event for which over may report true.
func (c *Conn) awaitEnd(late *deadline, over func() bool) {
	r := c.poller
	select {
	case r.turn <- struct{}{}:
		r.lead(c, over)
	case <-c.eventArrived:
		r.turns.Add(1)
	case <-c.dead:
	case <-late.passed():
	}
}

// release disconnects and releases all objects.
func (c *Conn) release() error {
	c.reader.deadline.stop()
	c.writer.deadline.stop()
	c.stopProbing()
	if c.cancel != nil {
		c.id.forward(nil)
		c.cancel()
		c.workers.Wait()
	}
	c.reader.memory.Lock() // waits for goroutines that copy from or to the memory
	defer c.reader.memory.Unlock()
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	c.mu.Lock()
	if c.released = true; c.heartbeat != nil {
		c.heartbeat.Stop()
	}
	c.mu.Unlock()
	if c.cancel != nil {
		c.disconnect()
	}
	err := c.link.Close()
	c.endLends()
	for _, m := range c.writer.mapped {
		if m.mr != nil {
			err = errors.Join(err, m.mr.Close())
		}
	}
	return errors.Join(err, c.unshare(), c.id.Close())
}

// disconnect disconnects from the peer and closes the queue pair. It moves the queue pair to RESET, which drops
// receives without completions; rdma_disconnect or a drain would complete each of them. The queue pair is closed before
// rdma_disconnect, which would move it to ERR.
func (c *Conn) disconnect() {
	if c.shared.device.Info().Transport != ibv.TRANSPORT_IWARP &&
		c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE) == nil {
		_ = c.link.QP.Close() // link.Close returns the error
	}
	_ = c.id.Disconnect(context.Background()) // fails if the connection has already ended
}
