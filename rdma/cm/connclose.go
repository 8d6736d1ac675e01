// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// CloseWrite ends writing: the peer reads all written data and then io.EOF. Reading goes on. CloseWrite does not wait
// for that; Close does, and reports what did not arrive.
func (c *Conn) CloseWrite() error {
	if isDone(c.closed) {
		return c.opError("close", net.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.opError("close", c.err)
	}
	c.want(protocol.Fin)
	if c.peerFin&protocol.Done != 0 {
		if err := c.undelivered(); err != nil {
			return c.opError("close", err)
		}
	}
	return nil
}

// want tells the peer flags as soon as there is room. The caller holds mu.
func (c *Conn) want(flags protocol.Flags) {
	c.finWanted |= flags
	c.sendControl()
	c.changed()
	c.interrupt()
}

// Close ends the connection. It waits until all written data is in the peer's memory and the peer knows that no more
// comes, for [Config].Linger at most, and then releases everything. If that was not acknowledged, or the peer has
// closed and not read all of it, the error has an [UndeliveredError], and the data may be lost: nothing sends it again.
// Close of a TCP connection returns nil at once in the same place. Without an error the data has arrived; only an
// answer of the peer's program shows that it has read it. Data that the peer sends during Close is dropped, and its
// next Write fails.
func (c *Conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.closed)
		c.interrupt()
		lost := c.goodbye()
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

// abandon is Close of a connection that nobody has got, without a word to the peer.
func (c *Conn) abandon() (err error) {
	c.once.Do(func() {
		close(c.closed)
		c.interrupt()
		err = c.release()
	})
	return err
}

// lastAck is how long Close waits for a peer that has said its last word to leave. Until then the peer may wait for
// the acknowledgement of that word, which Soft-RoCE sends after it has brought it, and a queue pair that is gone sends
// none: C's rsockets would wait without end.
const lastAck = 500 * time.Millisecond

// goodbye tells the peer, and waits for its answer. It returns an error about data that did not arrive.
func (c *Conn) goodbye() error {
	c.mu.Lock()
	if c.cancel != nil && c.err == nil && !c.gone {
		c.want(c.lastWord())
	}
	c.mu.Unlock()
	late := newDeadline()
	late.came = c.interrupt
	late.set(time.Now().Add(c.config.Linger))
	defer late.stop()
	for leaving := false; ; {
		c.mu.Lock()
		over, left := c.parted(), c.peerFin&protocol.Done != 0 && !c.protocol.AnswersEnd()
		gone := c.gone
		c.mu.Unlock()
		if over || isDone(late.passed()) {
			if gone {
				c.workers.Wait() // the peer's last messages have to be handled: they acknowledge
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.undelivered()
		}
		if left && !leaving {
			leaving = true
			late.set(time.Now().Add(min(lastAck, c.config.Linger)))
		}
		c.awaitEnd(late, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.parted() || isDone(late.passed())
		})
	}
}

// undelivered returns an error about what the peer has not acknowledged: data, or the end of data, without which its
// program sees a failed connection. The caller holds mu.
func (c *Conn) undelivered() error {
	said := c.peerFin
	lost := c.protocol.Undelivered(said)
	ended := c.link.Written == 0 || said&protocol.Done != 0 ||
		c.finSent&protocol.Fin != 0 && c.link.Acked >= c.endSeq
	err := c.err
	switch {
	case c.cancel == nil || lost == 0 && ended:
		return nil
	case err != nil:
	case said&protocol.Done != 0:
		err = fmt.Errorf("%w: the peer closed without reading them", verberr.EPIPE)
	case c.gone:
		err = verberr.ECONNRESET
	default:
		err = fmt.Errorf("%w: Linger of %v is over", verberr.ETIMEDOUT, c.config.Linger)
	}
	return &UndeliveredError{Bytes: lost, Err: err}
}

// lastWord is what Close tells the peer: one that has closed need not know that nobody reads. The caller holds mu.
func (c *Conn) lastWord() protocol.Flags {
	if c.protocol.AnswersEnd() && c.peerFin&protocol.Done != 0 {
		return protocol.Fin
	}
	return protocol.Fin | protocol.Done
}

// parted reports whether nothing is left to send. The caller holds mu.
func (c *Conn) parted() bool {
	if c.cancel == nil || c.err != nil || c.gone {
		return true
	}
	word := c.lastWord()
	told := c.finSent&word == word && c.link.Completed >= c.finSeq
	if !c.protocol.AnswersEnd() {
		return told // or the peer goes, which it does when its own last word is acknowledged
	}
	return told && c.peerFin&protocol.Fin != 0 && !c.link.Offered()
}

// awaitEnd is await for Close, which c.closed does not end, until something has happened that over may know.
func (c *Conn) awaitEnd(late *deadline, over func() bool) {
	r := c.reactor
	select {
	case r.turn <- struct{}{}:
		r.lead(c, over)
	case <-c.moved:
		r.turns.Add(1)
	case <-c.dead:
	case <-late.passed():
	}
}

// release disconnects and releases everything.
func (c *Conn) release() error {
	c.readDeadline.stop()
	c.writeDeadline.stop()
	c.stopAsking()
	if c.cancel != nil {
		c.id.inbox.forward(nil)
		c.cancel()
		c.workers.Wait()
	}
	c.reading.Lock() // waits for goroutines that still copy from or into the memory
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if c.released = true; c.beat != nil {
		c.beat.Stop()
	}
	c.mu.Unlock()
	if c.cancel != nil {
		c.disconnect()
	}
	err := c.link.Close()
	c.endLends()
	for _, m := range c.mapped {
		if m.mr != nil {
			err = errors.Join(err, m.mr.Close())
		}
	}
	return errors.Join(err, c.unshareStream(), c.id.closeServed())
}

// disconnect tells the peer that the connection is over, after the device has been told. In RESET it forgets the
// receives, where after rdma_disconnect alone, and a drain, each of them would have a completion.
func (c *Conn) disconnect() {
	reset := &ibv.QPAttr{QPState: ibv.QPS_RESET}
	if c.id.service() != rdmacm.ServiceIWARP && c.link.QP.Modify(reset, ibv.QP_STATE) == nil {
		c.id.setQP(0) // or C would move it to ERR
	}
	c.id.call("rdma_disconnect", c.id.disconnect) // fails if the connection is gone already
}
