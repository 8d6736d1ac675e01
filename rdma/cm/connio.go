// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"io"
	"net"
	"os"

	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Read waits until data has arrived, and reads it.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
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
		c.await(c.readDeadline, c.readable, c.canRead)
	}
}

// canRead reports whether Read can return. The caller holds mu.
func (c *Conn) canRead() bool {
	return c.protocol.Unread() > 0 || c.peerFin&protocol.Fin != 0 || c.err != nil
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
	unread := c.protocol.Unread()
	end, err := c.peerFin&protocol.Fin != 0, c.err
	c.mu.Unlock()
	if unread == 0 {
		switch {
		case end:
			return 0, io.EOF
		case err != nil:
			return 0, err
		}
		return 0, nil
	}
	n := c.protocol.CopyOut(p, unread) // these bytes belong to the reader
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol.Took(n)
	c.sendControl()
	return n, nil
}

// Write sends all of p. It waits while the peer has no room, and asks it every second whether it is still there.
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
		c.awaitRoom(func() bool { return c.protocol.Room(len(p)-n) > 0 })
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
	room, err := c.protocol.Room(len(p)), c.writeErr()
	c.mu.Unlock()
	if err != nil || room == 0 || len(p) == 0 {
		return 0, err
	}
	piece := p[:room]
	inline := len(p) <= c.link.Inline
	if !inline {
		c.link.Stage(piece)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	switch sent, err := c.protocol.PostData(piece, inline); {
	case err != nil:
		c.fail(err)
		return 0, err
	case !sent:
		return 0, nil
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
	case c.finWanted&protocol.Fin != 0, c.peerFin&protocol.Done != 0, c.gone:
		return verberr.EPIPE
	}
	return nil
}
