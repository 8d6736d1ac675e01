package runtime

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Lock is a sync.Mutex for queues that mostly one goroutine uses: after a while it belongs to that goroutine, which then takes it with a
// few plain loads and stores, where a mutex needs two atomic operations that cost more than a call of C. Another goroutine that takes it
// ends that, waiting until its owner is out, and pays for a barrier in every thread: some microseconds. That is worth it less and less
// often: each owner has to earn the lock by more turns than the one before, and after eight of them it is a mutex for good.
//
// It is a mutex from the start under the race detector, and where the assembly, or membarrier(2), is missing. The zero value is ready; it must not
// be copied.
type Lock struct {
	owner uintptr // the goroutine, and in the low bits the number of its term; 0 for none
	// inside tells of each term whether its owner has the lock, or is about to look whether the term is over. Every term has a word of
	// its own, so that an owner who learns late that its term is over disturbs no other's.
	inside [terms]uint32
	held   uintptr // of who has the lock: where in the record that word is, or 0: mu is locked

	mu    sync.Mutex
	last  uintptr // under mu, all of these: who took it last
	turns uint32  // how often in a row
	term  uint32  // the next
}

const (
	terms     = 8  // at most what the alignment of a goroutine's record leaves free
	firstTerm = 64 // turns in a row that make an owner; four times as many each time
	termMask  = terms - 1
)

// Lock waits until nobody has the lock, and takes it.
func (l *Lock) Lock() { lock(l) }

// Unlock gives the lock back. The goroutine that took it has to call it.
func (l *Lock) Unlock() {
	if h := l.held; h != 0 {
		storeRelease((*uint32)(unsafe.Add(unsafe.Pointer(l), h)), 0)
	} else {
		unlockSlow(l)
	}
}

//go:noinline
func unlockSlow(l *Lock) { l.mu.Unlock() }

// lockSlow is where the assembly goes when the goroutine does not own the lock.
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
			l.turns = 0 // perhaps later
		}
	}
}

// dispossess ends a term. The owner says that it is inside, and then looks whether its term goes on; this goroutine ends the term, and then
// looks whether the owner is inside. The barrier stands between the two steps of either, so that one of them sees the other.
func (l *Lock) dispossess() {
	inside := &l.inside[l.owner&termMask]
	atomic.StoreUintptr(&l.owner, 0)
	if !barrier() { // which a filter of system calls forbids since the term began: no store takes so long to be seen
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
