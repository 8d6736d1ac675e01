// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// watch waits for the peer to disconnect.
func (c *Conn) watch(ctx context.Context) {
	for {
		e, err := c.id.Event(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.mu.Lock()
				c.fail(err)
				c.mu.Unlock()
			}
			return
		}
		switch e.Type {
		case rdmacm.CM_EVENT_DISCONNECTED, rdmacm.CM_EVENT_DEVICE_REMOVAL:
			c.peerLeft(ctx, e)
			return
		}
	}
}

// peerLeft stops sending, waits until everything that has arrived has completed, and handles it.
func (c *Conn) peerLeft(ctx context.Context, e Event) {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	c.interrupt()
	signal(c.writable)
	signal(c.moved)
	ctx, cancel := context.WithTimeout(ctx, c.config.Linger)
	defer cancel()
	c.link.QP.Drain(ctx)
	select {
	case c.turn <- struct{}{}:
		defer c.endTurn()
		for n, err := c.link.CQ.Poll(c.wcs); n > 0 && err == nil; n, err = c.link.CQ.Poll(c.wcs) {
			c.handle(c.wcs[:n])
		}
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
		c.fail(&EventError{Verb: "rdma_get_cm_event", Object: c.id.name(), Event: e})
	} else if c.peerFin&protocol.Fin == 0 {
		c.fail(verberr.ECONNRESET)
	}
	signal(c.readable)
}

// beat sends a heartbeat when nothing else is sent.
func (c *Conn) beat(ctx context.Context) {
	ticker := time.NewTicker(c.config.Heartbeat)
	defer ticker.Stop()
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dead:
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		if c.link.Messages == last && c.err == nil && !c.gone {
			c.sendProbe()
		}
		last = c.link.Messages
		c.mu.Unlock()
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

// awaitRoom is await of a Write, until there is room for something.
func (c *Conn) awaitRoom(w *waiting, hasRoom func() bool) {
	c.probe.wanted.Store(true)
	if !c.probe.armed.Swap(true) {
		c.probe.timer.Reset(probeAfter)
	}
	// It needs no lock: await takes it for what it calls.
	c.await(w, c.writeDeadline, c.writable, func() bool { return c.writeErr() != nil || hasRoom() })
	c.probe.wanted.Store(false)
}

// ask sends a message that has to be acknowledged, when a Write has waited since the timer fired before.
func (c *Conn) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.gone || isDone(c.closed) {
		return
	}
	if !c.probe.wanted.Load() {
		c.probe.armed.Store(false)
		if !c.probe.wanted.Load() || c.probe.armed.Swap(true) { // the next Write arms it, or has armed it
			return
		}
	} else if c.link.Messages == c.probe.last {
		if c.sendProbe(); c.err != nil {
			return
		}
	}
	c.probe.last = c.link.Messages
	c.probe.timer.Reset(probeAfter)
}

// stopAsking returns when ask does nothing any more. The connection is closed.
func (c *Conn) stopAsking() {
	c.probe.timer.Stop()
	c.mu.Lock() // of one that runs
	defer c.mu.Unlock()
}

// completionFailed ends the connection because a completion failed. The caller holds mu.
func (c *Conn) completionFailed(wc *ibv.WC) {
	if known := c.err != nil || c.gone || isDone(c.closed); known && wc.Status == ibv.WC_WR_FLUSH_ERR {
		return // every receive of a stream that ends is flushed, and the stream tells the reason itself
	}
	err := rdma.CompletionErr(wc)
	switch wc.Status {
	case ibv.WC_WR_FLUSH_ERR:
		err = fmt.Errorf("%w: the queue pair has failed: %w", verberr.ECONNRESET, err)
	case ibv.WC_RETRY_EXC_ERR:
		err = fmt.Errorf("%w: the peer does not answer: %w", verberr.ETIMEDOUT, err)
	case ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_REM_OP_ERR, ibv.WC_REM_ACCESS_ERR, ibv.WC_REM_INV_REQ_ERR:
		err = fmt.Errorf("%w: %w", verberr.ECONNRESET, err)
	}
	c.fail(err)
}
