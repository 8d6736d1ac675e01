// SPDX-License-Identifier: BSD-2-Clause

// Package registration reduces the cost of registering memory. A [Cache] keeps memory registered and finds the
// registration of a slice. [Prefault] and [Parallel] use several processors for large memory.
//
//	cache, err := registration.NewCache(pd, registration.Options{})
//	lease, err := cache.Get(slice, ibv.ACCESS_LOCAL_WRITE)
//	batch.Send(1).Add(lease.SGE(0, 4096)) // post, wait for the completion
//	lease.Release()
//
// # Lookup
//
// A slice is served by a region with the same access flags that contains it. Otherwise the cache registers exactly the
// slice. It does not round to pages or merge neighbors, so that a peer gets access to no other memory. If many small
// slices should share a registration, first get a lease of the memory that contains them. A new region replaces regions
// that it contains.
//
// # Unmapped and reused memory
//
// A memory region keeps the pages that it was registered with. If a program unmaps memory and maps new memory at the
// same address, a device with the old registration accesses the old pages. The same happens if Go's garbage collector
// frees memory and releases its pages. A cache prevents this, depending on the memory:
//
//   - Go's heap: registered memory stays pinned, so its pages stay. The cache therefore keeps memory alive that the
//     program no longer uses, up to the limits in [Options].
//   - An [rdma.Buffer]: Close of the Buffer deregisters it first, and fails while there are leases.
//   - Other private anonymous memory, from mmap or C's malloc: on Linux, userfaultfd(2) reports when it is unmapped,
//     moved or discarded, and the cache drops the region at once. Each hit asks the kernel for pending changes, which
//     takes about 400 ns, and a thread that unmaps such memory waits until the report is read. After madvise(2) with
//     MADV_DONTNEED or MADV_FREE, memory is not cached again until it is unmapped. It is not cached either where
//     userfaultfd is forbidden, by the kernel (before 5.11, for unprivileged programs) or by a system call filter, as in
//     many containers.
//   - Memory with ACCESS_ON_DEMAND: the device follows the page tables, so nothing becomes stale.
//   - Other memory, such as files, shared memory, huge pages from mmap, and package variables: it is registered for
//     each lease and deregistered on release, which is correct but not faster than without a cache. [Stats] counts such
//     leases as Uncached. With Trust in [Options] it is cached, and the program must call [Cache.Forget] before it unmaps
//     or discards the memory.
//
// A cache cannot detect guard pages of madvise(2) (MADV_GUARD_INSTALL, Linux 6.13) in cached memory, pages of Go's heap
// or of a Buffer that the program discards with madvise, or memory that one goroutine unmaps while another has a lease
// of it.
package registration
