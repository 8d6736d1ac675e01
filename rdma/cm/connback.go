// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// lateBack is how long after its deadline a write waits for the device to be done with what was lent, which takes as
// long as the peer's device needs for an acknowledgement, before it ends the connection for that.
const lateBack = time.Second

// lent notes that the last message has memory of l. The caller holds mu.
func (c *Conn) lent(l *lend) {
	if !slices.Contains(c.lends, l) {
		c.lends = append(c.lends, l)
	}
	l.upTo = c.link.Messages
}

// tellLenders wakes those that wait for memory that the device reads no more. The caller holds mu.
func (c *Conn) tellLenders() {
	for _, l := range c.lends {
		if l.upTo > c.link.Completed {
			return
		}
		signal(l.back)
	}
}

// takeBack returns when the device no longer reads what was lent, if anything was. It returns false if a connection
// that has failed does not say so: then Close gives the memory back.
func (c *Conn) takeBack(l *lend) bool {
	c.mu.Lock()
	out := slices.Contains(c.lends, l)
	if out {
		c.lenders.Add(1)
	}
	c.mu.Unlock()
	if !out {
		return true
	}
	defer c.lenders.Done()
	if !c.awaitBack(l) {
		return false
	}
	c.mu.Lock()
	out = slices.Contains(c.lends, l) // or Close has given it back
	c.lends = slices.DeleteFunc(c.lends, func(other *lend) bool { return other == l })
	c.mu.Unlock()
	if out {
		l.lease.Release()
	}
	return true
}

// arrived returns an error if the peer has not acknowledged what was lent. The device is done with it.
func (c *Conn) arrived(l *lend) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := c.writeErr(); {
	case l.upTo <= c.link.Acked:
		return nil
	case err != nil:
		return err
	}
	return verberr.ECONNRESET
}

// awaitBack is await for a lend: neither a deadline nor Close ends it by itself.
func (c *Conn) awaitBack(l *lend) bool {
	isBack := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return l.upTo <= c.link.Completed || !slices.Contains(c.lends, l)
	}
	var late *time.Timer
	defer func() {
		if late != nil {
			late.Stop()
		}
	}()
	r := c.reactor
	for !isDone(c.dead) {
		passed := c.writeDeadline.passed()
		if isDone(passed) {
			if passed = nil; late == nil {
				late = time.AfterFunc(lateBack, c.neverBack)
			}
		}
		if isBack() {
			return true
		}
		select {
		case r.turn <- struct{}{}:
			r.lead(c, func() bool { return isBack() || isDone(c.dead) || passed != nil && isDone(passed) })
		case <-l.back:
			r.turns.Add(1) // the pump lets go
		case <-passed:
		case <-c.dead:
		}
	}
	_ = c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE) // which returns all requests
	limit := time.After(lateBack)
	for !isBack() {
		select {
		case <-l.back:
		case <-limit:
			return isBack()
		}
	}
	return true
}

// neverBack ends the connection, so that the device gives back what was lent.
func (c *Conn) neverBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lends) > 0 && !c.released {
		c.fail(fmt.Errorf("%w: the peer does not acknowledge what was sent from memory of the program",
			os.ErrDeadlineExceeded))
	}
}

// endLends gives back all memory that is lent, after the queue pair is gone, and waits until its lenders know.
func (c *Conn) endLends() {
	c.mu.Lock()
	all := c.lends
	c.lends = nil
	c.mu.Unlock()
	for _, l := range all {
		l.lease.Release()
		signal(l.back)
	}
	c.interrupt()
	c.lenders.Wait()
	for _, b := range c.strays {
		_ = b.Close() // the cache forgets it
	}
}
