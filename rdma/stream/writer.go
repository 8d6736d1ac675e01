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

// writer is the write half of a connection.
type writer struct {
	mu       sync.Mutex // held while a Write uses staging; Close waits for it
	deadline *deadline
	ready    chan struct{}            // holds a token after there may be room
	word     [protocol.MaxInline]byte // scratch memory of WriteBuffers; guarded by mu
	mapped   []mapping                // mapped for the peer's WriteAt; guarded by mu
	probe    probe
}

// begin initializes the writer. The deadline calls interrupt, and a Write that has waited for room calls probePeer.
func (w *writer) begin(interrupt, probePeer func()) {
	w.deadline, w.ready = newDeadline(), make(chan struct{}, 1)
	w.deadline.expired = interrupt
	w.probe.timer = time.AfterFunc(time.Hour, probePeer)
	w.probe.timer.Stop()
}

// Write sends all of p. While the peer has no room, it waits, and probes the peer's device every second. The result
// counts bytes that the connection has accepted. As with TCP, they may not have arrived; a later call, at the latest
// [Conn.Close], reports their loss.
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

// tryWrite sends one piece of p if there is room.
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

// room returns how many of n bytes can be sent in one piece now.
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

// send sends a piece if there is still room. l is the lend of the piece's memory, or nil.
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

// WriteBuffers sends all slices of v like one Write of their concatenation: small slices share a message, so the device
// is called once and the reader wakes once. Like net.Buffers.WriteTo, it removes sent bytes from v; but WriteTo would
// call Write for each slice.
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
		removeSent(v, m)
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

// tryGather sends one piece from the start of v if there is room.
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

// removeSent removes the first n bytes and empty slices from v.
func removeSent(v *net.Buffers, n int) {
	for len(*v) > 0 && n >= len((*v)[0]) {
		n -= len((*v)[0])
		(*v)[0] = nil // lets the garbage collector free it
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}

// awaitRoom is await for a Write. It returns when there is room, or after an error.
func (c *Conn) awaitRoom(hasRoom func() bool) {
	c.wantsRoom(true)
	// await calls the function with mu held.
	c.await(c.writer.deadline, c.writer.ready, func() bool { return c.writeErr() != nil || hasRoom() })
	c.wantsRoom(false)
}

// TryWrite is Write that does not wait: it returns the number of bytes sent, or EAGAIN if there was no room.
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
			return n, nil // the next call returns the error
		case m > 0:
			continue
		}
		c.wantsRoom(true) // starts probing
		if n > 0 {
			return n, nil
		}
		return 0, syscall.EAGAIN
	}
}

// wantsRoom starts or stops probing the peer while a Write waits.
func (c *Conn) wantsRoom(waits bool) {
	c.writer.probe.wanted.Store(waits)
	if waits && !c.writer.probe.armed.Swap(true) {
		c.writer.probe.timer.Reset(probeAfter)
	}
}

// probeAfter is how long a Write waits for room before it probes the peer. If a peer dies after it has acknowledged
// everything, only a probe detects that.
const probeAfter = time.Second

// probe probes a peer that has no room. All waiting Writes share one timer.
type probe struct {
	wanted atomic.Bool // a Write waits for room
	armed  atomic.Bool
	timer  *time.Timer
	last   uint64 // number of messages when the timer last fired; guarded by Conn.mu
}

// probePeer sends a probe if a Write has waited since the timer last fired.
func (c *Conn) probePeer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.gone || isDone(c.closed) {
		return
	}
	if !c.writer.probe.wanted.Load() {
		c.writer.probe.armed.Store(false)
		if !c.writer.probe.wanted.Load() || c.writer.probe.armed.Swap(true) { // or a Write arms it
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

// stopProbing stops the timer and waits for a running probePeer. The connection is closed.
func (c *Conn) stopProbing() {
	c.writer.probe.timer.Stop()
	c.mu.Lock() // waits for a running probePeer
	defer c.mu.Unlock()
}
