// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	goruntime "runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Many goroutines wait for their requests on several queue pairs that are created and closed. Each gets its own
// completions, in any order.
func TestCallsOfManyGoroutines(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	calls, err := NewCalls(e.cq, 40, func(wc ibv.WC) { t.Error("completion of no call:", wc) })
	closeAtEnd(t, calls, err)
	ctx := timeout(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			batch, err := NewSendBatch(1, 1, 0)
			require.NoError(t, err)
			defer batch.Close()
			for i := range rounds(t, 1000) {
				call, err := calls.Begin()
				if !assert.NoError(t, err) {
					return
				}
				for _, err = e.qp.PostSend(emptyWrites(batch, call.ID(), 1)); errors.Is(err, syscall.ENOMEM); _,
					err = e.qp.PostSend(batch) {
					goruntime.Gosched()
				}
				if !assert.NoError(t, err) {
					return
				}
				if (g+i)%7 == 0 { // canceled by its context, then waited for again
					short, cancel := context.WithTimeout(ctx, time.Nanosecond)
					wc, err := call.Wait(short)
					cancel()
					if err == nil {
						assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
						continue
					}
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
				id := call.ID()
				wc, err := call.Wait(ctx)
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, id, wc.WRID)
			}
		})
	}
	all.Wait()
	assert.Zero(t, calls.poller.Out())
	call, err := calls.Begin()
	require.NoError(t, err)
	call.Cancel()
	assert.Zero(t, calls.poller.Out())
}

// A wait for a request without a completion ends, also in the goroutine that polls.
func TestCallsWithoutCompletion(t *testing.T) {
	e, _ := stalled(t)
	e.cq.SetBusyPoll(0)
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	connectToSelf(t, e.qp)
	calls, err := NewCalls(e.cq, 8, nil)
	closeAtEnd(t, calls, err)
	lost := make(chan error, 3)
	e.recv.Reset()
	for range cap(lost) {
		call, err := calls.Begin()
		require.NoError(t, err)
		e.recv.Recv(call.ID())
		go func() {
			_, err := call.Wait(timeout(t))
			lost <- err
		}()
	}
	_, err = e.qp.PostRecv(e.recv)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.cq.waiters.Load() > 0 }, 10*time.Second, time.Millisecond,
		"one of them sleeps")
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	for range cap(lost) {
		assert.ErrorIs(t, requireEnd(t, lost), ErrNoCompletion)
	}
	assert.Zero(t, calls.poller.Out())
	call, err := calls.Begin() // reuses one of their slots
	require.NoError(t, err)
	connectToSelf(t, e.qp)
	e.write(call.ID(), 1)
	wc, err := call.Wait(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, call.ID(), wc.WRID)
}

// A second wait for a call that has ended fails, even after its slot was reused by another call.
func TestCallEndsOnce(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	calls, err := NewCalls(e.cq, 4, nil)
	closeAtEnd(t, calls, err)
	run := func() Call {
		call, err := calls.Begin()
		require.NoError(t, err)
		e.send.Reset()
		e.send.Write(call.ID(), 0, 0).Signaled()
		_, err = e.qp.PostSend(e.send)
		require.NoError(t, err)
		return call
	}
	over := func(call Call) {
		t.Helper()
		_, err := call.Wait(timeout(t))
		assert.ErrorIs(t, err, ErrClosed)
	}
	first := run()
	wc, err := first.Wait(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, first.ID(), wc.WRID)
	over(first)
	second := run()
	over(first)
	first.Cancel()
	wc, err = second.Wait(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, second.ID(), wc.WRID)

	cancelled, err := calls.Begin()
	require.NoError(t, err)
	waits := make(chan error)
	go func() {
		_, err := cancelled.Wait(timeout(t))
		waits <- err
	}()
	for e.cq.waiters.Load() == 0 {
		goruntime.Gosched()
	}
	cancelled.Cancel()
	over(cancelled)
	over(Call{})
	assert.ErrorIs(t, <-waits, ErrClosed)
}

// Canceling a call wakes the goroutine that waits for it, even if its slot is reused at once.
func TestCancelWhileWaiting(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	e.cq.SetBusyPoll(0)
	calls, err := NewCalls(e.cq, 8, nil)
	closeAtEnd(t, calls, err)
	for range rounds(t, 500) {
		call, err := calls.Begin()
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := call.Wait(timeout(t))
			done <- err
		}()
		for len(calls.turn) == 0 { // until it polls
			goruntime.Gosched()
		}
		call.Cancel()
		next, err := calls.Begin()
		require.NoError(t, err)
		require.ErrorIs(t, <-done, ErrClosed)
		next.Cancel()
	}
}
