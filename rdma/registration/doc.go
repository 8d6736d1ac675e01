// SPDX-License-Identifier: BSD-2-Clause

// Package registration saves the time that registering memory takes: a [Cache] keeps memory registered and finds the
// registration of a slice again; [Prefault] and [Parallel] use several processors for large memory.
//
//	cache, err := registration.NewCache(pd, registration.Options{})
//	lease, err := cache.Get(slice, ibv.ACCESS_LOCAL_WRITE)
//	batch.Send(1).Add(lease.SGE(0, 4096)) // post, wait for the completion
//	lease.Release()
//
// # What a cache finds
//
// A region with the same access flags that contains the slice serves it. Otherwise the cache registers exactly the
// slice: it rounds nothing to pages and joins no neighbours, so that a peer gets no right to memory that was not named.
// To have many small slices share one registration, get a lease of the large one that they are parts of first. A new
// region takes the place of those that it contains.
//
// # Memory that is unmapped or reused
//
// A memory region keeps the pages that it was registered with. If a program unmaps memory and maps new memory at the
// same address, a device that uses the old registration reads and writes pages that nobody sees any more. So it does if
// Go's garbage collector frees memory and gives its pages back. A cache never does that to a caller of Get:
//
//   - A slice of Go's heap stays pinned as long as the cache has it registered, so its pages stay. The price is that
//     the cache keeps memory alive which the program has dropped, up to the limits in [Options].
//   - A part of an [rdma.Buffer]: Close of the Buffer deregisters it first, and fails while there are leases.
//   - Other private memory without a file, as of mmap or C's malloc: on Linux, userfaultfd(2) reports what unmaps,
//     moves or discards it, and the cache forgets the region at once. Each hit asks the kernel whether a change is
//     under way, which takes some 400 ns more, and a thread that unmaps such memory waits for the report to be read.
//     After madvise(2) with MADV_DONTNEED or MADV_FREE, memory is not cached again until it has been unmapped. It is
//     not cached either if the kernel (before 5.11, for programs without privileges) or a filter of system calls
//     forbids userfaultfd, as in many containers.
//   - With ACCESS_ON_DEMAND, the device follows the page tables, and nothing can become stale.
//   - All other memory, as of files, shared memory, huge pages from mmap, and variables of packages, is registered for
//     each lease and deregistered at its release: correct, and as slow as without a cache. [Stats] counts such leases
//     as Uncached. With Trust in [Options] it is cached as well, and the program has to call [Cache.Forget] before it
//     unmaps or discards such memory.
//
// What no cache can see: guard pages of madvise(2) (MADV_GUARD_INSTALL, Linux 6.13) over memory that is cached, a
// program that discards pages of Go's heap or of a Buffer with madvise itself, and memory that one goroutine unmaps
// while another one has a lease of it.
package registration
