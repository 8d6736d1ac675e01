// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Options are the limits of a [Cache]. The zero value suits most programs.
type Options struct {
	// Bytes is the maximum number of bytes that stay registered, and pinned, without a lease; the most recently
	// released regions stay. 0 means 1 GiB. Leased memory is not limited. A larger region is deregistered when it is
	// released.
	Bytes int64
	// Regions is the maximum number of regions that stay registered without a lease. 0 means 4096.
	Regions int
	// Trust makes the cache keep memory registered even if it cannot detect that the memory is unmapped. The program
	// must call Forget before it unmaps memory, except for Go's heap and Buffers.
	Trust bool
}

// Stats has the counters of a [Cache] and its current size.
type Stats struct {
	Hits   uint64 // leases of registered memory
	Misses uint64 // leases that needed a registration
	// misses whose region was deregistered on release, mostly because the memory cannot be cached: see the package
	// comment
	Uncached uint64
	Evicted  uint64 // regions deregistered because of a limit or lack of memory
	Unmapped uint64 // regions whose memory was unmapped, moved or discarded

	Leases  int   // leases that are not released
	Regions int   // registered regions, with and without leases
	Idle    int   // regions without a lease
	Bytes   int64 // bytes of all registered regions
}

// Cache keeps memory of a protection domain registered. It is safe for concurrent use.
type Cache struct {
	pd   *rdma.PD
	name string
	o    Options

	background sync.WaitGroup // deregistrations of unmapped memory

	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	indexes []*index // one per set of access flags
	// +checklocks:mu
	pending []*region // regions being registered
	// +checklocks:mu
	idle idleList // indexed regions without a lease
	// +checklocks:mu
	unclosed []*region // regions whose deregistration failed
	// +checklocks:mu
	stats Stats
	// +checklocks:mu
	closed bool
}

// NewCache returns an empty cache. Close it before the protection domain.
func NewCache(pd *rdma.PD, o Options) (*Cache, error) {
	const object = "registration cache"
	if pd == nil || pd.Device() == nil {
		return nil, verberr.Invalid("NewCache", object, "the protection domain is nil")
	}
	if o.Bytes < 0 || o.Regions < 0 {
		return nil, verberr.Invalid("NewCache", object, "negative limit: %d bytes, %d regions; "+
			"use 0 for the defaults", o.Bytes, o.Regions)
	}
	o.Bytes, o.Regions = cmp.Or(o.Bytes, 1<<30), cmp.Or(o.Regions, 4096)
	c := &Cache{pd: pd, name: object + " on " + pd.Device().Name(), o: o}
	c.idle.init()
	c.publish()
	return c, nil
}

// Get returns a lease of a slice's registration. It registers the slice if no region contains it, and blocks meanwhile.
// Concurrent calls for the same memory share one registration. Until the lease is released, the memory stays
// registered, and memory of Go's heap stays pinned. If the system refuses to pin more memory (ENOMEM), Get evicts
// regions without a lease.
//
// C: ibv_reg_mr
//
// Man: ibv_reg_mr(3)
func (c *Cache) Get(b []byte, access ibv.AccessFlags) (Lease, error) {
	if len(b) == 0 {
		return Lease{}, verberr.Invalid("Get", c.name, "the memory is empty")
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := start + uintptr(len(b))
	c.mu.Lock()
	r := c.findLocked(start, end, access)
	if r != nil && (r.watch == nil || r.watch.Same()) {
		c.leaseLocked(r)
		c.stats.Hits++
		c.mu.Unlock()
		return Lease{region: r, start: start, length: len(b)}, nil
	}
	c.mu.Unlock()
	r, err := c.miss(b, start, end, access)
	if err != nil {
		return Lease{}, err
	}
	return Lease{region: r, start: start, length: len(b)}, nil
}

// findLocked returns an indexed region for a lease, or nil. The caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) findLocked(start, end uintptr, access ibv.AccessFlags) *region {
	for _, x := range c.indexes {
		if x.access == access {
			return x.find(start, end)
		}
	}
	return nil
}

// leaseLocked counts a lease of an indexed region. The caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) leaseLocked(r *region) {
	if r.leases == 0 {
		c.idle.remove(r)
	}
	r.leases++
	c.stats.Leases++
}

// miss returns a region for memory that is not cached, or whose cached region may be stale.
func (c *Cache) miss(b []byte, start, end uintptr, access ibv.AccessFlags) (*region, error) {
	r := &region{cache: c, start: start, end: end, access: access, leases: 1, made: make(chan struct{}),
		ended: make(chan struct{})}
	var out []*region
	waited := false
	for turns := 0; ; turns++ {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, &rdma.VerbError{Verb: "Get", Object: c.name, Err: verberr.ErrClosed}
		}
		changing := false
		if hit := c.findLocked(start, end, access); hit != nil {
			switch {
			case hit.watch == nil || hit.watch.Same():
				c.leaseLocked(hit)
				c.stats.Hits++
				c.mu.Unlock()
				c.end(out...)
				return hit, nil
			case hit.watch.Gone():
				c.stats.Unmapped++
				out = c.dropLocked(hit, out)
			case turns < manyTurns: // some watched memory is changing, which takes microseconds
				c.mu.Unlock()
				runtime.Gosched()
				continue
			default:
				changing = true
			}
		}
		other := c.pendingLocked(start, end, access)
		if other == nil || waited || changing {
			c.pending = append(c.pending, r)
			c.stats.Misses++
			c.stats.Leases++
			c.mu.Unlock()
			break
		}
		c.mu.Unlock()
		if <-other.made; other.err != nil {
			return nil, other.err
		}
		waited = true // once only: uncacheable memory would be registered by one goroutine after the other
	}
	c.end(out...) // unpins pages before more are pinned
	return r, c.register(r, b)
}

// manyTurns is the number of times that a lease waits for pending changes before it bypasses the cache.
const manyTurns = 100

// pendingLocked returns a region that is being registered and contains the range, or nil. The caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) pendingLocked(start, end uintptr, access ibv.AccessFlags) *region {
	for _, r := range c.pending {
		if r.access == access && r.start <= start && end <= r.end {
			return r
		}
	}
	return nil
}

// register registers the memory of a pending region and indexes the region if it can be cached.
func (c *Cache) register(r *region, b []byte) error {
	keep := r.secure(b, c.o.Trust)
	mr, err := c.pd.RegMR(b, r.access)
	for errors.Is(err, syscall.ENOMEM) && c.shed(int64(len(b))) {
		mr, err = c.pd.RegMR(b, r.access)
	}
	c.mu.Lock()
	c.pending = without(c.pending, r)
	var out []*region
	if err != nil {
		c.stats.Leases--
		r.err = err
	} else {
		r.mr, r.lkey, r.rkey = mr, mr.LKey(), mr.RKey()
		c.stats.Regions++
		c.stats.Bytes += r.size()
		if keep && !r.gone {
			out = c.indexLocked(r)
		}
		if !r.indexed {
			c.stats.Uncached++
		}
	}
	close(r.made)
	c.mu.Unlock()
	if err != nil {
		r.insecure()
		close(r.ended)
	}
	c.end(out...)
	return err
}

// indexLocked adds a region to its index, in place of regions that it contains. It returns the regions to end. The
// caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) indexLocked(r *region) (out []*region) {
	var x *index
	for _, x = range c.indexes {
		if x.access == r.access {
			break
		}
	}
	if x == nil || x.access != r.access {
		x = &index{access: r.access}
		c.indexes = append(c.indexes, x)
	}
	if x.find(r.start, r.end) != nil { // a larger region was added meanwhile; this one is not cached
		return nil
	}
	for _, inner := range x.inside(r.start, r.end) {
		out = c.dropLocked(inner, out)
	}
	x.add(r)
	r.indexed = true
	return out
}

// dropLocked removes a region from its index, and appends it to out if it must be ended now. The caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) dropLocked(r *region, out []*region) []*region {
	if !r.indexed {
		return out
	}
	r.indexed = false
	for _, x := range c.indexes {
		if x.access == r.access {
			x.remove(r)
		}
	}
	if r.leases > 0 {
		return out // the last release ends it
	}
	c.idle.remove(r)
	return append(out, r)
}

// release ends a lease.
func (c *Cache) release(r *region) {
	c.mu.Lock()
	if r.leases == 0 {
		c.mu.Unlock()
		panic("goverbs: a lease was copied and released twice")
	}
	r.leases--
	c.stats.Leases--
	if r.leases > 0 {
		c.mu.Unlock()
		return
	}
	out := make([]*region, 0, 4) // usually stays on the stack
	if !r.indexed {
		out = append(out, r)
	} else {
		c.idle.add(r)
		if r.size() > c.o.Bytes { // keeping it would evict all others
			c.stats.Evicted++
			out = c.dropLocked(r, out)
		}
		for c.idle.bytes > c.o.Bytes || c.idle.count > c.o.Regions {
			c.stats.Evicted++
			out = c.dropLocked(c.idle.oldest(), out)
		}
	}
	c.mu.Unlock()
	c.end(out...)
}

// shed ends regions without a lease, oldest first, until n bytes are released. It reports whether there were any.
func (c *Cache) shed(n int64) bool {
	var out []*region
	c.mu.Lock()
	for n > 0 && c.idle.count > 0 {
		oldest := c.idle.oldest()
		n -= oldest.size()
		c.stats.Evicted++
		out = c.dropLocked(oldest, out)
	}
	c.mu.Unlock()
	c.end(out...)
	return len(out) > 0
}

// end deregisters regions that are neither indexed nor leased. The caller must hold no locks: C may unmap memory here,
// which waits until the monitor goroutine reads the report, and that goroutine takes locks.
func (c *Cache) end(out ...*region) {
	for _, r := range out {
		err := r.mr.Close()
		c.mu.Lock()
		if err != nil {
			c.unclosed = append(c.unclosed, r)
			r.closing = err
		} else {
			c.stats.Regions--
			c.stats.Bytes -= r.size()
		}
		c.mu.Unlock()
		if err == nil {
			r.insecure()
		}
		close(r.ended)
	}
}

// Forget deregisters all regions without a lease that overlap b. Regions with leases serve no new leases, and are
// deregistered when released. If there are any, Forget returns an error that matches rdma.ErrInUse, and the memory must
// not be unmapped yet.
func (c *Cache) Forget(b []byte) error {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	c.mu.Lock()
	out, leases := c.forgetLocked(start, start+uintptr(len(b)))
	c.mu.Unlock()
	c.end(out...)
	if leases > 0 {
		return c.inUse("Forget", fmt.Sprintf("%d leases of the memory must be released first", leases))
	}
	return nil
}

// forgetLocked returns the regions to end, and the number of leases on the other regions. The caller holds mu.
//
// +checklocks:c.mu
func (c *Cache) forgetLocked(start, end uintptr) (out []*region, leases int) {
	for _, x := range c.indexes {
		for _, r := range x.overlapping(start, end) {
			leases += r.leases
			out = c.dropLocked(r, out)
		}
	}
	for _, r := range c.pending {
		if r.start < end && start < r.end {
			r.gone = true
			leases += r.leases
		}
	}
	return out, leases
}

func (c *Cache) inUse(verb, reason string) error {
	return &rdma.VerbError{Verb: verb, Object: c.name, Errno: syscall.EBUSY, Reason: reason, Err: verberr.ErrInUse}
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Idle = c.idle.count
	return s
}

// Close deregisters all memory. It fails while there are leases. A second Close does nothing.
//
// C: ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func (c *Cache) Close() error {
	c.mu.Lock()
	if n := c.stats.Leases; n > 0 {
		c.mu.Unlock()
		return c.inUse("Close", fmt.Sprintf("%d leases must be released first", n))
	}
	c.closed = true
	var out []*region
	for c.idle.count > 0 {
		out = c.dropLocked(c.idle.oldest(), out)
	}
	for _, r := range c.unclosed { // retry
		r.closing, r.ended = nil, make(chan struct{})
	}
	out, c.unclosed = append(out, c.unclosed...), nil
	c.mu.Unlock()
	c.end(out...)
	c.background.Wait()
	c.unpublish()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, r := range c.unclosed {
		errs = append(errs, r.closing)
	}
	return errors.Join(errs...)
}
