// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"sync"

	"github.com/goverbs/goverbs/internal/stats"
)

// published contains the caches of a program that publishes its counters.
var published struct {
	begin sync.Once
	mu    sync.Mutex // guards the fields below; locked before a cache's mu
	// +checklocks:mu
	open map[*Cache]bool
	// +checklocks:mu
	past stats.Cache // counters of closed caches
}

func (c *Cache) publish() {
	if !stats.On() {
		return
	}
	published.mu.Lock()
	if published.open == nil {
		published.open = map[*Cache]bool{}
	}
	published.open[c] = true
	published.mu.Unlock()
	published.begin.Do(func() { stats.Add(report) })
}

// unpublish keeps the counters of a closed cache. It may be called again.
func (c *Cache) unpublish() {
	published.mu.Lock()
	defer published.mu.Unlock()
	if published.open[c] {
		delete(published.open, c)
		c.count(&published.past)
	}
}

// count adds the counters of a cache.
func (c *Cache) count(to *stats.Cache) {
	s := c.Stats()
	to.Hits += s.Hits
	to.Misses += s.Misses
	to.Uncached += s.Uncached
	to.Evicted += s.Evicted
	to.Unmapped += s.Unmapped
	to.Leases += uint64(s.Leases)
	to.Regions += uint64(s.Regions)
	to.Bytes += uint64(s.Bytes)
}

// report adds the counters of all caches.
func report(r *stats.Report) {
	published.mu.Lock()
	defer published.mu.Unlock()
	sum := published.past
	for c := range published.open {
		c.count(&sum)
	}
	r.Cache = &sum
}
