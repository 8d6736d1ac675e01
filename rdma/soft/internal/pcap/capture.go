// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// room is how many bytes of packets wait for the file at most. The same amount is being written.
const room = 8 << 20

// Capture takes packets from wires and writes them to a file. A goroutine of its own writes: a file that is slow holds
// up no wire, and packets that find no room are only counted.
type Capture struct {
	of   *Captures
	to   io.Writer
	wake chan struct{} // there is something to do
	done chan struct{} // all is written

	mu sync.Mutex // guards what follows
	// +checklocks:mu
	filled []byte // packets that are to be written
	// +checklocks:mu
	packets uint64 // of them
	// +checklocks:mu
	written uint64
	// +checklocks:mu
	lost uint64
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	err error // of the file, after which nothing is written
}

// Captures are those that a fabric's wires give their packets to. The zero value has none.
type Captures struct {
	mu  sync.Mutex                 // one goroutine changes all at a time
	all atomic.Pointer[[]*Capture] // nil for none; needs no lock
}

// All are the captures that go on now; there are mostly none.
func (c *Captures) All() []*Capture {
	if all := c.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Start writes the header of a file, and then the packets that come until Close. Each Write has whole packets.
func (c *Captures) Start(to io.Writer) (*Capture, error) {
	if _, err := to.Write(appendHeader(nil)); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	n := &Capture{of: c, to: to, wake: make(chan struct{}, 1), done: make(chan struct{}), filled: make([]byte, 0, room)}
	go n.write(make([]byte, 0, room))
	c.change(func(all []*Capture) []*Capture { return append(slices.Clone(all), n) })
	return n, nil
}

func (c *Captures) change(f func([]*Capture) []*Capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := f(c.All())
	if len(all) == 0 {
		c.all.Store(nil)
		return
	}
	c.all.Store(&all)
}

// Packet takes a packet, which begins with its BTH, and copies it. It neither waits for the file nor allocates.
func (c *Capture) Packet(at time.Time, p []byte, from, to *packet.Endpoint, id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return
	case c.err != nil || len(c.filled)+header+packet.HeadersSize+len(p) > room:
		c.lost++
		return
	}
	c.filled = appendPacket(c.filled, at, p, from, to, id)
	if c.packets++; c.packets == 1 {
		c.nudge()
	}
}

// nudge wakes the goroutine that writes.
func (c *Capture) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write writes until the capture is closed or the file fails. Spare is memory for packets, beside that of filled.
func (c *Capture) write(spare []byte) {
	defer close(c.done)
	for {
		taken, n, closed := c.take(spare)
		if n > 0 {
			_, err := c.to.Write(taken)
			if !c.wrote(n, err) {
				return
			}
		} else if closed {
			return
		} else {
			<-c.wake
		}
		spare = taken
	}
}

// take takes the packets that are to be written, and leaves other memory for those to come.
func (c *Capture) take(spare []byte) (taken []byte, n uint64, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken, n = c.filled, c.packets
	c.filled, c.packets = spare[:0], 0
	return taken, n, c.closed
}

// wrote notes what became of packets, and says whether others may be written.
func (c *Capture) wrote(n uint64, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.written += n
		return true
	}
	c.err = fmt.Errorf("capture: %w", err)
	c.lost += n + c.packets
	c.packets = 0
	return false
}

// Counts are the packets that were written, and those that were not: there was no room for them, or the file failed.
func (c *Capture) Counts() (written, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written, c.lost
}

// Close ends the capture, waits until the packets that it took are written, and returns the error of the file, if any.
func (c *Capture) Close() error {
	c.of.change(func(all []*Capture) []*Capture {
		return slices.DeleteFunc(slices.Clone(all), func(other *Capture) bool { return other == c })
	})
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.nudge()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
