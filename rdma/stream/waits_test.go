// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// poll is the duration of a poll.
const poll = 10 * time.Microsecond

// waits simulates n waits for answers that arrive after a time, plus wake if the goroutine sleeps. It returns the
// number of waits that polled, the number of these in which the answer arrived during polling, and the total polling
// time.
func (l *learned) waits(n int, after, wake time.Duration) (polled, met int, spent time.Duration) {
	for range n {
		l.begin()
		for began := time.Now(); time.Since(began) < after; {
			if l.polls() {
				spent += min(poll, after)
				time.Sleep(min(poll, after))
				continue
			}
			time.Sleep(after + wake - time.Since(began))
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

// TestLearned: a connection polls as long as that is faster than sleeping, does not poll for slow replies, and tries
// again after a change.
func TestLearned(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const wake = 30 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled, met, _ := l.waits(1000, 100*time.Microsecond, wake)
		assert.Equal(t, 1000-waitsTried, polled)
		assert.Equal(t, polled, met)
		polled, met, spent := l.waits(1, time.Minute, wake) // an idle connection sleeps
		assert.Equal(t, 1, polled)
		assert.Zero(t, met)
		assert.Less(t, spent, time.Millisecond)
		polled, met, _ = l.waits(1000, 100*time.Microsecond, wake)
		assert.Greater(t, polled, 950, "polling continues")
		assert.Equal(t, polled, met)
		l.waits(100, 2*maxLearned, wake)
		polled, _, _ = l.waits(1000, 2*maxLearned, wake)
		assert.Zero(t, polled, "longer than the maximum")
		l.waits(100, 20*time.Microsecond, wake)
		polled, met, _ = l.waits(1000, 20*time.Microsecond, wake)
		assert.Equal(t, polled, met)
		assert.Greater(t, polled, 950)
		for range 100 { // some answers are late
			l.waits(19, 20*time.Microsecond, wake)
			l.waits(1, time.Millisecond, wake)
		}
		polled, _, _ = l.waits(1000, 20*time.Microsecond, wake)
		assert.Greater(t, polled, 950)
	})
}

// TestLearnedGivesUp: if polling does not help, it is tried less and less often.
func TestLearnedGivesUp(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled, _, _ := l.waits(10_000, 200*time.Microsecond, 5*time.Microsecond)
		assert.Less(t, polled, 100)
		polled, _, _ = l.waits(20_000, 200*time.Microsecond, 100*time.Microsecond)
		assert.Greater(t, polled, 5_000, "polling helps eventually")
		polled, _, _ = l.waits(20_000, 50*time.Microsecond, 0)
		assert.Greater(t, polled, 19_000, "answers arrive soon")
	})
}

// TestLearnedNeedsTwo: with one processor for both sides, polling would delay the answer, so no wait polls.
func TestLearnedNeedsTwo(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		var l learned
		polled, _, _ := l.waits(100, 100*time.Microsecond, 100*time.Microsecond)
		assert.Zero(t, polled)
	})
}

// TestLearnedStreams: echoes arrive with LearnedBusyPoll, and an idle connection sleeps.
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
	assert.Eventually(t, func() bool { return b.poller.leader.Load() == b }, 10*time.Second, time.Millisecond)
	turns := b.poller.turns.Load()
	time.Sleep(3 * maxLearned)
	assert.LessOrEqual(t, b.poller.turns.Load()-turns, uint64(1))
	_, err := a.Write(p)
	require.NoError(t, err)
	_, err = io.ReadFull(a, p)
	require.NoError(t, err)
}
