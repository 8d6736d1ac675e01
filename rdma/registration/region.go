// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/mapped"
	"github.com/goverbs/goverbs/rdma/registration/internal/watch"
)

// region is memory that is registered or being registered.
type region struct {
	cache      *Cache
	start, end uintptr
	access     ibv.AccessFlags

	made chan struct{} // closed when mr or err is set
	err  error         // error of the registration
	mr   *rdma.MR
	lkey uint32
	rkey uint32

	watch *watch.Watch  // or nil
	use   *mapped.Use   // or nil
	ended chan struct{} // closed after the deregistration

	// guarded by Cache.mu
	leases       int
	indexed      bool  // may serve further leases
	gone         bool  // its memory has changed: it must not be indexed
	closing      error // error of the deregistration
	newer, older *region
}

func (r *region) size() int64 { return int64(r.end - r.start) }

// secure ensures that the region leaves the index before its addresses can get other pages, and reports whether it
// could.
func (r *region) secure(b []byte, trust bool) bool {
	if r.access&ibv.ACCESS_ON_DEMAND != 0 || watch.OnHeap(unsafe.SliceData(b)) {
		return true // the device follows the page tables, or the registration pins memory of the garbage collector
	}
	if r.use = mapped.Find(r.start, r.end-r.start, r.stop); r.use != nil {
		return true
	}
	var err error
	r.watch, err = watch.Memory(r.start, r.end-r.start, r.changed)
	return err == nil || trust
}

// insecure undoes secure.
func (r *region) insecure() {
	if r.watch != nil {
		r.watch.Close()
	}
	if r.use != nil {
		r.use.End()
	}
}

// changed is called when the memory has changed. It does not deregister itself, because C may unmap memory then, which
// waits until the calling goroutine continues.
func (r *region) changed() {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.gone = true; !r.indexed {
		return
	}
	c.stats.Unmapped++
	if out := c.dropLocked(r, nil); len(out) > 0 {
		c.background.Go(func() { c.end(out...) })
	}
}

// stop is called before the memory of a Buffer is unmapped.
func (r *region) stop() error {
	c := r.cache
	c.mu.Lock()
	if n := r.leases; n > 0 {
		c.mu.Unlock()
		return fmt.Errorf("%d leases of the %s must be released first", n, c.name)
	}
	out := c.dropLocked(r, nil)
	c.mu.Unlock()
	c.end(out...)
	<-r.ended // another goroutine may be deregistering it
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.closing
}

// without returns the regions except r.
func without(all []*region, r *region) []*region {
	for i, other := range all {
		if other == r {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			return all[:len(all)-1]
		}
	}
	return all
}
