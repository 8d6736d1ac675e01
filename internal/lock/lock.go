// SPDX-License-Identifier: BSD-2-Clause

// Package lock provides a lock for queues that is cheap for a goroutine that takes it repeatedly, and stores with
// release semantics. It uses an instruction or two of assembly.
package lock

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Lock is a sync.Mutex for a queue that usually one goroutine uses. After some turns it belongs to that goroutine,
// which then takes it with a few plain loads and stores; a mutex needs two atomic operations, which cost more than a
// call of C. If another goroutine takes the lock, it ends the ownership, waits until the owner has released the lock,
// and executes a memory barrier in every thread, which takes microseconds. To keep these rare, each new owner needs
// more turns in a row than the previous one, and after eight owners the lock stays a mutex.
//
// It is a mutex from the start under the race detector, and if the assembly or membarrier(2) is missing. The zero
// value is ready for use. A Lock must not be copied.
type Lock struct {
	owner uintptr // the owning goroutine, and in the low bits the number of its term; 0 for none
	held  uintptr // guarded by the lock itself: offset of the owner's word of inside, or 0 if mu is locked
	// inside has a word for each term: nonzero while the term's owner has the lock, or is about to check whether the
	// term has ended. Separate words ensure that an owner that notices the end of its term late does not affect the
	// next term.
	inside [terms]uint32

	mu    sync.Mutex
	last  uintptr // mu guards these three. The goroutine that took the lock last
	turns uint32  // how often it took the lock in a row
	term  uint32  // number of the next term
}

const (
	terms     = 8  // limited by the low bits that are free in the address of a g
	firstTerm = 64 // turns in a row that make an owner; four times as many for each later term
	termMask  = terms - 1
)

// Lock takes the lock. It blocks while another goroutine has it.
func (l *Lock) Lock() { take(l) }

// Unlock releases the lock. Only the goroutine that took it may call Unlock.
func (l *Lock) Unlock() {
	if h := l.held; h != 0 {
		storeRelease((*uint32)(unsafe.Add(unsafe.Pointer(l), h)), 0)
	} else {
		unlockSlow(l)
	}
}

//go:noinline
func unlockSlow(l *Lock) { l.mu.Unlock() }

// lockSlow takes the lock for a goroutine that does not own it. The assembly jumps here.
func lockSlow(l *Lock) {
	l.mu.Lock()
	g := currentG()
	if l.owner != 0 {
		l.dispossess()
	}
	l.held = 0
	if l.last != g {
		l.last, l.turns = g, 0
		register()
	}
	if l.turns++; l.term < terms && l.turns == firstTerm<<(2*l.term) {
		if barrier() {
			atomic.StoreUintptr(&l.owner, g|uintptr(l.term))
			l.term++
		} else {
			l.turns = 0 // membarrier(2) may work later
		}
	}
}

// dispossess ends a term and waits until its owner has released the lock. The owner first writes that it is inside and
// then checks whether its term has ended; this goroutine first ends the term and then checks whether the owner is
// inside. The barrier separates the two steps on both sides, so at least one of them sees the other.
func (l *Lock) dispossess() {
	inside := &l.inside[l.owner&termMask]
	atomic.StoreUintptr(&l.owner, 0)
	if !barrier() { // a filter of system calls forbids it since the term began; every store is visible after this time
		time.Sleep(time.Millisecond)
	}
	for looked := 0; atomic.LoadUint32(inside) != 0; looked++ {
		if looked < 100 {
			goruntime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	l.last, l.turns = 0, 0
}
