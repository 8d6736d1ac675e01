// SPDX-License-Identifier: BSD-2-Clause

// Package counted publishes a program's device counters if GOVERBS_STATS is set. Queues count modulo 2³² anyway; this
// package reads their counters from time to time and extends them.
package counted

import (
	"sync"

	"github.com/goverbs/goverbs/internal/stats"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/runtime"
)

// Device has the counters of all open and closed devices with the same name. A nil Device counts nothing.
type Device struct {
	name     string
	software bool

	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	open map[any]*opened // devices that are open
	// +checklocks:mu
	queues map[any][]*queue // by object
	// +checklocks:mu
	past map[string]stats.Queue // totals of removed queues by kind
}

// opened is a device that is open.
type opened struct {
	backend runtime.Backend
	objects func(*stats.Device)
}

// Positions returns the numbers of completed and posted requests of a queue, modulo 2³² and with the same offset, and
// the queue's capacity, which is 0 if the queue does not count requests.
type Positions func() (done, posted, slots uint32)

// queue holds the counters of a queue.
type queue struct {
	kind         string
	of           Positions
	done, posted uint32 // at the last call of look
	all          stats.Queue
}

var published struct {
	begin sync.Once
	mu    sync.Mutex // guards the fields below; locked before a Device's mu
	// +checklocks:mu
	byName map[string]*Device
}

// Open returns the counters of an opened device, or nil if nothing is published. Until Closed, objects is called to add
// the device's objects to reports.
func Open(device any, name string, backend runtime.Backend, objects func(*stats.Device)) *Device {
	if !stats.On() {
		return nil
	}
	published.mu.Lock()
	c := published.byName[name]
	if c == nil {
		c = &Device{name: name, software: chosen.IsSoftware(backend), open: map[any]*opened{},
			queues: map[any][]*queue{}, past: map[string]stats.Queue{}}
		if published.byName == nil {
			published.byName = map[string]*Device{}
		}
		published.byName[name] = c
	}
	c.mu.Lock()
	c.open[device] = &opened{backend, objects}
	c.mu.Unlock()
	published.mu.Unlock()
	published.begin.Do(func() { stats.Add(report) })
	return c
}

// Closed removes a closed device.
func (c *Device) Closed(device any) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, device)
}

// Born adds the queues of a new object, by kind.
func (c *Device) Born(object any, queues map[string]Positions) {
	var own []*queue
	for kind, of := range queues {
		q := &queue{kind: kind, of: of}
		q.done, q.posted, _ = of()
		own = append(own, q)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues[object] = own
}

// Gone removes the queues of a destroyed object and keeps their counters.
func (c *Device) Gone(object any) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues[object] {
		q.look()
		past := c.past[q.kind]
		past.Posted += q.all.Posted
		past.Done += q.all.Posted // outstanding requests count as completed
		c.past[q.kind] = past
	}
	delete(c.queues, object)
}

// look reads the queue's counters and extends the totals. It does not subtract a rejected list that it has already
// counted; later requests reuse its numbers.
func (q *queue) look() {
	done, posted, slots := q.of()
	if slots == 0 {
		q.all = stats.Queue{Queues: 1, Uncounted: 1}
		return
	}
	if more := int32(posted - q.posted); more > 0 {
		q.all.Posted += uint64(more)
		q.posted = posted
	}
	q.all.Done += uint64(done - q.done)
	q.done = done
	q.all.Outstanding, q.all.Slots, q.all.Queues = uint64(max(int32(posted-done), 0)), uint64(slots), 1
}

// report adds the devices' counters to a report.
func report(r *stats.Report) {
	published.mu.Lock()
	defer published.mu.Unlock()
	for _, c := range published.byName {
		r.Devices = append(r.Devices, c.report())
	}
}

func (c *Device) report() stats.Device {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := stats.Device{Name: c.name, Software: c.software, Objects: map[string]uint64{},
		Queues: map[string]stats.Queue{}, Hardware: map[string]uint64{}}
	for kind, past := range c.past {
		one.Queues[kind] = past
	}
	for _, own := range c.queues {
		for _, q := range own {
			q.look()
			sum := one.Queues[q.kind]
			sum.Add(q.all)
			one.Queues[q.kind] = sum
		}
	}
	fabrics := map[runtime.Backend]bool{}
	for _, d := range c.open {
		one.Objects["ctx"]++
		d.objects(&one)
		own, ok := d.backend.(interface {
			HWCounters(device string) map[string]uint64
		})
		if !ok || fabrics[d.backend] {
			continue
		}
		fabrics[d.backend] = true
		for name, value := range own.HWCounters(c.name) {
			one.Hardware[name] += value
		}
	}
	return one
}
