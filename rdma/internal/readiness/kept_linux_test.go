// SPDX-License-Identifier: BSD-2-Clause

package readiness

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// keeping returns an FD with KeepThread, a function that makes it readable, and one that reads it.
func keeping(t *testing.T) (r *FD, raise func(), take func() bool) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	r, err = New(int32(fd), "test")
	require.NoError(t, err)
	r.KeepThread(true)
	t.Cleanup(r.Close)
	count := make([]byte, 8)
	return r, func() { _, _ = unix.Write(fd, one) }, func() bool {
		n, _ := unix.Read(fd, count)
		return n > 0
	}
}

func never() bool { return false }

// kepts waits until n threads are blocked.
func kepts(t *testing.T, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return threads.Load() == n }, 10*time.Second, time.Millisecond)
}

// TestKeptThread: a wait ends when try or stop returns true, when its context ends, and when the FD is closed.
func TestKeptThread(t *testing.T) {
	r, raise, take := keeping(t)
	ctx, cancel := context.WithCancel(context.Background())
	type end struct {
		got bool
		err error
	}
	ends := make(chan end, 1)
	stop := make(chan struct{})
	wait := func() {
		got, err := r.Wait(ctx, take, func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
		ends <- end{got, err}
	}
	go wait()
	kepts(t, 1)
	assert.Nil(t, r.own.Load(), "not on the netpoller")
	for range 300 { // pokes without a reason
		r.Poke()
	}
	raise()
	assert.Equal(t, end{true, nil}, <-ends)
	kepts(t, 0)
	go wait()
	kepts(t, 1)
	close(stop)
	r.Poke()
	assert.Equal(t, end{false, nil}, <-ends)
	stop = make(chan struct{})
	go wait()
	kepts(t, 1)
	cancel()
	assert.Equal(t, end{false, nil}, <-ends)
	ctx = context.Background()
	go wait()
	kepts(t, 1)
	r.Close()
	last := <-ends
	assert.False(t, last.got)
	assert.ErrorIs(t, last.err, os.ErrClosed)
	_, err := r.Wait(ctx, take, never)
	assert.ErrorIs(t, err, os.ErrClosed)
}

// TestFewThreadsAreKept: the number of blocked threads is limited. Further waits use the netpoller.
func TestFewThreadsAreKept(t *testing.T) {
	const most = mostThreads
	done := make(chan bool, most+2)
	var raises []func()
	for i := range most + 2 {
		r, raise, take := keeping(t)
		raises = append(raises, raise)
		go func() {
			got, err := r.Wait(context.Background(), take, never)
			done <- got && err == nil
		}()
		if i < most {
			kepts(t, int64(i)+1)
		} else {
			require.Eventually(t, func() bool { return r.own.Load() != nil }, 10*time.Second, time.Millisecond)
		}
	}
	kepts(t, int64(most))
	for _, raise := range raises {
		raise()
	}
	for range raises {
		assert.True(t, <-done)
	}
}

// TestKeptThreadLeavesTheNetpoller: a wait that blocks its thread removes the descriptor from the netpoller, so that an
// event wakes only one thread. A later wait may use the netpoller again.
func TestKeptThreadLeavesTheNetpoller(t *testing.T) {
	r, raise, take := keeping(t)
	ends := make(chan bool, 1)
	wait := func() {
		got, err := r.Wait(context.Background(), take, never)
		ends <- got && err == nil
	}
	for range 3 {
		r.KeepThread(false)
		go wait()
		require.Eventually(t, func() bool { return r.own.Load() != nil }, 10*time.Second, time.Millisecond)
		r.Poke()
		raise()
		assert.True(t, <-ends)
		r.KeepThread(true)
		go wait()
		kepts(t, 1)
		require.Eventually(t, func() bool { return r.own.Load() == nil }, 10*time.Second, time.Millisecond)
		r.Poke()
		raise()
		assert.True(t, <-ends)
		kepts(t, 0)
	}
}
