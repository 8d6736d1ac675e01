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

// room limits the bytes of queued packets. Up to as many more are being written.
const room = 8 << 20

// Capture accepts packets from wires and writes them to a file. A separate goroutine writes, so that a slow file does
// not block wires. Packets that exceed the queue are only counted.
type Capture struct {
	of   *Captures
	to   io.Writer
	wake chan struct{} // signals queued packets or closing
	done chan struct{} // closed after the last write

	mu sync.Mutex
	// +checklocks:mu
	filled []byte // queued packets
	// +checklocks:mu
	packets uint64 // number of queued packets
	// +checklocks:mu
	written uint64
	// +checklocks:mu
	lost uint64
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	err error // first write error, which ends writing
}

// Captures holds the running captures of a fabric's wires. The zero value has none.
type Captures struct {
	mu  sync.Mutex                 // serializes changes of all
	all atomic.Pointer[[]*Capture] // nil for none; needs no lock
}

// All returns the running captures. Usually there are none.
func (c *Captures) All() []*Capture {
	if all := c.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Start writes a file header, and then packets until Close. Each Write contains complete packets.
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

// Packet copies a packet, which begins with its BTH. It neither waits for the file nor allocates.
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
		c.wakeWriter()
	}
}

// wakeWriter wakes the writing goroutine.
func (c *Capture) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write writes until the capture is closed or a write fails. spare is a second buffer, which alternates with filled.
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

// take returns the queued packets and replaces their buffer with spare.
func (c *Capture) take(spare []byte) (taken []byte, n uint64, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken, n = c.filled, c.packets
	c.filled, c.packets = spare[:0], 0
	return taken, n, c.closed
}

// wrote counts written or lost packets, and reports whether writing may continue.
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

// Counts returns the numbers of packets written, and of those dropped because the queue was full or a write failed.
func (c *Capture) Counts() (written, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written, c.lost
}

// Close ends the capture, waits until its packets are written, and returns the error of a failed write.
func (c *Capture) Close() error {
	c.of.change(func(all []*Capture) []*Capture {
		return slices.DeleteFunc(slices.Clone(all), func(other *Capture) bool { return other == c })
	})
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wakeWriter()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
