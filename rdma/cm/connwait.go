// SPDX-License-Identifier: BSD-2-Clause

package cm

// await returns when there may be something new. It waits for completions itself if nobody else does.
func (c *Conn) await(d *deadline, more <-chan struct{}, ready func() bool) {
	r := c.reactor
	select {
	case r.turn <- struct{}{}:
		r.lead(c, func() bool {
			c.mu.Lock()
			now := ready() || c.err != nil
			c.mu.Unlock()
			return now || isDone(d.passed()) || isDone(c.closed)
		})
	case <-more:
		r.turns.Add(1) // the pump lets go
	case <-d.passed():
	case <-c.closed:
	case <-c.dead:
	}
}
