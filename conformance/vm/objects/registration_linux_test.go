// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"fmt"
	"math/bits"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
)

const cached = 1 << 20 // bytes

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// naive is a cache that looks up registrations by address only.
type naive struct {
	pd  *rdma.PD
	all map[uintptr]*rdma.MR
}

func (n *naive) get(t testing.TB, b []byte) ibv.SGE {
	at := addressOf(b)
	if n.all[at] == nil {
		mr, err := n.pd.RegAddress(at, uint64(len(b)), uint64(at), ibv.ACCESS_LOCAL_WRITE)
		n.all[at] = keep(t, mr, err)
	}
	return n.all[at].SGE(0, 16)
}

// mmap maps memory that tests unmap and map again, at an address where neither Go nor the kernel places other mappings.
func mmap(t testing.TB) []byte { return mmapAt(t, 3<<(28+(bits.UintSize-32)/2), 0) }

// mmapAt maps memory at an address. MAP_FIXED replaces existing mappings; MAP_FIXED_NOREPLACE fails if there are any.
func mmapAt(t testing.TB, at uintptr, how int) []byte {
	t.Helper()
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | how
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, at), cached, unix.PROT_READ|unix.PROT_WRITE, flags)
	require.NoError(t, err)
	return unsafe.Slice((*byte)(p), cached)
}

func unmap(t testing.TB, b []byte) {
	t.Helper()
	require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b))))
}

// replacements lists ways to get different pages at the same address.
var replacements = map[string]func(t testing.TB, b []byte) []byte{
	"unmapped and mapped anew": func(t testing.TB, b []byte) []byte {
		unmap(t, b)
		return mmapAt(t, addressOf(b), unix.MAP_FIXED_NOREPLACE)
	},
	"mapped over": func(t testing.TB, b []byte) []byte { return mmapAt(t, addressOf(b), unix.MAP_FIXED) },
	"moved away, mapped anew": func(t testing.TB, b []byte) []byte {
		moved := mmap(t)
		t.Cleanup(func() { unmap(t, moved) })
		_, err := unix.MremapPtr(unsafe.Pointer(&b[0]), cached, unsafe.Pointer(&moved[0]), cached,
			unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		require.NoError(t, err)
		return mmapAt(t, addressOf(b), unix.MAP_FIXED_NOREPLACE)
	},
	"discarded": func(t testing.TB, b []byte) []byte {
		require.NoError(t, unix.Madvise(b, unix.MADV_DONTNEED))
		return b
	},
}

// sender sends memory to the other end of a connection, to observe which bytes a device reads.
type sender struct{ a, b *side }

func newSender(t testing.TB, pd *rdma.PD) sender {
	s := sender{newSide(t, pd, ibv.QPT_RC), newSide(t, pd, ibv.QPT_RC)}
	connect(t, s.a, s.b)
	return s
}

// sees returns the bytes that the device reads from memory.
func (s sender) sees(t testing.TB, name ibv.SGE) string {
	t.Helper()
	s.b.recv(t, 1, s.b.mr.SGE(0, 64))
	s.a.send(t, func(b *rdma.SendBatch) { b.Send(2).Add(name).Signaled() })
	for _, end := range []*side{s.a, s.b} {
		wc := end.completion(t)
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	return string(s.b.mr.Bytes()[:3])
}

// stale returns the data that a device reads through a registration whose pages were replaced: the old data, except on
// the software device, which uses addresses.
func stale(t testing.TB, now string) string {
	if testbed.Kernel(t) == testbed.Soft {
		return now
	}
	return "old"
}

// TestCacheOfChangedMemory checks that with registration.Cache, unlike with a cache by address, the device never reads
// pages that are no longer mapped.
func TestCacheOfChangedMemory(t *testing.T) {
	for name, change := range replacements {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			pd, err := d.AllocPD()
			keep(t, pd, err)
			s := newSender(t, pd)
			cache, err := registration.NewCache(pd, registration.Options{})
			keep(t, cache, err)
			simple := &naive{pd: pd, all: map[uintptr]*rdma.MR{}}
			b := mmap(t)
			t.Cleanup(func() { unmap(t, b) })
			look := func() string {
				lease, err := cache.Get(b, ibv.ACCESS_LOCAL_WRITE)
				require.NoError(t, err)
				defer lease.Release()
				return s.sees(t, lease.SGE(0, 16))
			}
			copy(b, "old")
			for range 2 {
				assert.Equal(t, "old", look())
				assert.Equal(t, "old", s.sees(t, simple.get(t, b)))
			}
			assert.EqualValues(t, 1, cache.Stats().Hits)
			b = change(t, b)
			copy(b, "new")
			assert.Equal(t, stale(t, "new"), s.sees(t, simple.get(t, b)), "the naive cache")
			for range 2 {
				assert.Equal(t, "new", look())
			}
			assert.EqualValues(t, 1, cache.Stats().Unmapped)
		})
	}
}

// TestCacheOfGoMemory checks the same for memory that the garbage collector frees and returns to the kernel, and that
// Go then allocates again.
func TestCacheOfGoMemory(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	s := newSender(t, pd)
	simple := &naive{pd: pd, all: map[uintptr]*rdma.MR{}}
	allocate := func(text string) []byte {
		b := make([]byte, cached)
		copy(b, text)
		return b
	}
	func() {
		var all [8][]byte
		for i := range all {
			all[i] = allocate("old")
			assert.Equal(t, "old", s.sees(t, simple.get(t, all[i])))
		}
		runtime.KeepAlive(all)
	}()
	// Go may place the new object anywhere in the freed memory, and may reuse parts of it before the pages were
	// returned. Find a part with new pages.
	seen := map[string]bool{}
	for others := [][]byte(nil); len(others) < 200 && !seen[stale(t, "new")]; {
		debug.FreeOSMemory()
		b := allocate("new")
		others = append(others, b)
		for old, mr := range simple.all {
			if at := addressOf(b); at < old+cached && old < at+cached {
				reused := b[max(at, old)-at:]
				copy(reused, "new")
				seen[s.sees(t, ibv.SGE{Addr: uint64(addressOf(reused)), Length: 16, LKey: mr.LKey()})] = true
			}
		}
	}
	require.NotEmpty(t, seen, "Go does not use the memory again")
	assert.True(t, seen[stale(t, "new")], "the naive cache makes the device read %v", seen)

	cache, err := registration.NewCache(pd, registration.Options{Regions: 20})
	keep(t, cache, err)
	for i := range 60 {
		text := fmt.Sprintf("%03d", i)
		b := allocate(text)
		for range 2 {
			lease, err := cache.Get(b, ibv.ACCESS_LOCAL_WRITE)
			require.NoError(t, err)
			assert.Equal(t, text, s.sees(t, lease.SGE(0, 16)))
			lease.Release()
		}
		if i%10 == 9 {
			debug.FreeOSMemory()
		}
	}
	assert.Equal(t, 20, cache.Stats().Regions)
	assert.Zero(t, cache.Stats().Uncached)
}

// TestCacheStorm maps memory, reads it through one cache and unmaps it in several goroutines, so that the kernel reuses
// addresses between them.
func TestCacheStorm(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	cache, err := registration.NewCache(pd, registration.Options{})
	keep(t, cache, err)
	var all sync.WaitGroup
	for g := range 3 {
		s := newSender(t, pd)
		all.Go(func() {
			for i := range 50 {
				b := mmap(t)
				text := fmt.Sprintf("%d%02d", g, i)
				copy(b, text)
				for range 2 {
					lease, err := cache.Get(b[:4096], ibv.ACCESS_LOCAL_WRITE)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, text, s.sees(t, lease.SGE(0, 16)))
					lease.Release()
				}
				unmap(t, b)
			}
		})
	}
	all.Wait()
	t.Logf("%+v", cache.Stats())
	assert.Positive(t, cache.Stats().Hits)
}
