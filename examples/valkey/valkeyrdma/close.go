// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/goverbs/goverbs/generated/librdmacm"
)

// Close closes the connection. It waits until all written data is in the peer's memory, for at most [Config.Linger].
// The error reports data that the peer's device has not acknowledged. If the peer has disconnected, only its replies
// prove which data it received. valkey-server discards commands that it has not processed when the client disconnects.
func (c *Conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.closed)
		lost := c.linger()
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

// linger waits until all sends have completed.
func (c *Conn) linger() error {
	late := time.NewTimer(c.config.Linger)
	defer late.Stop()
	for asked := false; ; {
		c.mu.Lock()
		over := c.err != nil || c.gone || c.completed == c.posted
		if !over && !asked && c.canSendCommand() { // its completion also confirms earlier unsignaled sends
			asked = true
			if err := c.sendCommand(command{opcode: keepalive}, true); err != nil {
				c.fail(err)
			}
		}
		lost, err := c.accepted-c.delivered, c.err
		if lost == 0 || c.gone {
			err = nil
		} else if over {
			err = fmt.Errorf("%d bytes were not acknowledged: %w", lost, err)
		} else {
			err = fmt.Errorf("%d bytes were not acknowledged: %w", lost, os.ErrDeadlineExceeded)
		}
		c.mu.Unlock()
		if over {
			return err
		}
		select {
		case <-c.moved:
		case <-c.dead:
		case <-late.C:
			return err
		}
	}
}

// release disconnects and releases all resources, even if the connection has not started.
func (c *Conn) release() error {
	c.readDeadline.set(time.Time{})
	c.writeDeadline.set(time.Time{})
	c.cancel()
	c.workers.Wait()
	c.reading.Lock() // wait for goroutines that copy from or to the memory
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(net.ErrClosed)
	if c.beat != nil {
		c.beat.Stop()
	}
	if c.qp != nil {
		_ = librdmacm.Disconnect(c.id.C()) // does not wait for the peer; fails if the connection has ended
	}
	return errors.Join(c.link.close(), c.id.Close())
}
