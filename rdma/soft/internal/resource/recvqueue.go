// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"math/bits"
	"runtime/debug"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// RecvQueue holds the posted receives of a queue pair or of a shared receive queue. Positions count receives that were
// ever posted, modulo 2³². A slot is free again when the completion of its receive is polled, as on devices whose
// queues the program's library keeps.
type RecvQueue struct {
	Domain   *Domain // that the entries' keys have to be of
	Capacity uint32
	MaxSGE   uint32
	Posted   uint32
	Taken    uint32
	Freed    atomic.Uint32
	Shared   bool // completions come in any order

	ring []receive
	sges []ibv.SGE // MaxSGE for each place of the ring
	mask uint32
}

type receive struct {
	id   uint64
	sges int32
}

// NewRecvQueue creates a queue with room for a number of receives, each with a number of entries.
func NewRecvQueue(d *Domain, capacity, sges uint32, shared bool) *RecvQueue {
	r := &RecvQueue{Domain: d, MaxSGE: sges, Shared: shared}
	r.Resize(capacity)
	return r
}

// Resize changes the number of receives that fit, and keeps the posted ones.
func (r *RecvQueue) Resize(capacity uint32) {
	size := uint32(1) << bits.Len32(max(capacity, 1)-1)
	ring, sges := make([]receive, size), make([]ibv.SGE, size*r.MaxSGE)
	for i := r.Taken; i != r.Posted; i++ {
		ring[i&(size-1)] = r.ring[i&r.mask]
		copy(sges[(i&(size-1))*r.MaxSGE:][:r.MaxSGE], r.sges[(i&r.mask)*r.MaxSGE:])
	}
	r.ring, r.sges, r.mask, r.Capacity = ring, sges, size-1, capacity
}

// Post posts a list of receives; bad is the one that failed.
func (r *RecvQueue) Post(first, bad uint64) uint64 {
	address, errno := r.copyList(first)
	return TellBad(errno, bad, address)
}

// copyList copies a list to the ring, and returns the receive that failed and the reason. It inlines mem.Try, because
// most lists are short.
func (r *RecvQueue) copyList(first uint64) (address uint64, errno runtime.Errno) {
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
		wr := mem.At[ibv.RecvWR](address)
		if errno = r.copyOne(wr); errno != 0 {
			break
		}
		address = uint64(wr.Next)
	}
	done = true
	return address, errno
}

// copyOne copies a receive to the ring.
func (r *RecvQueue) copyOne(wr *ibv.RecvWR) runtime.Errno {
	n := wr.NumSGE
	switch {
	case n < 0 || uint32(n) > r.MaxSGE || n > 0 && wr.SGList == 0:
		return syscall.EINVAL
	case r.Posted-r.Freed.Load() >= r.Capacity:
		return syscall.ENOMEM
	}
	i := r.Posted & r.mask
	r.ring[i] = receive{wr.WRID, n}
	if n > 0 {
		CopySGEs(r.sges[i*r.MaxSGE:], uint64(wr.SGList), n)
	}
	r.Posted++
	return 0
}

// TellBad stores the address of the first request that was not posted, if any, and returns the error.
func TellBad(errno runtime.Errno, bad, wr uint64) uint64 {
	if errno != 0 && bad != 0 {
		mem.Try(func() { *mem.At[uintptr](bad) = uintptr(wr) })
	}
	return uint64(errno)
}

// Empty reports whether no receive is left.
func (r *RecvQueue) Empty() bool { return r.Taken == r.Posted }

// First returns the first receive, which must exist; Take removes it.
func (r *RecvQueue) First() (id uint64, sges []ibv.SGE) {
	i := r.Taken & r.mask
	return r.ring[i].id, r.sges[i*r.MaxSGE:][:r.ring[i].sges]
}

// Take removes and returns the first receive.
func (r *RecvQueue) Take() { r.Taken++ }

// Retire frees the slots of n receives whose completions were polled, up to the one at a position.
func (r *RecvQueue) Retire(position, n uint32) {
	if r.Shared {
		r.Freed.Add(n)
		return
	}
	FreeUpTo(&r.Freed, position)
}

// FreeUpTo moves the end of the free slots up to a position, but never back: RESET may have freed all of them in
// between.
func FreeUpTo(end *atomic.Uint32, position uint32) {
	for was := end.Load(); int32(position-was) > 0 && !end.CompareAndSwap(was, position); was = end.Load() {
	}
}

// Reset drops all receives without completions.
func (r *RecvQueue) Reset() {
	r.Taken = r.Posted
	r.Freed.Store(r.Posted)
}

// CopySGEs copies n entries of a program. It copies a single entry, the usual case, without calling memmove.
func CopySGEs(to []ibv.SGE, from uint64, n int32) {
	if n == 1 {
		to[0] = *mem.At[ibv.SGE](from)
		return
	}
	copy(to[:n], mem.List[ibv.SGE](from, int(n)))
}

// Room returns the size of the largest posted receive, or 0.
func (r *RecvQueue) Room() (n uint64) {
	for i := r.Taken; i != r.Posted; i++ {
		at := i & r.mask
		n = max(n, Room(r.sges[at*r.MaxSGE:][:r.ring[at].sges]))
	}
	return n
}

// Room returns the total length of entries.
func Room(sges []ibv.SGE) (n uint64) {
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// Slot is the place in a send queue or a receive queue that is freed when a completion is polled. It may be in neither.
type Slot struct {
	Sends    *atomic.Uint32 // the end of the free slots of a send queue
	Receives *RecvQueue
	Position uint32 // behind the request in its queue
}

// IsOf reports whether two slots are in the same queue.
func (s *Slot) IsOf(other *Slot) bool { return s.Sends == other.Sends && s.Receives == other.Receives }

// Retire frees n slots of one queue, up to this one.
func (s *Slot) Retire(n uint32) {
	switch {
	case s.Sends != nil:
		FreeUpTo(s.Sends, s.Position)
	case s.Receives != nil:
		s.Receives.Retire(s.Position, n)
	}
}
