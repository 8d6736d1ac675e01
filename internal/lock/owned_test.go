// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !race

package lock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestLockWithoutBarriers: a seccomp filter that is installed during a term does not break mutual exclusion, and
// prevents later terms.
func TestLockWithoutBarriers(t *testing.T) {
	if !awaitBarriers(t) {
		return
	}
	real := membarrier
	defer func() { membarrier = real }()
	var l Lock
	for range firstTerm {
		l.Lock()
		l.Unlock()
	}
	assert.NotZero(t, l.owner)
	membarrier = func(uintptr) bool { return false }
	elapsed := make(chan time.Duration)
	go func() {
		start := time.Now()
		l.Lock()
		elapsed <- time.Since(start)
		l.Unlock()
	}()
	assert.GreaterOrEqual(t, <-elapsed, time.Millisecond, "a wait replaces the barrier")
	l.Lock()
	l.Unlock()
	contend(t, 10)

	var other Lock
	for range 4 * firstTerm {
		other.Lock()
		other.Unlock()
	}
	assert.Zero(t, other.owner)
	membarrier = real
	for range firstTerm {
		other.Lock()
		other.Unlock()
	}
	assert.NotZero(t, other.owner, "ownership is retried")
}
