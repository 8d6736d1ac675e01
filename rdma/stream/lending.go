// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/registration"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// lending tracks memory that the program has lent to the device. The connection's mu guards it.
type lending struct {
	all       []*lend        // oldest first
	waiting   sync.WaitGroup // goroutines that wait for the device
	unclaimed []*rdma.Buffer // of ReadFrom; Close releases them
}

// lend is program memory that the device may read until a message has completed.
type lend struct {
	upTo  uint64             // number of messages, up to the last one with this memory
	back  chan struct{}      // holds a token when the device has finished
	lease registration.Lease // for memory that the program has not registered
}

// lendFrom is the minimum size for lending. For less, copying is faster than waiting for the device.
const lendFrom = 16 << 10

// WriteLent is Write without a copy: the device reads p directly, and WriteLent returns when it has finished. p may be
// any memory; it must not change during the call. WriteLent pays off if a copy takes longer than a round trip: on the
// software device, writing 64 KiB takes 1.8 times as long as with Write, and 1 MiB 0.4 times. See also [Conn.Lend].
//
// Lent memory stays registered for later calls while the device has connections, or a listener at one of its addresses.
// The garbage collector cannot reclaim it. At most 64 MiB stay registered. See package registration, and [Conn.WriteMR]
// for memory that the program registers.
//
// WriteLent returns the number of bytes sent, and an error if the peer's device did not acknowledge all of p.
//
// If a deadline expires, the device may still read p. WriteLent then waits for the peer's acknowledgement for up to a
// second before it makes the connection fail. Closing the connection ends all calls of WriteLent with an error.
func (c *Conn) WriteLent(p []byte) (int, error) {
	if len(p) < lendFrom {
		return c.Write(p)
	}
	l := &lend{back: make(chan struct{}, 1)}
	n, err := c.lendBytes(l, p, 0, len(p))
	return c.lentAll(l, n, err)
}

// lentAll waits until the device has finished with lent memory, and returns the results for a Write of n bytes.
func (c *Conn) lentAll(l *lend, n int, err error) (int, error) {
	c.takeBack(l)
	if err == nil {
		err = c.arrived(l)
	}
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

// Lent is lent memory: see [Conn.Lend].
type Lent struct {
	c *Conn
	l lend
}

// Lend is [Conn.WriteLent] without the wait: it returns when all of p is sent, and the device owns p until Wait
// returns. A program can thus lend more before the previous data has arrived. Close releases lends without a Wait.
func (c *Conn) Lend(p []byte) (*Lent, error) {
	if len(p) == 0 {
		_, err := c.Write(p)
		return &Lent{c: c}, err
	}
	t := &Lent{c, lend{back: make(chan struct{}, 1)}}
	if _, err := c.lendBytes(&t.l, p, 0, len(p)); err != nil {
		c.takeBack(&t.l)
		return nil, c.opError("write", err)
	}
	return t, nil
}

// Wait waits until the program owns the memory again. A second Wait does nothing. If the peer did not receive the data,
// the connection's next call returns the error.
func (t *Lent) Wait() { t.c.takeBack(&t.l) }

// WriteMR is [Conn.WriteLent] for n bytes at an offset of a memory region, which must belong to [Conn.PD]. Use it for
// memory that the program keeps registered, or that is not the process's, such as a GPU's.
func (c *Conn) WriteMR(mr *rdma.MR, offset uint64, n int) (int, error) {
	pd, err := c.PD()
	if err != nil {
		return 0, err
	}
	switch {
	case mr == nil || mr.PD() != pd:
		return 0, c.opError("write", verberr.Invalid("WriteMR", "", "the memory region does not belong to "+
			"the connection's protection domain: register it with Conn.PD"))
	case n < 0 || offset > mr.Len() || uint64(n) > mr.Len()-offset:
		return 0, c.opError("write", verberr.Invalid("WriteMR", "",
			"%d bytes at offset %d are not inside the region of %d bytes", n, offset, mr.Len()))
	}
	l := &lend{back: make(chan struct{}, 1)}
	r := mr.Region()
	c.writer.mu.Lock()
	n, err = c.lendOut(l, rdma.Region{Address: r.Address + offset, Length: uint64(n), LKey: r.LKey})
	c.writer.mu.Unlock()
	return c.lentAll(l, n, err)
}

// PD returns the protection domain that all connections of the device share. Close objects in it before the last
// connection is closed; otherwise Close of that connection fails.
func (c *Conn) PD() (*rdma.PD, error) {
	pd, err := c.id.PD()
	if err != nil {
		return nil, c.opError("pd", err)
	}
	return pd, nil
}

// lendBytes registers all and lends n bytes of it, starting at index at. It returns the number of bytes posted.
func (c *Conn) lendBytes(l *lend, all []byte, at, n int) (int, error) {
	c.writer.mu.Lock() // Close waits for it, so the device stays open
	defer c.writer.mu.Unlock()
	if _, err := c.room(n, true); err != nil {
		return 0, err
	}
	cache, err := c.shared.lent()
	if err != nil {
		return 0, err
	}
	if l.lease, err = cache.Get(all, 0); err != nil {
		return 0, err
	}
	r := l.lease.Region()
	posted, err := c.lendOut(l, rdma.Region{Address: r.Address + uint64(at), Length: uint64(n), LKey: r.LKey})
	if posted == 0 {
		l.lease.Release()
	}
	return posted, err
}

// lendOut posts memory in pieces and returns the number of bytes posted. The caller holds writer.mu, and releases it
// before it waits for the device.
func (c *Conn) lendOut(l *lend, r rdma.Region) (n int, err error) {
	for total := int(r.Length); ; {
		rest := total - n
		m, err := c.room(rest, true)
		if m > 0 {
			m, err = c.send(protocol.Piece{Lent: r.SGE(uint64(n), uint32(m))}, l)
		}
		n += m
		switch {
		case err != nil || n == total:
			return n, err
		case m > 0:
			continue
		}
		c.awaitRoom(func() bool { return c.protocol.Room(rest, true) > 0 })
	}
}

// Parts of ReadFrom's memory: r reads into one while the device sends the others.
const (
	relayParts = 4
	relayPart  = 128 << 10
	keptRelays = 8
)

// ReadFrom sends data from r until io.EOF; io.Copy to a connection uses it. r reads into 512 KiB of registered memory,
// which the device sends without a copy. Other Writes may interleave between two reads. While r.Read blocks, neither
// Close nor a deadline ends ReadFrom, and Close does not wait for it.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	relay, err := c.shared.takeRelay()
	if err != nil {
		return 0, c.opError("write", err)
	}
	var lends [relayParts]lend
	for i := range lends {
		lends[i].back = make(chan struct{}, 1)
	}
	defer func() {
		whole := true
		for i := range lends {
			whole = c.takeBack(&lends[i]) && whole
			if lost := c.arrived(&lends[i]); lost != nil && err == nil {
				err = c.opError("write", lost)
			}
		}
		c.leaveRelay(relay, whole)
	}()
	for i := 0; ; i = (i + 1) % relayParts {
		c.takeBack(&lends[i])
		if err := c.arrived(&lends[i]); err != nil {
			return total, c.opError("write", err)
		}
		all, at := relay.Bytes(), i*relayPart
		n, end := r.Read(all[at : at+relayPart])
		var m int
		if n < lendFrom {
			m, err = c.Write(all[at : at+n])
		} else if m, err = c.lendBytes(&lends[i], all, at, n); err != nil {
			err = c.opError("write", err)
		}
		total += int64(m)
		switch {
		case err != nil:
			return total, err
		case end == io.EOF:
			return total, nil
		case end != nil:
			return total, end
		}
	}
}

// takeRelay returns a buffer for ReadFrom.
func (s *shared) takeRelay() (*rdma.Buffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.relay) - 1; last >= 0 {
		b := s.relay[last]
		s.relay = s.relay[:last]
		return b, nil
	}
	return rdma.NewBuffer(relayParts*relayPart, rdma.MapOptions{})
}

// leaveRelay keeps the buffer for the next ReadFrom, or leaves it to Close if the device may still read it. After
// Close, the device and its shared objects may be gone.
func (c *Conn) leaveRelay(b *rdma.Buffer, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.released:
		_ = b.Close()
	case !whole:
		c.lending.unclaimed = append(c.lending.unclaimed, b)
	default:
		c.shared.keepRelay(b)
	}
}

func (s *shared) keepRelay(b *rdma.Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.relay) < keptRelays {
		s.relay = append(s.relay, b)
	} else {
		_ = b.Close()
	}
}

// lendTimeout is how long a write waits after its deadline for the device to finish with lent memory, which requires
// the acknowledgement of the peer's device. Then the connection fails.
const lendTimeout = time.Second

// lent records that the last message contains memory of l. The caller holds mu.
func (c *Conn) lent(l *lend) {
	if !slices.Contains(c.lending.all, l) {
		c.lending.all = append(c.lending.all, l)
	}
	l.upTo = c.link.Messages
}

// wakeLenders wakes goroutines whose memory the device no longer reads. The caller holds mu.
func (c *Conn) wakeLenders() {
	for _, l := range c.lending.all {
		if l.upTo > c.link.Completed {
			return
		}
		signal(l.back)
	}
}

// takeBack waits until the device no longer reads lent memory. It returns false if a failed connection cannot confirm
// that; Close then releases the memory.
func (c *Conn) takeBack(l *lend) bool {
	c.mu.Lock()
	out := slices.Contains(c.lending.all, l)
	if out {
		c.lending.waiting.Add(1)
	}
	c.mu.Unlock()
	if !out {
		return true
	}
	defer c.lending.waiting.Done()
	if !c.awaitBack(l) {
		return false
	}
	c.mu.Lock()
	out = slices.Contains(c.lending.all, l) // false if Close has released it
	c.lending.all = slices.DeleteFunc(c.lending.all, func(other *lend) bool { return other == l })
	c.mu.Unlock()
	if out {
		l.lease.Release()
	}
	return true
}

// arrived returns an error if the peer has not acknowledged lent memory. The device has finished with the memory.
func (c *Conn) arrived(l *lend) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := c.writeErr(); {
	case l.upTo <= c.link.Acked:
		return nil
	case err != nil:
		return err
	}
	return syscall.ECONNRESET
}

// awaitBack is await for a lend: neither a deadline nor Close ends it.
func (c *Conn) awaitBack(l *lend) bool {
	isBack := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return l.upTo <= c.link.Completed || !slices.Contains(c.lending.all, l)
	}
	var late *time.Timer
	defer func() {
		if late != nil {
			late.Stop()
		}
	}()
	r := c.poller
	for !isDone(c.dead) {
		passed := c.writer.deadline.passed()
		if isDone(passed) {
			if passed = nil; late == nil {
				late = time.AfterFunc(lendTimeout, c.lendTimedOut)
			}
		}
		if isBack() {
			return true
		}
		select {
		case r.turn <- struct{}{}:
			r.lead(c, func() bool { return isBack() || isDone(c.dead) || passed != nil && isDone(passed) })
		case <-l.back:
			r.turns.Add(1) // makes the background goroutine release the queue
		case <-passed:
		case <-c.dead:
		}
	}
	_ = c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE) // flushes all requests
	limit := time.After(lendTimeout)
	for !isBack() {
		select {
		case <-l.back:
		case <-limit:
			return isBack()
		}
	}
	return true
}

// lendTimedOut makes the connection fail, so that the device releases lent memory.
func (c *Conn) lendTimedOut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lending.all) > 0 && !c.released {
		c.fail(fmt.Errorf("%w: the peer does not acknowledge data in lent memory",
			os.ErrDeadlineExceeded))
	}
}

// endLends releases all lent memory and waits for the lenders. The queue pair is gone.
func (c *Conn) endLends() {
	c.mu.Lock()
	all := c.lending.all
	c.lending.all = nil
	c.mu.Unlock()
	for _, l := range all {
		l.lease.Release()
		signal(l.back)
	}
	c.interrupt()
	c.lending.waiting.Wait()
	for _, b := range c.lending.unclaimed {
		_ = b.Close() // removes it from the cache
	}
}
