// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waits has answers come after a time, and returns how many waits polled, how many of these until the answer, and how
// long all of them polled.
func (l *learned) waits(n int, after time.Duration) (polled, met int, spent time.Duration) {
	for range n {
		l.begin()
		for began := time.Now(); time.Since(began) < after; {
			if l.polls() {
				spent += min(time.Microsecond, after)
				time.Sleep(min(time.Microsecond, after))
				continue
			}
			time.Sleep(after - time.Since(began))
		}
		if !l.until.IsZero() {
			if polled++; l.polls() {
				met++
			}
		}
		l.end()
	}
	return polled, met, spent
}

// TestLearned: a connection polls as long as answers take, not for what takes longer, and tries again after a change.
func TestLearned(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled, met, _ := l.waits(100, 100*time.Microsecond)
		assert.Equal(t, 99, polled, "all but the first")
		assert.Equal(t, 99, met)
		polled, met, spent := l.waits(1, time.Minute) // an idle connection sleeps
		assert.Equal(t, 1, polled)
		assert.Zero(t, met)
		assert.Less(t, spent, time.Millisecond)
		polled, _, _ = l.waits(100, 100*time.Microsecond)
		assert.Greater(t, polled, 50, "it learns again")
		l.waits(100, 5*time.Millisecond)
		polled, _, _ = l.waits(1000, 5*time.Millisecond)
		assert.Zero(t, polled, "longer than the most")
		l.waits(100, 20*time.Microsecond)
		polled, met, _ = l.waits(100, 20*time.Microsecond)
		assert.Equal(t, polled, met)
		assert.Equal(t, 100, polled)
	})
}

// TestLearnedGivesUp: what polling does not find in time is slept for, and the more often that happens, the longer.
func TestLearnedGivesUp(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled := 0
		for range 10_000 {
			l.waits(1, 100*time.Microsecond)
			l.mean, l.spread = 10*time.Microsecond, 0 // it has learned too little
			if l.rest == 0 {
				polled++
			}
		}
		assert.Less(t, polled, 30)
	})
}

// TestLearnedNeedsTwo: where one processor runs both ends, polling keeps the answer from coming.
func TestLearnedNeedsTwo(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled, _, _ := l.waits(100, 100*time.Microsecond)
		assert.Zero(t, polled)
	})
}

// TestLearnedStreams: bytes go back and forth, and a connection where nothing comes sleeps.
func TestLearnedStreams(t *testing.T) {
	a, b := softPipe(t, Config{BusyPoll: LearnedBusyPoll})
	go io.Copy(b, onlyReader{b})
	p := make([]byte, 64)
	for range 2000 {
		_, err := a.Write(p)
		require.NoError(t, err)
		_, err = io.ReadFull(a, p)
		require.NoError(t, err)
	}
	assert.Eventually(t, func() bool { return b.reactor.leader.Load() == b }, 10*time.Second, time.Millisecond)
	turns := b.reactor.turns.Load()
	time.Sleep(3 * mostLearned)
	assert.LessOrEqual(t, b.reactor.turns.Load()-turns, uint64(1))
	_, err := a.Write(p)
	require.NoError(t, err)
	_, err = io.ReadFull(a, p)
	require.NoError(t, err)
}
