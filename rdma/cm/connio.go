// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"io"
	"net"
	"os"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Read waits until data has arrived, and reads it.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		w := c.waits.Load() // before looking: later events end the wait
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

// canRead reports whether Read can return. The caller holds mu.
func (c *Conn) canRead() bool { return c.arrived != c.read || c.peerFin&fin != 0 || c.err != nil }

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
	n := c.copyOut(p, from, to) // the bytes between the two belong to the reader
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += uint64(n)
	c.sendControl()
	return n, nil
}

// Write sends all of p. It waits while the peer has no room, and asks it every second whether it is still there.
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
		c.awaitRoom(w, len(p)-n)
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
		copy(c.staging[at%uint64(len(c.staging)):], piece) // this part of the memory belongs to the writer
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

// writeErr says why writing is impossible, or returns nil. The caller holds mu.
func (c *Conn) writeErr() error {
	switch {
	case isDone(c.closed): // which says so by itself, too
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.finWanted&fin != 0, c.peerFin&done != 0, c.gone:
		return verberr.EPIPE
	}
	return nil
}
