// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

const completionsAtOnce = 32

// drainTimeout limits the wait for posted requests to complete after the peer has disconnected.
const drainTimeout = 10 * time.Second

// pump handles completions until the connection or ctx ends.
func (c *Conn) pump(ctx context.Context) {
	defer close(c.pumped)
	wcs := make([]ibv.WC, completionsAtOnce)
	for {
		n, err := c.cq.Wait(ctx, wcs)
		if err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
		}
		if err != nil || !c.handle(wcs[:n]) {
			return
		}
	}
}

// handle handles completions, reposts their receives and wakes goroutines. It reports whether to continue.
func (c *Conn) handle(wcs []ibv.WC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		var err error
		switch {
		case wc.Status != ibv.WC_SUCCESS:
			err = c.explain(wc)
		case wc.WRID&recvBit != 0:
			err = c.received(wc)
		default:
			c.sent(wc.WRID)
		}
		if err != nil {
			c.fail(err)
			return false
		}
	}
	if !c.gone {
		if err := c.postRecvs(); err != nil {
			c.fail(err)
			return false
		}
	}
	c.notify()
	signal(c.readable)
	signal(c.writable)
	signal(c.moved)
	return c.err == nil
}

// explain returns the reason for a failed completion, or nil after the peer has disconnected.
func (c *Conn) explain(wc *ibv.WC) error {
	err := rdma.CompletionErr(wc)
	switch wc.Status {
	case ibv.WC_WR_FLUSH_ERR:
		if c.gone || isClosed(c.closed) {
			return nil
		}
		return fmt.Errorf("%w: the queue pair has failed: %w", syscall.ECONNRESET, err)
	case ibv.WC_RETRY_EXC_ERR:
		return fmt.Errorf("%w: the peer does not answer: %w", syscall.ETIMEDOUT, err)
	}
	return fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
}

// watch waits for the peer to disconnect.
func (c *Conn) watch() {
	for {
		e, err := c.id.Event(c.ctx)
		switch {
		case c.ctx.Err() != nil:
			return
		case err != nil:
			c.end(err)
			return
		case e.Type == rdmacm.CM_EVENT_DISCONNECTED:
			c.peerLeft()
			return
		case e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL:
			c.end(fmt.Errorf("%w: the device was removed", syscall.ENODEV))
			return
		}
	}
}

// end ends the connection. The caller does not hold mu.
func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(err)
}

// peerLeft handles all messages that arrived before the peer disconnected, and then ends the connection.
func (c *Conn) peerLeft() {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	signal(c.writable)
	signal(c.moved)
	_ = librdmacm.Disconnect(c.id.C()) // the peer waits for this answer
	ctx, cancel := context.WithTimeout(c.ctx, drainTimeout)
	defer cancel()
	err := c.qp.Drain(ctx)
	c.stopPump()
	<-c.pumped
	wcs := make([]ibv.WC, completionsAtOnce)
	for err == nil {
		var n int
		if n, err = c.cq.Poll(wcs); n == 0 || err == nil && !c.handle(wcs[:n]) {
			break
		}
	}
	if err != nil && c.ctx.Err() == nil {
		c.end(fmt.Errorf("%w: receiving data that the peer sent before it disconnected: %w", syscall.ECONNRESET, err))
		return
	}
	c.end(io.EOF)
}

// ending returns the error of a Read or Write after the end of the connection.
func (c *Conn) ending(op string, err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return c.opError(op, err)
}
