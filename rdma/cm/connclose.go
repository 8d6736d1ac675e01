package cm

import (
	"errors"
	"net"
	"time"
)

// CloseWrite says that no more will be written: the peer reads what was, and then io.EOF. Reading goes on.
func (c *Conn) CloseWrite() error {
	if isDone(c.closed) {
		return c.opError("close", net.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.opError("close", c.err)
	}
	c.want(fin)
	return nil
}

// want has the peer told something, as soon as there is room. The caller holds mu.
func (c *Conn) want(flags controlFlags) {
	c.finWanted |= flags
	c.sendControl()
	signal(c.writable) // who writes can't any more
	c.interrupt()
}

// Close ends the connection. It waits until all that was written is in the peer's memory and the peer knows that no more comes, for
// [Config].Linger at most, and then gives everything back. What the peer sends meanwhile is dropped; its next Write fails.
func (c *Conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.closed)
		c.interrupt()
		c.goodbye()
		c.ended = c.release()
	})
	switch {
	case !first:
		return c.opError("close", net.ErrClosed)
	case c.ended != nil:
		return c.opError("close", c.ended)
	}
	return nil
}

// goodbye tells the peer, and waits for its word.
func (c *Conn) goodbye() {
	c.mu.Lock()
	if c.cancel != nil && c.err == nil && !c.gone {
		c.want(fin | done)
	}
	c.mu.Unlock()
	late := newDeadline()
	late.came = c.interrupt
	late.set(time.Now().Add(c.config.Linger))
	defer late.stop()
	for {
		w := c.waits.Load()
		c.mu.Lock()
		over := c.parted()
		c.mu.Unlock()
		if over || isDone(late.passed()) {
			return
		}
		c.awaitEnd(w, late)
	}
}

// parted says whether there is nothing more to say. The caller holds mu.
func (c *Conn) parted() bool {
	return c.cancel == nil || c.err != nil || c.gone || c.finSent == fin|done && c.completed >= c.finSeq && c.peerFin&fin != 0
}

// awaitEnd is await of Close, which c.closed does not end.
func (c *Conn) awaitEnd(w *waiting, late *deadline) {
	select {
	case c.turn <- struct{}{}:
		c.turns.Add(1)
		c.mu.Lock()
		now := c.parted()
		c.mu.Unlock()
		if !now {
			c.takeTurn(w.ctx)
		}
		c.endTurn()
	case <-c.moved:
		c.turns.Add(1)
	case <-c.dead:
	case <-late.passed():
	}
}

// release disconnects and gives everything back.
func (c *Conn) release() error {
	c.readDeadline.stop()
	c.writeDeadline.stop()
	if c.cancel != nil {
		c.id.call("rdma_disconnect", c.id.disconnect) // fails where the connection is gone already
		c.cancel()
		c.interrupt()
		c.workers.Wait()
	}
	c.reading.Lock() // who still copies from or into the memory that goes away
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	return errors.Join(c.stream.close(c.id), c.id.Close())
}
