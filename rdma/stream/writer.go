// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// writer is the half of a connection that writes.
type writer struct {
	mu       sync.Mutex // while a Write uses staging: Close waits for it
	deadline *deadline
	ready    chan struct{}            // holds a token after there may be room
	word     [protocol.MaxInline]byte // of WriteBuffers; guarded by mu
	mapped   []mapping                // for the other end's WriteAt; guarded by mu
	probe    probe
}

// begin makes the writer ready. interrupt is called when the deadline comes, and ask after a Write has waited for room.
func (w *writer) begin(interrupt, ask func()) {
	w.deadline, w.ready = newDeadline(), make(chan struct{}, 1)
	w.deadline.came = interrupt
	w.probe.timer = time.AfterFunc(time.Hour, ask)
	w.probe.timer.Stop()
}

// Write sends all of p. It waits while the peer has no room, and asks it every second whether it is still there. The
// returned number counts bytes that the connection has taken, and sends: as with TCP, they have not arrived by then. An
// error of a later call reports their loss, of [Conn.Close] at the latest.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
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
	case isDone(c.writer.deadline.passed()):
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
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
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
			copy(c.writer.word[at:], b)
		} else {
			c.link.Stage(at, b)
		}
		if at += len(b); at == room {
			break
		}
	}
	if inline {
		return c.send(protocol.Piece{Inline: c.writer.word[:room]}, nil)
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

// awaitRoom is await of a Write, until there is room for something.
func (c *Conn) awaitRoom(hasRoom func() bool) {
	c.wantsRoom(true)
	// It needs no lock: await takes it for what it calls.
	c.await(c.writer.deadline, c.writer.ready, func() bool { return c.writeErr() != nil || hasRoom() })
	c.wantsRoom(false)
}

// TryWrite is Write that does not wait: it returns how many bytes there was room for, or EAGAIN if there was none.
func (c *Conn) TryWrite(p []byte) (n int, err error) {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
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
		return 0, syscall.EAGAIN
	}
}

// wantsRoom has the peer asked as long as a Write waits.
func (c *Conn) wantsRoom(waits bool) {
	c.writer.probe.wanted.Store(waits)
	if waits && !c.writer.probe.armed.Swap(true) {
		c.writer.probe.timer.Reset(probeAfter)
	}
}

// probeAfter is how long a Write waits for room before it asks whether the peer is still there: all that was sent may
// have been acknowledged before the peer vanished, and then nothing else would tell.
const probeAfter = time.Second

// probe asks a peer that gives no room. One timer runs for all Writes that wait within its time.
type probe struct {
	wanted atomic.Bool // a Write waits for room
	armed  atomic.Bool
	timer  *time.Timer
	last   uint64 // messages when the timer fired before; guarded by Conn.mu
}

// ask sends a message that has to be acknowledged, when a Write has waited since the timer fired before.
func (c *Conn) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.gone || isDone(c.closed) {
		return
	}
	if !c.writer.probe.wanted.Load() {
		c.writer.probe.armed.Store(false)
		if !c.writer.probe.wanted.Load() || c.writer.probe.armed.Swap(true) { // the next Write arms it, or has armed it
			return
		}
	} else if c.link.Messages == c.writer.probe.last {
		if c.sendProbe(); c.err != nil {
			return
		}
	}
	c.writer.probe.last = c.link.Messages
	c.writer.probe.timer.Reset(probeAfter)
}

// stopAsking returns when ask does nothing any more. The connection is closed.
func (c *Conn) stopAsking() {
	c.writer.probe.timer.Stop()
	c.mu.Lock() // of one that runs
	defer c.mu.Unlock()
}
