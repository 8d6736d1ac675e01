// SPDX-License-Identifier: BSD-2-Clause

// Package registration reduces the cost of registering memory: a [Cache] keeps memory registered and finds the
// registration of a slice; [Prefault] and [Parallel] use several processors for large memory.
//
//	cache, err := registration.NewCache(pd, registration.Options{})
//	lease, err := cache.Get(slice, ibv.ACCESS_LOCAL_WRITE)
//	batch.Send(1).Add(lease.SGE(0, 4096)) // post, wait for the completion
//	lease.Release()
//
// # Lookup
//
// A region with the same access flags that contains the slice serves it. Otherwise the cache registers exactly the
// slice: it does not round to pages or merge neighbors, so that a peer gets access to no other memory. To share one
// registration among many small slices, get a lease of the memory that contains them first. A new region replaces those
// that it contains.
//
// # Unmapped and reused memory
//
// A memory region keeps the pages that it was registered with. If a program unmaps memory and maps new memory at the
// same address, a device with the old registration accesses the old pages. The same happens if Go's garbage collector
// frees memory and releases its pages. A cache prevents this:
//
//   - A slice of Go's heap stays pinned while the cache has it registered, so its pages stay. So the cache keeps memory alive
//     that the program no longer uses, up to the limits in [Options].
//   - A part of an [rdma.Buffer]: Close of the Buffer deregisters it first, and fails while there are leases.
//   - Other private anonymous memory, of mmap or C's malloc: on Linux, userfaultfd(2) reports when it is unmapped, moved or
//     discarded, and the cache drops the region at once. Each hit asks the kernel for pending changes, which takes about 400
//     ns, and a thread that unmaps such memory waits until the report is read. After madvise(2) with MADV_DONTNEED or
//     MADV_FREE, memory is not cached again until it is unmapped. It is not cached either if userfaultfd is forbidden by the
//     kernel (before 5.11, for unprivileged programs) or a system call filter, as in many containers.
//   - With ACCESS_ON_DEMAND, the device follows the page tables, and nothing can become stale.
//   - Other memory, such as files, shared memory, huge pages of mmap, and package variables, is registered for each lease and
//     deregistered at its release, which is correct but not faster than without a cache. [Stats] counts such leases as
//     Uncached. With Trust in [Options] it is cached, and the program must call [Cache.Forget] before it unmaps or discards
//     the memory.
//
// No cache can detect guard pages of madvise(2) (MADV_GUARD_INSTALL, Linux 6.13) in cached memory, a program that
// discards pages of Go's heap or of a Buffer with madvise, and memory that one goroutine unmaps while another one has a
// lease of it.
package registration
