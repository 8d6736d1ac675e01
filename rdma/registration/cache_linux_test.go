// SPDX-License-Identifier: BSD-2-Clause

package registration_test

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
)

const size = 1 << 16

// mmap maps memory that tests unmap and map again at the same address, where neither Go nor the kernel puts other
// memory meanwhile.
func mmap(t testing.TB, length int) []byte { return mmapAt(t, 3<<(28+(bits.UintSize-32)/2), length, 0) }

// mmapOver maps memory over existing memory.
func mmapOver(t testing.TB, at *byte, length int) {
	mmapAt(t, uintptr(unsafe.Pointer(at)), length, unix.MAP_FIXED)
}

// mmapAgain maps memory at addresses that are not mapped.
func mmapAgain(t testing.TB, b []byte) {
	mmapAt(t, uintptr(unsafe.Pointer(&b[0])), len(b), unix.MAP_FIXED_NOREPLACE)
}

func mmapAt(t testing.TB, at uintptr, length, how int) []byte {
	t.Helper()
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | how
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, at), uintptr(length), unix.PROT_READ|unix.PROT_WRITE, flags)
	require.NoError(t, err)
	return unsafe.Slice((*byte)(p), length)
}

func munmap(t testing.TB, b []byte) {
	t.Helper()
	require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b))))
}

// changes are the ways in which a program can replace mapped memory at the same address.
var changes = map[string]func(t testing.TB, b []byte){
	"unmap, map again": func(t testing.TB, b []byte) {
		munmap(t, b)
		mmapAgain(t, b)
	},
	"map over it": func(t testing.TB, b []byte) { mmapOver(t, &b[0], len(b)) },
	"map over a page of it": func(t testing.TB, b []byte) {
		mmapOver(t, &b[0], os.Getpagesize())
	},
	"move away, map again": func(t testing.TB, b []byte) {
		elsewhere := unsafe.Pointer(&mmap(t, size)[0])
		_, err := unix.MremapPtr(unsafe.Pointer(&b[0]), size, elsewhere, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		require.NoError(t, err)
		t.Cleanup(func() { unix.MunmapPtr(elsewhere, size) })
		mmapAgain(t, b)
	},
	"MADV_DONTNEED": func(t testing.TB, b []byte) { require.NoError(t, unix.Madvise(b, unix.MADV_DONTNEED)) },
	"MADV_FREE":     func(t testing.TB, b []byte) { require.NoError(t, unix.Madvise(b, unix.MADV_FREE)) },
}

// TestChangedMemory: after memory was replaced, the next Get registers it again.
func TestChangedMemory(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, registration.Options{})
			b := mmap(t, size)
			defer munmap(t, b)
			for range 2 {
				get(t, c, b, write)
				get(t, c, b[100:], write)
			}
			s := c.Stats()
			require.Equal(t, registration.Stats{Hits: 3, Misses: 1, Regions: 1, Idle: 1, Bytes: size}, s,
				"this kernel does not support watching memory")
			change(t, b)
			get(t, c, b[:100], write)
			s = c.Stats()
			assert.EqualValues(t, 2, s.Misses)
			assert.EqualValues(t, 1, s.Unmapped)
			discarded := name == "MADV_DONTNEED" || name == "MADV_FREE"
			assert.Equal(t, discarded, s.Uncached == 1)
			munmap(t, b)
			mmapAgain(t, b)
			for range 2 {
				get(t, c, b, write)
			}
			assert.EqualValues(t, 3, c.Stats().Misses, "after it was unmapped, the memory is watched again")
		})
	}
}

// TestUnmappedWithLease: if a program wrongly unmaps leased memory, later leases are still correct.
func TestUnmappedWithLease(t *testing.T) {
	c := newCache(t, registration.Options{})
	b := mmap(t, size)
	defer munmap(t, b)
	old, err := c.Get(b, write)
	require.NoError(t, err)
	mmapOver(t, &b[0], size)
	lease, err := c.Get(b, write)
	require.NoError(t, err)
	assert.NotEqual(t, old.RKey(), lease.RKey())
	old.Release()
	assert.Equal(t, lease.RKey(), get(t, c, b, write)[1])
	lease.Release()
	assert.Equal(t, 1, c.Stats().Regions)
}

// TestTwoCaches: both caches detect a change.
func TestTwoCaches(t *testing.T) {
	one, two := newCache(t, registration.Options{}), newCache(t, registration.Options{})
	b := mmap(t, size)
	defer munmap(t, b)
	for range 2 {
		get(t, one, b, write)
		get(t, two, b[4096:], write)
		require.NoError(t, one.Forget(b))
		get(t, one, b, write)
	}
	assert.EqualValues(t, 1, two.Stats().Hits)
	mmapOver(t, &b[0], size)
	get(t, one, b, write)
	get(t, two, b[4096:], write)
	for _, c := range []*registration.Cache{one, two} {
		assert.EqualValues(t, 1, c.Stats().Unmapped)
		assert.Zero(t, c.Stats().Uncached)
	}
}

// TestSharedMemory: memory that can change without a report is registered for each lease, unless Trust is set.
func TestSharedMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, size))
	for _, flags := range []int{unix.MAP_SHARED, unix.MAP_PRIVATE} {
		b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
		require.NoError(t, err)
		c := newCache(t, registration.Options{})
		for range 3 {
			get(t, c, b, write)
		}
		assert.Equal(t, registration.Stats{Misses: 3, Uncached: 3}, c.Stats())
		trusting := newCache(t, registration.Options{Trust: true})
		lease, err := trusting.Get(b, write)
		require.NoError(t, err)
		get(t, trusting, b, write)
		assert.ErrorIs(t, trusting.Forget(b[10:11]), rdma.ErrInUse)
		lease.Release()
		require.NoError(t, trusting.Forget(b))
		assert.Equal(t, registration.Stats{Misses: 1, Hits: 1}, trusting.Stats())
		require.NoError(t, unix.Munmap(b))
	}
}

// TestUnmappingStorm: goroutines map and unmap memory concurrently, and the kernel reuses addresses. A registration
// never serves two mappings, because it would refer to the pages of the first.
func TestUnmappingStorm(t *testing.T) {
	c := newCache(t, registration.Options{})
	var mappings atomic.Int64
	var served sync.Map // registration → mapping
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 300 {
				b, mapping := mmap(t, 4096), mappings.Add(1)
				for range 3 {
					lease, err := c.Get(b, write)
					if !assert.NoError(t, err) {
						return
					}
					before, _ := served.LoadOrStore(lease.Registration(), mapping)
					assert.Equal(t, mapping, before)
					lease.Release()
				}
				munmap(t, b)
			}
		})
	}
	all.Wait()
	require.NoError(t, c.Close()) // waits for background work
	s := c.Stats()
	assert.Greater(t, s.Hits, uint64(100), "%+v", s)
	assert.Zero(t, s.Regions)
	left := s.Misses - s.Unmapped - s.Uncached // ended by Close before the background goroutine
	assert.LessOrEqual(t, left, uint64(4), "%+v", s)
}

// BenchmarkWatchedHit is BenchmarkHit of memory whose unmapping the kernel reports.
func BenchmarkWatchedHit(b *testing.B) {
	c := newCache(b, registration.Options{})
	memory := mmap(b, size)
	defer munmap(b, memory)
	b.ReportAllocs()
	for b.Loop() {
		lease, err := c.Get(memory[100:200], write)
		if err != nil {
			b.Fatal(err)
		}
		lease.Release()
	}
}

// BenchmarkUnmap measures the cost of unmapping watched memory, compared with plain memory.
func BenchmarkUnmap(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", watched), func(b *testing.B) {
			c := newCache(b, registration.Options{})
			for b.Loop() {
				b.StopTimer()
				memory := mmap(b, size)
				if watched {
					get(b, c, memory, write)
				} else {
					clear(memory)
				}
				b.StartTimer()
				munmap(b, memory)
			}
		})
	}
}

// TestPrefault: Prefault maps all pages and changes no byte.
func TestPrefault(t *testing.T) {
	b := mmap(t, 9*mib)
	defer munmap(t, b)
	resident := func() (n int) {
		pages := make([]byte, len(b)/os.Getpagesize())
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(address(b)), uintptr(len(b)), uintptr(address(pages)))
		require.Zero(t, errno)
		for _, p := range pages {
			n += int(p & 1)
		}
		return n
	}
	b[3*mib] = 7
	if err := registration.Prefault(b[5:len(b)-5], 3); err != nil {
		require.ErrorIs(t, err, unix.EINVAL, "a kernel before 5.14")
		return
	}
	assert.Equal(t, len(b)/os.Getpagesize(), resident())
	assert.EqualValues(t, 7, b[3*mib])
	require.NoError(t, registration.Prefault(nil, 0))
	require.NoError(t, unix.Mprotect(b, unix.PROT_READ))
	assert.Error(t, registration.Prefault(b, 0))
	c := newCache(t, registration.Options{})
	get(t, c, b, 0)
}
