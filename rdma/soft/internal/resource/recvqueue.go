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

// RecvQueue holds posted receives, of a queue pair or shared. Positions count all posted receives, modulo 2³². A slot
// is freed when the completion of its receive is polled, as on devices whose queues a provider library manages.
type RecvQueue struct {
	Domain   *Domain // required domain of the entries' keys
	Capacity uint32
	MaxSGE   uint32
	Posted   uint32
	Taken    uint32
	Freed    atomic.Uint32
	Shared   bool // completions are in any order

	ring []receive
	mask uint32
}

type receive struct {
	id   uint64
	sges []ibv.SGE // in memory of the place of the ring, for MaxSGE entries
}

// NewRecvQueue returns a queue for capacity receives with up to sges entries each.
func NewRecvQueue(d *Domain, capacity, sges uint32, shared bool) *RecvQueue {
	r := &RecvQueue{Domain: d, MaxSGE: sges, Shared: shared}
	r.Resize(capacity)
	return r
}

// Resize changes the capacity and keeps the receives in the queue.
func (r *RecvQueue) Resize(capacity uint32) {
	size := uint32(1) << bits.Len32(max(capacity, 1)-1)
	ring, sges := make([]receive, size), make([]ibv.SGE, size*r.MaxSGE)
	for i := range ring {
		ring[i].sges, sges = sges[:0:r.MaxSGE], sges[r.MaxSGE:]
	}
	for i := r.Taken; i != r.Posted; i++ {
		to, from := &ring[i&(size-1)], &r.ring[i&r.mask]
		to.id, to.sges = from.id, append(to.sges, from.sges...)
	}
	r.ring, r.mask, r.Capacity = ring, size-1, capacity
}

// Post posts a list of receives, and returns an errno. It stores the address of the first one not posted at bad.
func (r *RecvQueue) Post(first, bad uint64) uint64 {
	address, errno := r.copyList(first)
	return TellBad(errno, bad, address)
}

// copyList copies a list to the ring. It returns the address of the receive that failed, and the reason. It inlines
// mem.Try, because most lists are short.
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
	to := &r.ring[r.Posted&r.mask]
	to.id, to.sges = wr.WRID, to.sges[:n]
	if n > 0 {
		CopySGEs(to.sges, uint64(wr.SGList))
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

// First returns the first receive of a non-empty queue; Take removes it.
func (r *RecvQueue) First() (id uint64, sges []ibv.SGE) {
	e := &r.ring[r.Taken&r.mask]
	return e.id, e.sges
}

// Take removes the first receive.
func (r *RecvQueue) Take() { r.Taken++ }

// Retire frees the slots of n receives whose completions were polled, up to a position.
func (r *RecvQueue) Retire(position, n uint32) {
	if r.Shared {
		r.Freed.Add(n)
		return
	}
	freeUpTo(&r.Freed, position)
}

// freeUpTo moves the end of the free slots forward to a position, never back: RESET may have freed all of them in
// between.
func freeUpTo(end *atomic.Uint32, position uint32) {
	for was := end.Load(); int32(position-was) > 0 && !end.CompareAndSwap(was, position); was = end.Load() {
	}
}

// Reset drops everything, without completions.
func (r *RecvQueue) Reset() {
	r.Taken = r.Posted
	r.Freed.Store(r.Posted)
}

// CopySGEs copies entries of a program, with a fast path for one, for which memmove takes longer than the copy.
func CopySGEs(to []ibv.SGE, from uint64) {
	if len(to) == 1 {
		to[0] = *mem.At[ibv.SGE](from)
		return
	}
	copy(to, mem.List[ibv.SGE](from, len(to)))
}

// Room returns the size of the largest posted receive in bytes, or 0.
func (r *RecvQueue) Room() (n uint64) {
	for i := r.Taken; i != r.Posted; i++ {
		n = max(n, Room(r.ring[i&r.mask].sges))
	}
	return n
}

// Room returns the number of bytes in entries.
func Room(sges []ibv.SGE) (n uint64) {
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// Slot is the slot of a send queue or a receive queue that polling a completion frees, or neither.
type Slot struct {
	Sends    *atomic.Uint32 // end of the free slots of a send queue
	Receives *RecvQueue
	Position uint32 // after the request in its queue
}

// sameQueue reports whether two slots belong to the same queue.
func (s *Slot) sameQueue(other *Slot) bool {
	return s.Sends == other.Sends && s.Receives == other.Receives
}

// Retire frees n slots of a queue, the last of which is s.
func (s *Slot) Retire(n uint32) {
	switch {
	case s.Sends != nil:
		freeUpTo(s.Sends, s.Position)
	case s.Receives != nil:
		s.Receives.Retire(s.Position, n)
	}
}
