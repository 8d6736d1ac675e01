// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"math"
	"net"
	"os"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// Read waits until data has arrived, and reads it.
func (c *Conn) Read(p []byte) (int, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	defer c.learned.end()
	for {
		n, err := c.tryRead(p)
		switch {
		case err == io.EOF:
			return 0, err
		case err != nil:
			return n, c.opError("read", err)
		case n > 0 || len(p) == 0:
			return n, nil
		}
		c.awaitData()
	}
}

func (c *Conn) tryRead(p []byte) (int, error) {
	if err := c.mayRead(); err != nil || len(p) == 0 {
		return 0, err
	}
	unread, err := c.unread()
	if unread == 0 {
		return 0, err
	}
	n := c.protocol.CopyOut(p, unread) // these bytes belong to the reader
	c.took(n)
	return n, nil
}

// mayRead says why reading is over, whatever has arrived, or returns nil.
func (c *Conn) mayRead() error {
	switch {
	case isDone(c.closed):
		return net.ErrClosed
	case isDone(c.readDeadline.passed()):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// unread returns how many bytes wait for a reader, or else why no more will come.
func (c *Conn) unread() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.protocol.Unread()
	switch {
	case n > 0:
		return n, nil
	case c.peerFin&protocol.Fin != 0:
		return 0, io.EOF
	}
	return 0, c.err
}

// took gives the peer room for bytes that were read.
func (c *Conn) took(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol.Took(n)
	c.sendControl()
}

// Write sends all of p. It waits while the peer has no room, and asks it every second whether it is still there. The
// returned number counts bytes that the connection has taken, and sends: as with TCP, they have not arrived by then. An
// error of a later call reports their loss, of [Conn.Close] at the latest.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
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
		c.awaitRoom(func() bool { return c.protocol.Room(len(p)-n, false) > 0 })
	}
}

// tryWrite sends one piece of p, if there is room for it.
func (c *Conn) tryWrite(p []byte) (int, error) {
	room, err := c.room(len(p), false)
	if room == 0 || err != nil {
		return 0, err
	}
	if len(p) <= c.link.Inline {
		return c.send(protocol.Piece{Inline: p[:room]}, nil)
	}
	c.link.Stage(0, p[:room])
	return c.send(protocol.Piece{Staged: room, More: room < len(p)}, nil)
}

// room returns how many of n bytes may be sent in one piece now.
func (c *Conn) room(n int, lent bool) (int, error) {
	switch {
	case isDone(c.closed):
		return 0, net.ErrClosed
	case isDone(c.writeDeadline.passed()):
		return 0, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil || n == 0 {
		return 0, err
	}
	return c.protocol.Room(n, lent), nil
}

// send sends a piece, if there is room for it still. It may be of what l lends.
func (c *Conn) send(p protocol.Piece, l *lend) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	switch sent, err := c.protocol.PostData(p); {
	case err != nil:
		c.fail(err)
		return 0, err
	case !sent:
		return 0, nil
	}
	if l != nil {
		c.lent(l)
	}
	return p.Len(), nil
}

// WriteBuffers sends all bytes of v, one slice after the other, as one Write of them joined: small ones go in one
// message, for which the device is called once, and the reader wakes once. It takes what it has sent out of v, as
// net.Buffers.WriteTo does, which on a Conn makes a Write of each slice.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	left := int64(0)
	for _, b := range *v {
		left += int64(len(b))
	}
	for {
		want := int(min(left, math.MaxInt32))
		m, err := c.tryGather(*v, want)
		takeOff(v, m)
		n += int64(m)
		left -= int64(m)
		switch {
		case err != nil:
			return n, c.opError("write", err)
		case left == 0:
			return n, nil
		case m > 0:
			continue
		}
		c.awaitRoom(func() bool { return c.protocol.Room(want, false) > 0 })
	}
}

// tryGather sends one piece of the first bytes of v, if there is room for it.
func (c *Conn) tryGather(v net.Buffers, n int) (int, error) {
	room, err := c.room(n, false)
	if room == 0 || err != nil {
		return 0, err
	}
	inline := n <= c.link.Inline
	at := 0
	for _, b := range v {
		b = b[:min(len(b), room-at)]
		if inline {
			copy(c.word[at:], b)
		} else {
			c.link.Stage(at, b)
		}
		if at += len(b); at == room {
			break
		}
	}
	if inline {
		return c.send(protocol.Piece{Inline: c.word[:room]}, nil)
	}
	return c.send(protocol.Piece{Staged: room, More: room < n}, nil)
}

// takeOff takes the first n bytes out of v, and slices that are empty.
func takeOff(v *net.Buffers, n int) {
	for len(*v) > 0 && n >= len((*v)[0]) {
		n -= len((*v)[0])
		(*v)[0] = nil // for the garbage collector
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}

// awaitData returns when there may be something to read. It polls first if that was seen to pay. The caller holds
// reading.
func (c *Conn) awaitData() {
	if c.config.BusyPoll == LearnedBusyPoll {
		c.learned.begin()
		if c.learned.polls() && c.poller.poll(func() bool {
			c.mu.Lock()
			now := c.canRead()
			c.mu.Unlock()
			return now || !c.learned.polls() || isDone(c.readDeadline.passed()) || isDone(c.closed)
		}) {
			return
		}
	}
	c.await(c.readDeadline, c.readable, c.canRead)
}

// await returns when there may be something new. It waits for completions itself if nobody else does.
func (c *Conn) await(d *deadline, more <-chan struct{}, ready func() bool) {
	r := c.poller
	over := func() bool {
		c.mu.Lock()
		now := ready() || c.err != nil
		c.mu.Unlock()
		return now || isDone(d.passed()) || isDone(c.closed)
	}
	select {
	case r.turn <- struct{}{}: // mostly, and a choice takes longer
		r.lead(c, over)
		return
	default:
	}
	select {
	case r.turn <- struct{}{}:
		r.lead(c, over)
	case <-more: // as interrupt says, too
		r.turns.Add(1) // the background goroutine leaves the queue
	}
}

// awaitRoom is await of a Write, until there is room for something.
func (c *Conn) awaitRoom(hasRoom func() bool) {
	c.wantsRoom(true)
	// It needs no lock: await takes it for what it calls.
	c.await(c.writeDeadline, c.writable, func() bool { return c.writeErr() != nil || hasRoom() })
	c.wantsRoom(false)
}

// Ready tells what can be done without waiting.
func (c *Conn) Ready() Readiness {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readiness()
}

// Watch has a function called whenever Ready may have something new to tell: for programs that wait for many things at
// once, by TryRead and TryWrite. The goroutine that calls it handles the completions of other connections, too: it has
// to return soon, without calls of the connection. Watch is called once, before anything else.
func (c *Conn) Watch(changed func(Readiness)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = changed
}

// Poll handles what has arrived, for a program that calls Ready again and again; TryRead and TryWrite do so.
func (c *Conn) Poll() { c.poller.tryPoll() }

// Rest tells that a thread sleeps until Watch's function is called, and then that it does no longer. What arrives is
// handled at once meanwhile; otherwise it may take 10 ms until somebody looks who was not asked to.
func (c *Conn) Rest(asleep bool) { c.poller.rest(asleep) }

// TryRead is Read that does not wait: its error is EAGAIN while nothing has arrived.
func (c *Conn) TryRead(p []byte) (int, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.tryRead(p)
	if err == nil && n == 0 && len(p) > 0 {
		c.Poll()
		n, err = c.tryRead(p)
	}
	switch {
	case err == nil && n == 0 && len(p) > 0:
		return 0, verberr.EAGAIN
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, c.opError("read", err)
}

// Peek copies what Read would return next, and leaves it there. It does not wait: its error is EAGAIN while nothing has
// arrived.
func (c *Conn) Peek(p []byte) (int, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	if _, err := c.tryRead(nil); err != nil {
		return 0, c.opError("read", err)
	}
	c.mu.Lock()
	unread, may, err := c.protocol.Unread(), c.canRead(), c.err
	c.mu.Unlock()
	switch {
	case unread > 0:
		return c.protocol.CopyOut(p, unread), nil
	case !may:
		return 0, verberr.EAGAIN
	case err != nil:
		return 0, c.opError("read", err)
	}
	return 0, io.EOF
}

// TryWrite is Write that does not wait: it returns how many bytes there was room for, or EAGAIN if there was none.
func (c *Conn) TryWrite(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		m, err := c.tryWrite(p[n:])
		if m == 0 && err == nil && n < len(p) {
			c.Poll()
			m, err = c.tryWrite(p[n:])
		}
		n += m
		switch {
		case err != nil && n == 0:
			return 0, c.opError("write", err)
		case n == len(p) || err != nil:
			c.wantsRoom(false)
			return n, nil // an error comes again
		case m > 0:
			continue
		}
		c.wantsRoom(true) // asks whether the peer is still there
		if n > 0 {
			return n, nil
		}
		return 0, verberr.EAGAIN
	}
}

// wantsRoom has the peer asked as long as a Write waits.
func (c *Conn) wantsRoom(waits bool) {
	c.probe.wanted.Store(waits)
	if waits && !c.probe.armed.Swap(true) {
		c.probe.timer.Reset(probeAfter)
	}
}
