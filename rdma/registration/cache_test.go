// SPDX-License-Identifier: BSD-2-Clause

package registration_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/registration"
	"github.com/goverbs/goverbs/rdma/soft"
)

const write = ibv.ACCESS_LOCAL_WRITE

// newPD returns a protection domain of a software device.
func newPD(t testing.TB) *rdma.PD {
	device, err := rdma.OpenOn(rdmatest.NewFabric(t, soft.Options{}), "soft0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, device.Close()) })
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pd.Close()) })
	return pd
}

func newCache(t testing.TB, o registration.Options) *registration.Cache {
	c, err := registration.NewCache(newPD(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// get leases memory, releases it, and returns the keys.
func get(t testing.TB, c *registration.Cache, b []byte, access ibv.AccessFlags) [2]uint32 {
	t.Helper()
	lease, err := c.Get(b, access)
	require.NoError(t, err)
	defer lease.Release()
	region := lease.Region()
	assert.Equal(t, rdma.Region{Address: address(b), Length: uint64(len(b)), LKey: region.LKey}, region)
	return [2]uint32{region.LKey, lease.RKey()}
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// TestHits: a region serves every range inside it with the same access, and nothing else.
func TestHits(t *testing.T) {
	c := newCache(t, registration.Options{})
	all := make([]byte, 100_000)
	part := get(t, c, all[1000:2000], write)
	assert.Equal(t, part, get(t, c, all[1000:2000], write))
	assert.Equal(t, part, get(t, c, all[1999:2000], write))
	assert.NotEqual(t, part, get(t, c, all[1000:2000], 0))
	assert.NotEqual(t, part, get(t, c, all[999:2000], write))
	overlapping := get(t, c, all[1500:2500], write)
	s := c.Stats()
	assert.Equal(t, registration.Stats{Hits: 2, Misses: 4, Regions: 3, Idle: 3, Bytes: s.Bytes}, s,
		"the region at 999 replaced the one at 1000")
	assert.Equal(t, overlapping, get(t, c, all[2000:2500], write))
	complete := get(t, c, all, write)
	assert.Equal(t, complete, get(t, c, all[2000:2500], write))
	assert.Equal(t, complete, get(t, c, all[99_999:], write))
	s = c.Stats()
	assert.Equal(t, registration.Stats{Hits: 5, Misses: 5, Regions: 2, Idle: 2, Bytes: 101_000}, s)

	_, err := c.Get(nil, write)
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = c.Get(all, ibv.ACCESS_REMOTE_WRITE)
	assert.ErrorContains(t, err, "LOCAL_WRITE")
	assert.Equal(t, s.Regions, c.Stats().Regions)
	assert.Zero(t, c.Stats().Leases)
}

// TestReplacedWithLease: a region that was replaced by a larger one stays registered until its leases are released.
func TestReplacedWithLease(t *testing.T) {
	c := newCache(t, registration.Options{})
	all := make([]byte, 10_000)
	part, err := c.Get(all[:100], write)
	require.NoError(t, err)
	key := part.RKey()
	complete := get(t, c, all, write)
	assert.Equal(t, complete, get(t, c, all[:100], write))
	assert.Equal(t, key, part.RKey())
	assert.Equal(t, 2, c.Stats().Regions)
	assert.ErrorIs(t, c.Close(), rdma.ErrInUse)
	part.Release()
	part.Release()
	assert.Equal(t, 1, c.Stats().Regions)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = c.Get(all, write)
	assert.ErrorIs(t, err, rdma.ErrClosed)
	assert.Zero(t, c.Stats().Regions)
}

// TestLimits: if there are too many regions or bytes without a lease, those released first are deregistered.
func TestLimits(t *testing.T) {
	for name, o := range map[string]registration.Options{
		"regions": {Regions: 3}, "bytes": {Bytes: 3 * 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, o)
			var all [5][]byte
			for i := range all {
				all[i] = make([]byte, 1000)
			}
			leased, err := c.Get(all[0], write)
			require.NoError(t, err)
			for _, b := range all[1:4] {
				get(t, c, b, write)
			}
			get(t, c, all[1], write) // used last
			leased.Release()         // now four regions have no lease
			assert.EqualValues(t, 1, c.Stats().Evicted)
			for _, i := range []int{0, 1, 3} {
				hits := c.Stats().Hits
				get(t, c, all[i], write)
				assert.Equal(t, hits+1, c.Stats().Hits, "%d", i)
			}
			misses := c.Stats().Misses
			get(t, c, all[2], write)
			assert.Equal(t, misses+1, c.Stats().Misses)
			assert.Equal(t, 3, c.Stats().Regions)
		})
	}
	t.Run("region too large", func(t *testing.T) {
		c := newCache(t, registration.Options{Bytes: 3000})
		get(t, c, make([]byte, 2000), write)
		get(t, c, make([]byte, 4000), write)
		assert.EqualValues(t, 2000, c.Stats().Bytes)
	})
	for _, o := range []registration.Options{{Bytes: -1}, {Regions: -1}} {
		_, err := registration.NewCache(newPD(t), o)
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, pd := range []*rdma.PD{nil, {}} {
		_, err := registration.NewCache(pd, registration.Options{})
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
}

// TestOneRegistrationForAll: concurrent calls of Get for the same memory share one registration. The memory is large,
// so that the calls overlap.
func TestOneRegistrationForAll(t *testing.T) {
	c := newCache(t, registration.Options{})
	for range 5 {
		buffer, err := rdma.NewBuffer(64*mib, rdma.MapOptions{})
		require.NoError(t, err)
		before := c.Stats()
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range 50 {
			all.Go(func() {
				<-begin
				lease, err := c.Get(buffer.Bytes()[:buffer.Len()-i%2], write)
				if assert.NoError(t, err) {
					lease.Release()
				}
			})
		}
		close(begin)
		all.Wait()
		after := c.Stats()
		assert.LessOrEqual(t, after.Misses-before.Misses, uint64(2), "the larger region may be registered second")
		assert.Equal(t, 1, after.Regions)
		require.NoError(t, buffer.Close())
	}
}

// TestHeapStaysWhileCached: memory without references is not collected while it is registered, and is collected later.
func TestHeapStaysWhileCached(t *testing.T) {
	c := newCache(t, registration.Options{Regions: 1})
	collected := make(chan bool, 1)
	var at uintptr
	func() {
		b := make([]byte, 1<<20)
		runtime.AddCleanup(&b[0], func(done chan bool) { done <- true }, collected)
		at = uintptr(address(b))
		get(t, c, b, write)
	}()
	for range 3 {
		debug.FreeOSMemory()
		b := make([]byte, 1<<20)
		if uint64(at) == address(b) {
			t.Fatal("the memory was reused")
		}
	}
	assert.Empty(t, collected)
	get(t, c, make([]byte, 1<<20), write) // evicts the first
	runtime.GC()
	select {
	case <-collected:
	case <-time.After(time.Minute):
		t.Error("the memory is not collected")
	}
}

// TestBuffer: closing a Buffer deregisters it, and fails while there are leases.
func TestBuffer(t *testing.T) {
	c := newCache(t, registration.Options{})
	buffer, err := rdma.NewBuffer(1<<20, rdma.MapOptions{})
	require.NoError(t, err)
	key := get(t, c, buffer.Bytes(), write)
	assert.Equal(t, key, get(t, c, buffer.Bytes()[4096:], write))
	lease, err := c.Get(buffer.Bytes()[100:200], write)
	require.NoError(t, err)
	err = buffer.Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "1 leases of the registration cache on soft0 must be released first")
	lease.Release()
	assert.Equal(t, 1, c.Stats().Regions)
	require.NoError(t, buffer.Close())
	require.NoError(t, buffer.Close())
	assert.Equal(t, 0, c.Stats().Regions)
	assert.Zero(t, c.Stats().Uncached)
}

// TestHitDoesNotAllocate: a hit does not allocate.
func TestHitDoesNotAllocate(t *testing.T) {
	c := newCache(t, registration.Options{})
	b := make([]byte, 1<<20)
	get(t, c, b, write)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		lease, err := c.Get(b[100:200], write)
		if err != nil || lease.SGE(0, 100).Length != 100 {
			t.Error(err)
		}
		lease.Release()
	}))
}

// TestStorm: many goroutines use a small cache, and Buffers are closed concurrently.
func TestStorm(t *testing.T) {
	c := newCache(t, registration.Options{Regions: 8})
	b := make([]byte, 64*100)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 300 {
				from := (g*7 + i*13) % 64 * 100
				lease, err := c.Get(b[from:min(from+100*(1+i%3), len(b))], write)
				if !assert.NoError(t, err) {
					return
				}
				if i%50 == 0 {
					c.Forget(b[from : from+50])
				}
				if i%20 == 0 {
					buffer, err := rdma.NewBuffer(4096, rdma.MapOptions{})
					assert.NoError(t, err)
					get(t, c, buffer.Bytes(), write)
					assert.NoError(t, buffer.Close())
				}
				lease.Release()
			}
		})
	}
	all.Wait()
	s := c.Stats()
	assert.EqualValues(t, 8*300+8*15, s.Hits+s.Misses)
	assert.Zero(t, s.Leases)
	assert.LessOrEqual(t, s.Regions, 8)
	assert.Equal(t, s.Regions, s.Idle)
}

// BenchmarkHit measures Get and Release of registered memory.
func BenchmarkHit(b *testing.B) {
	for _, regions := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			c := newCache(b, registration.Options{})
			memory := make([]byte, 4096*regions)
			for i := range regions {
				get(b, c, memory[4096*i:][:4096], write)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				lease, err := c.Get(memory[i+100:i+200], write)
				if err != nil {
					b.Fatal(err)
				}
				lease.Release()
				i = (i + 4096*1543) % len(memory)
			}
		})
	}
}
