// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"time"
)

// waiting is the outcome of a wait for completions.
type waiting struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// interrupt ends the wait of the goroutine that has the turn, because something else has happened.
func (c *Conn) interrupt() {
	w := new(waiting)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if old := c.waits.Swap(w); old != nil {
		old.cancel()
	}
}

// await returns when there may be something new. It waits for completions itself if it gets the turn.
func (c *Conn) await(w *waiting, d *deadline, more <-chan struct{}, ready func() bool) {
	turn := c.turn
	c.mu.Lock()
	if c.gone {
		turn = nil // watch takes it
	}
	c.mu.Unlock()
	select {
	case turn <- struct{}{}:
		c.turns.Add(1)
		c.mu.Lock()
		now := ready() || c.gone
		c.mu.Unlock()
		if !now {
			c.takeTurn(w.ctx)
		}
		c.endTurn()
	case <-more:
		c.turns.Add(1) // the pump lets go
	case <-d.passed():
	case <-c.closed:
	case <-c.dead:
	}
}

// takeTurn waits for completions and handles them. The caller has the turn.
func (c *Conn) takeTurn(ctx context.Context) {
	n, err := c.link.CQ.Wait(ctx, c.wcs)
	if n > 0 {
		c.handle(c.wcs[:n])
	} else if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		c.fail(err)
		c.mu.Unlock()
	}
}

func (c *Conn) endTurn() {
	<-c.turn
	signal(c.released)
}

// pumpAfter is the time without handled completions after which the pump handles them. It checks as often, which wakes
// a thread.
const pumpAfter = 10 * time.Millisecond

// pump handles completions while nobody reads or writes.
func (c *Conn) pump(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.released:
		case <-ctx.Done():
			return
		}
		for before := c.turns.Load() - 1; before != c.turns.Load(); {
			before = c.turns.Load()
			timer.Reset(pumpAfter)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		for alone := true; alone; {
			select {
			case c.turn <- struct{}{}:
			default: // the goroutine that has it will give it back
				alone = false
				continue
			}
			own := c.turns.Add(1)
			w := c.waits.Load() // before looking
			c.mu.Lock()
			over := c.gone || c.err != nil || ctx.Err() != nil
			c.mu.Unlock()
			if !over {
				c.takeTurn(w.ctx)
			}
			c.endTurn()
			if over {
				return
			}
			alone = c.turns.Load() == own
		}
	}
}
