// SPDX-License-Identifier: BSD-2-Clause

package lock

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// awaitBarriers waits until goroutines can own locks, and reports whether they can. With the race detector, or without
// the assembly or membarrier(2), they cannot.
func awaitBarriers(t testing.TB) bool {
	register()
	for deadline := time.Now().Add(10 * time.Second); ownable && !barrier(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Log("membarrier(2) is not available, so every lock is a mutex")
			return false
		}
	}
	return ownable
}

// TestLockExcludes: only one goroutine holds the lock at a time, with frequent changes of ownership.
func TestLockExcludes(t *testing.T) {
	awaitBarriers(t)
	const owns, turns = 2000, 100 // enough turns to become the owner
	for range 30 {
		var l Lock
		var inside atomic.Int32
		together, count := int32(0), 0
		enter := func() {
			l.Lock()
			together = max(together, inside.Add(1))
			count++
			inside.Add(-1)
			l.Unlock()
		}
		var all sync.WaitGroup
		for g := range 4 {
			all.Go(func() {
				for i := range owns {
					for range turns * (1 - min(i%(g+1), 1)) {
						enter()
					}
					enter()
				}
			})
		}
		all.Wait()
		want := 0
		for g := range 4 {
			want += owns + turns*((owns+g)/(g+1))
		}
		assert.Equal(t, want, count)
		assert.EqualValues(t, 1, together)
	}
}

// TestLockOfAnOwner: a goroutine that locks while the owner locks and unlocks never overlaps with it. Without the
// barrier, some of these rounds fail.
func TestLockOfAnOwner(t *testing.T) {
	awaitBarriers(t)
	rounds := 2000
	if testing.Short() {
		rounds /= 10
	}
	contend(t, rounds)
}

func contend(t *testing.T, rounds int) {
	for range rounds {
		var l Lock
		value, stop := [2]uint64{}, uint32(0)
		owned, done := make(chan struct{}), make(chan uint64)
		go func() {
			n := uint64(0)
			for atomic.LoadUint32(&stop) == 0 {
				l.Lock()
				value[0]++
				value[1]++
				l.Unlock()
				if n++; n == 2*firstTerm {
					close(owned)
				}
			}
			done <- n
		}()
		<-owned
		for range 3 {
			l.Lock()
			a, b := value[0], value[1]
			value[0], value[1] = a+1, b+1
			l.Unlock()
		}
		atomic.StoreUint32(&stop, 1)
		n := <-done
		if !assert.Equal(t, [2]uint64{n + 3, n + 3}, value) {
			return
		}
	}
}

// TestLockTerms: a goroutine that locks repeatedly becomes the owner. Each of the eight terms needs more turns.
func TestLockTerms(t *testing.T) {
	var l Lock
	if !awaitBarriers(t) { // always a mutex
		for range 2 * firstTerm {
			l.Lock()
			assert.False(t, l.mu.TryLock())
			l.Unlock()
		}
		assert.Zero(t, l.owner)
		return
	}
	turns := func() (n int) {
		for l.owner == 0 && n < 1<<24 {
			l.Lock()
			l.Unlock()
			n++
		}
		return n
	}
	other := func() {
		done := make(chan struct{})
		go func() { l.Lock(); l.Unlock(); close(done) }()
		<-done
	}
	for term := range terms {
		assert.Equal(t, firstTerm<<(2*term), turns())
		assert.Equal(t, currentG()|uintptr(term), l.owner)
		l.Lock()
		assert.True(t, l.mu.TryLock(), "the owner does not lock the mutex")
		l.mu.Unlock()
		l.Unlock()
		other()
		assert.Zero(t, l.owner)
	}
	for range firstTerm << (2 * terms) {
		l.Lock()
		l.Unlock()
	}
	assert.Zero(t, l.owner, "after eight owners there is no further one")
}

// TestLockWaitsForItsOwner: Lock blocks as long as the owner holds the lock.
func TestLockWaitsForItsOwner(t *testing.T) {
	awaitBarriers(t)
	var l Lock
	for range firstTerm {
		l.Lock()
		l.Unlock()
	}
	l.Lock()
	var acquired atomic.Bool
	done := make(chan struct{})
	go func() {
		l.Lock()
		acquired.Store(true)
		l.Unlock()
		close(done)
	}()
	time.Sleep(20 * time.Millisecond)
	assert.False(t, acquired.Load())
	l.Unlock()
	<-done
	l.Lock()
	l.Unlock()
	assert.True(t, acquired.Load())
}

func BenchmarkLock(b *testing.B) {
	var l Lock
	for b.Loop() {
		l.Lock()
		l.Unlock()
	}
}
