// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/internal/readiness"
	"github.com/goverbs/goverbs/rdma/internal/wakeup"
)

func newSignal(t *testing.T) (*readiness.FD, *wakeup.Signal) {
	s := wakeup.New()
	t.Cleanup(s.Close)
	assert.Less(t, s.Number(), int32(-1), "neither a descriptor nor -1")
	fd, err := readiness.New(s.Number(), "a signal")
	require.NoError(t, err)
	assert.True(t, s.Nonblocks())
	return fd, s
}

func neverStop() bool { return false }

// A signal raised before or after a check makes the waiting goroutine check again.
func TestNoSignalIsLost(t *testing.T) {
	fd, s := newSignal(t)
	const n = 20000
	var created, seen atomic.Int64
	turn := make(chan struct{})
	go func() {
		for range n {
			created.Add(1)
			s.Raise()
			<-turn
		}
	}()
	for range n {
		got, err := fd.Wait(t.Context(), func() bool { return created.Load() > seen.Load() }, neverStop)
		require.NoError(t, err)
		require.True(t, got)
		seen.Add(1)
		turn <- struct{}{}
	}
}

func TestPokesAndCloseOfASignal(t *testing.T) {
	fd, s := newSignal(t)
	var stops, tried atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := fd.Wait(t.Context(), func() bool { tried.Add(1); return false },
			func() bool { return stops.Add(1) > 2 })
		done <- err
	}()
	for len(done) == 0 { // a poke takes effect without a waiter, too
		fd.Poke()
	}
	require.NoError(t, <-done)
	assert.EqualValues(t, 3, stops.Load())
	assert.EqualValues(t, 2, tried.Load(), "stop is called before each check")

	go func() {
		_, err := fd.Wait(t.Context(), neverStop, neverStop)
		done <- err
	}()
	fd.Close()
	fd.Close()
	assert.ErrorIs(t, <-done, os.ErrClosed)
	_, err := fd.Wait(t.Context(), func() bool { return true }, neverStop)
	assert.ErrorIs(t, err, os.ErrClosed)

	s.Close()
	assert.Nil(t, wakeup.Of(s.Number()))
	_, err = readiness.New(s.Number(), "a closed signal")
	assert.Error(t, err)
}
