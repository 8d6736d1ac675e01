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

// start starts the connection after the peer is known.
func (c *Conn) start() {
	c.local, c.remote = c.id.netAddrs()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.Lock()
	c.started = true
	c.sendControl() // what the peer has to know before the first data
	c.mu.Unlock()
	c.id.inbox.forward(c.event)
	c.startBeat()
}

// event takes an event of the ID. Nobody waits for it: it comes when the peer disconnects.
func (c *Conn) event(e Event, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.fail(err)
	case c.gone:
	case e.Type == rdmacm.CM_EVENT_DISCONNECTED, e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL:
		c.gone = true
		c.changed()
		c.interrupt()
		if e.Type == rdmacm.CM_EVENT_DISCONNECTED && c.heardAll() {
			return
		}
		c.workers.Go(func() { c.peerLeft(e) })
	}
}

// heardAll reports whether the peer has said its last word, and the device reads nothing that the program has lent:
// then nothing is waited for. The caller holds mu.
func (c *Conn) heardAll() bool {
	const last = protocol.Fin | protocol.Done
	return c.protocol.AnswersEnd() && c.peerFin&last == last && len(c.lends) == 0
}

// flushAfter is how long receives of a queue pair in ERR may take to complete before a drain helps.
const flushAfter = 100 * time.Millisecond

// peerLeft waits until everything that has arrived is handled. Nothing is sent any more.
func (c *Conn) peerLeft(e Event) {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Type == rdmacm.CM_EVENT_DEVICE_REMOVAL {
		c.fail(&EventError{Verb: "rdma_get_cm_event", Object: c.id.name(), Event: e})
	} else if c.peerFin&protocol.Fin == 0 {
		c.fail(verberr.ECONNRESET)
	}
	c.changed()
	c.interrupt()
}

// flush has all receives complete, and waits for that.
func (c *Conn) flush() {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Linger)
	defer cancel()
	_ = c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE)
	soon, stop := context.WithTimeout(ctx, flushAfter)
	defer stop()
	if c.awaitReturn(soon) || ctx.Err() != nil {
		return
	}
	if c.link.QP.Drain(ctx) == nil {
		c.reactor.nudge()
		c.awaitReturn(ctx)
	}
}

// awaitReturn waits until all receives have completed.
func (c *Conn) awaitReturn(ctx context.Context) bool {
	for {
		c.mu.Lock()
		out := c.link.RecvsOut
		c.mu.Unlock()
		if out == 0 {
			return true
		}
		select {
		case <-c.returned:
		case <-c.dead:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// startBeat sends a heartbeat whenever nothing else was sent for a while.
func (c *Conn) startBeat() {
	every := c.config.Heartbeat
	if every == 0 {
		return
	}
	last := uint64(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat = time.AfterFunc(every, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err != nil || c.gone || c.released {
			return
		}
		if c.link.Messages == last {
			c.sendProbe()
		}
		last = c.link.Messages
		c.beat.Reset(every)
	})
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
