// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestFailedQueuePair: flushed requests make a connection fail, unless it is closing.
func TestFailedQueuePair(t *testing.T) {
	flushed := &ibv.WC{Status: ibv.WC_WR_FLUSH_ERR}
	for name, ending := range map[string]func(*Conn){
		"the peer has left": func(c *Conn) { c.gone = true },
		"Close was called":  func(c *Conn) { close(c.closed) },
	} {
		c := newConn(nil, Config{})
		ending(c)
		c.completionFailed(flushed)
		assert.NoError(t, c.err, name)
	}
	c := newConn(nil, Config{})
	c.completionFailed(flushed)
	assert.ErrorIs(t, c.err, syscall.ECONNRESET)
	assert.True(t, isDone(c.dead))
}

// TestReadableUntilLastByte: after the peer has disconnected, the connection stays readable until all of the peer's
// messages are handled, up to the last one or an error.
func TestReadableUntilLastByte(t *testing.T) {
	for _, end := range []func(*Conn){
		func(c *Conn) { c.peerFin = protocol.Fin },
		func(c *Conn) { c.fail(syscall.ECONNRESET) },
	} {
		c := newConn(nil, Config{})
		c.gone = true
		assert.False(t, c.Ready().Over)
		end(c)
		assert.True(t, c.Ready().Over)
	}
}

// TestNoAnswerTimesOut: a missing answer is a timeout, as in package net.
func TestNoAnswerTimesOut(t *testing.T) { assert.ErrorIs(t, noAnswer{}, syscall.ETIMEDOUT) }
