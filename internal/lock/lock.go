// SPDX-License-Identifier: BSD-2-Clause

// Package lock provides a lock for queues that is cheap for a goroutine that locks it repeatedly, and stores with
// release semantics. It uses an instruction or two of assembly.
package lock

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Lock is a sync.Mutex for a queue that is usually used by one goroutine. A goroutine that locks it several times in a
// row becomes its owner, and then locks it with a few plain loads and stores; a mutex needs two atomic operations,
// which take longer than calling C. If another goroutine locks it, that goroutine ends the ownership, waits until the
// owner has unlocked, and executes a memory barrier in every thread, which takes microseconds. To keep this rare, each
// further owner needs more turns in a row, and after eight owners the Lock stays a plain mutex.
//
// With the race detector, or without the assembly or membarrier(2), it is always a plain mutex. The zero value is an
// unlocked Lock. A Lock must not be copied.
type Lock struct {
	owner uintptr // the owning goroutine, with the number of its term in the low bits; 0 for no owner
	held  uintptr // guarded by the lock itself: offset of the owner's word in inside, or 0 if mu is locked
	// inside has a word for each term. It is nonzero while the term's owner holds the lock, or is about to check
	// whether the term has ended. Terms have separate words so that an owner that detects the end of its term late does
	// not affect the next term.
	inside [terms]uint32

	mu    sync.Mutex
	last  uintptr // guarded by mu: the goroutine that locked last
	turns uint32  // guarded by mu: how many times in a row it locked
	term  uint32  // guarded by mu: number of the next term
}

const (
	terms     = 8  // limited by the number of free low bits in the address of a g
	firstTerm = 64 // turns in a row before the first ownership; four times as many for each later one
	termMask  = terms - 1
)

// Lock locks l. It blocks while another goroutine holds it.
func (l *Lock) Lock() { take(l) }

// Unlock unlocks l. Only the goroutine that locked it may call Unlock.
func (l *Lock) Unlock() {
	if h := l.held; h != 0 {
		storeRelease((*uint32)(unsafe.Add(unsafe.Pointer(l), h)), 0)
	} else {
		unlockSlow(l)
	}
}

//go:noinline
func unlockSlow(l *Lock) { l.mu.Unlock() }

// lockSlow locks l for a goroutine that does not own it. The assembly jumps here.
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
			l.turns = 0 // try again later: membarrier(2) may work then
		}
	}
}

// dispossess ends a term and waits until its owner has unlocked. The owner first stores that it is inside and then
// checks whether its term has ended; this goroutine first ends the term and then checks whether the owner is inside.
// The barrier separates the two steps on both sides, so at least one side sees the other's store.
func (l *Lock) dispossess() {
	inside := &l.inside[l.owner&termMask]
	atomic.StoreUintptr(&l.owner, 0)
	if !barrier() { // a system call filter may forbid it now; instead, wait until every store is visible
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
