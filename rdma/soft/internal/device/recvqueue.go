// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"math/bits"
	"runtime/debug"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// recvQueue holds posted receives: of a queue pair, or shared. Positions count receives that were ever posted, modulo
// 2³². A slot is free again when the completion of its receive is polled, as on devices whose queues the program's
// library keeps.
type recvQueue struct {
	pd       *resource.Domain
	ring     []receive
	sges     []ibv.SGE // maxSGE for each place of the ring
	mask     uint32
	capacity uint32
	maxSGE   uint32
	posted   uint32
	taken    uint32
	freed    atomic.Uint32
	shared   bool // completions come in any order
}

type receive struct {
	id   uint64
	sges int32
}

func newRecvQueue(p *resource.Domain, capacity, sges uint32, shared bool) *recvQueue {
	r := &recvQueue{pd: p, maxSGE: sges, shared: shared}
	r.resize(capacity)
	return r
}

// resize makes room for so many receives, and keeps those that are there.
func (r *recvQueue) resize(capacity uint32) {
	size := uint32(1) << bits.Len32(max(capacity, 1)-1)
	ring, sges := make([]receive, size), make([]ibv.SGE, size*r.maxSGE)
	for i := r.taken; i != r.posted; i++ {
		ring[i&(size-1)] = r.ring[i&r.mask]
		copy(sges[(i&(size-1))*r.maxSGE:][:r.maxSGE], r.sges[(i&r.mask)*r.maxSGE:])
	}
	r.ring, r.sges, r.mask, r.capacity = ring, sges, size-1, capacity
}

// post takes a list of receives; bad is where it stopped.
func (r *recvQueue) post(first, bad uint64) uint64 {
	address, errno := r.copyList(first)
	return tellBad(errno, bad, address)
}

// copyList copies a list to the ring, and tells which receive stopped it, and why. It is mem.Try, written out, because
// most lists are short.
func (r *recvQueue) copyList(first uint64) (address uint64, errno runtime.Errno) {
	address = first
	done, before := false, debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if !done {
			mem.OnlyFault(recover())
			errno = syscall.EFAULT
		}
	}()
	for address != 0 {
		wr := at[ibv.RecvWR](address)
		if errno = r.copyOne(wr); errno != 0 {
			break
		}
		address = uint64(wr.Next)
	}
	done = true
	return address, errno
}

// copyOne copies a receive to the ring.
func (r *recvQueue) copyOne(wr *ibv.RecvWR) runtime.Errno {
	n := wr.NumSGE
	switch {
	case n < 0 || uint32(n) > r.maxSGE || n > 0 && wr.SGList == 0:
		return syscall.EINVAL
	case r.posted-r.freed.Load() >= r.capacity:
		return syscall.ENOMEM
	}
	i := r.posted & r.mask
	r.ring[i] = receive{wr.WRID, n}
	if n > 0 {
		copySGEs(r.sges[i*r.maxSGE:], uint64(wr.SGList), n)
	}
	r.posted++
	return 0
}

// tellBad tells where the first request is that was not posted, if one was not, and why.
func tellBad(errno runtime.Errno, bad, wr uint64) uint64 {
	if errno != 0 && bad != 0 {
		mem.Try(func() { *at[uintptr](bad) = uintptr(wr) })
	}
	return uint64(errno)
}

func (r *recvQueue) empty() bool { return r.taken == r.posted }

// first is the first receive, which is there; take takes it.
func (r *recvQueue) first() (id uint64, sges []ibv.SGE) {
	i := r.taken & r.mask
	return r.ring[i].id, r.sges[i*r.maxSGE:][:r.ring[i].sges]
}

func (r *recvQueue) take() { r.taken++ }

// retire gives back the slots of n receives whose completions were polled, the last of them at a position.
func (r *recvQueue) retire(position, n uint32) {
	if r.shared {
		r.freed.Add(n)
		return
	}
	freeUpTo(&r.freed, position)
}

// freeUpTo moves the end of the free slots up to a position, and never back: RESET, which frees all of them, may come
// in between.
func freeUpTo(end *atomic.Uint32, position uint32) {
	for was := end.Load(); int32(position-was) > 0 && !end.CompareAndSwap(was, position); was = end.Load() {
	}
}

// reset drops everything, without completions.
func (r *recvQueue) reset() {
	r.taken = r.posted
	r.freed.Store(r.posted)
}

// copySGEs copies n entries of a program's: mostly one, for which a call of memmove takes longer than the copy.
func copySGEs(to []ibv.SGE, from uint64, n int32) {
	if n == 1 {
		to[0] = *at[ibv.SGE](from)
		return
	}
	copy(to[:n], list[ibv.SGE](from, int(n)))
}
