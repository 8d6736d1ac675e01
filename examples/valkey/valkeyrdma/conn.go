// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// Conn is a net.Conn. The protocol does not support half-close. All bytes arrive in order, or the connection fails. Any
// number of goroutines may use it; concurrent Writes do not interleave. Write copies the data and returns when all of
// it has been posted.
//
// A connection has two goroutines, for completions and for events of the connection manager, until it is closed.
type Conn struct {
	id            *cm.ID
	config        Config
	server        bool
	local, remote net.Addr
	link

	readDeadline, writeDeadline *deadline
	reading, writing            sync.Mutex    // held by Read and by Write
	readable, writable          chan struct{} // hold a token if Read or Write must check again
	moved                       chan struct{} // the same for Close
	dead                        chan struct{} // closed when the connection fails or ends
	closed                      chan struct{} // closed by Close

	ctx      context.Context // of the goroutines
	cancel   context.CancelFunc
	stopPump context.CancelFunc
	pumped   chan struct{} // closed when pump has returned
	workers  sync.WaitGroup
	once     sync.Once
	ended    error

	mu   sync.Mutex // guards the fields below
	err  error      // cause of the end of the connection
	gone bool       // the peer has disconnected, so nothing can be sent
	beat *time.Timer
	receiver
	sender
}

var _ net.Conn = (*Conn)(nil)

func newConn(id *cm.ID, config Config, server bool) *Conn {
	c := &Conn{
		id: id, config: config, server: server, readDeadline: newDeadline(), writeDeadline: newDeadline(),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		dead: make(chan struct{}), closed: make(chan struct{}), pumped: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// start starts the goroutines of an established connection and grants the peer memory.
func (c *Conn) start() {
	c.local, c.remote = stream.Addr{AddrPort: c.id.LocalAddr()}, stream.Addr{AddrPort: c.id.PeerAddr()}
	var pumping context.Context
	pumping, c.stopPump = context.WithCancel(c.ctx)
	c.workers.Go(func() { c.pump(pumping) })
	c.workers.Go(c.watch)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify()
	if every := c.config.KeepAlive; every > 0 {
		last := c.posted
		c.beat = time.AfterFunc(every, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.err != nil || c.gone || isClosed(c.closed) {
				return
			}
			if c.posted == last {
				c.trySendCommand(c.canSendCommand(), command{opcode: keepalive})
			}
			last = c.posted
			c.beat.Reset(every)
		})
	}
}

// LocalAddr returns a [stream.Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns a [stream.Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the time at which Reads end, including those in progress. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.readDeadline, t) }

// SetWriteDeadline sets the time at which Writes end. Bytes that they have written by then are sent.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.writeDeadline, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if isClosed(c.closed) {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

// opError returns an error like those of package net.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// Read reads data that has arrived, or waits for data. It returns io.EOF when the peer has disconnected and all of its
// data has been read. If the peer is killed, its kernel disconnects.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		c.mu.Lock()
		unread, err := c.unread(), c.err
		c.mu.Unlock()
		switch {
		case isClosed(c.closed):
			return 0, c.opError("read", net.ErrClosed)
		case isClosed(c.readDeadline.passed()):
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case unread > 0:
			n := c.copyOut(p, unread) // only Read uses this part of the ring
			c.mu.Lock()
			c.read += uint64(n)
			c.notify()
			c.mu.Unlock()
			return n, nil
		case err != nil:
			return 0, c.ending("read", err)
		}
		select {
		case <-c.readable:
		case <-c.readDeadline.passed():
		case <-c.closed:
		case <-c.dead:
		}
	}
}

// Write writes p. It waits while the peer grants no memory.
func (c *Conn) Write(p []byte) (written int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		c.mu.Lock()
		err := c.writeErr()
		for err == nil && written < len(p) {
			n := c.room(len(p) - written)
			if n == 0 {
				break
			}
			if err = c.postData(p[written : written+n]); err != nil {
				c.fail(err)
				break
			}
			written += n
		}
		c.mu.Unlock()
		if err != nil {
			return written, c.opError("write", err)
		}
		if written == len(p) {
			return written, nil
		}
		select {
		case <-c.writable:
		case <-c.writeDeadline.passed():
		case <-c.closed:
		case <-c.dead:
		}
	}
}

// writeErr returns an error if the connection can no longer be written to. The caller holds mu.
func (c *Conn) writeErr() error {
	switch {
	case isClosed(c.closed):
		return net.ErrClosed
	case isClosed(c.writeDeadline.passed()):
		return os.ErrDeadlineExceeded
	case c.gone:
		return syscall.EPIPE
	}
	return c.err
}

// fail ends the connection. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.dead)
	}
}
