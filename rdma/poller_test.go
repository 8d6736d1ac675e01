// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

func newPoller[T any](t testing.TB, e *testQP, tickets int) *Poller[T] {
	p, err := NewPoller[T](e.cq, tickets)
	return closeAtEnd(t, p, err)
}

// A completion returns the value of its ticket and frees the ticket. IDs are not reused.
func TestPollerRoutes(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	p := newPoller[string](t, e, 2)
	dst := make([]Completed[string], 4)
	seen := map[uint64]bool{}
	for range 5 {
		a, err := p.Ticket("a")
		require.NoError(t, err)
		b, err := p.Ticket("b")
		require.NoError(t, err)
		_, err = p.Ticket("c")
		assert.ErrorIs(t, err, syscall.ENOMEM)
		assert.False(t, seen[a] || seen[b] || a == b)
		seen[a], seen[b] = true, true
		e.write(b, 1)
		e.write(a, 1)
		n, err := p.Wait(timeout(t), dst)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		assert.Equal(t, "b", dst[0].Value)
		assert.Equal(t, "a", dst[1].Value)
		assert.True(t, dst[0].Known && dst[1].Known)
		assert.NoError(t, CompletionErr(&dst[0].WC))
		assert.Zero(t, p.Out())
		_, ok := p.Cancel(a)
		assert.False(t, ok, "the ticket is free")
	}
	id, err := p.Ticket("cancelled")
	require.NoError(t, err)
	value, ok := p.Cancel(id)
	assert.True(t, ok)
	assert.Equal(t, "cancelled", value)
	for _, stale := range []uint64{id, 7, ^uint64(0), 1 << 40} { // a stale id and three that were never tickets
		e.write(stale, 1)
		n, err := p.Poll(dst)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		assert.False(t, dst[0].Known)
		assert.Zero(t, dst[0].Value)
		assert.Equal(t, stale, dst[0].WRID)
	}
	newer := []uint64{must(p.Ticket("x")), must(p.Ticket("y"))} // one reuses the slot of the stale ticket
	e.write(id, 1)
	require.Equal(t, 1, must(p.Poll(dst)))
	assert.False(t, dst[0].Known, "a stale completion has no ticket")
	_, ok = p.Cancel(id)
	assert.False(t, ok)
	assert.Equal(t, 2, p.Out())
	for _, id := range newer {
		_, ok = p.Cancel(id)
		assert.True(t, ok)
	}
	_, err = NewPoller[int](e.cq, 1)
	assert.ErrorIs(t, err, ErrInUse)
	assert.ErrorContains(t, e.cq.Close(), "a poller of")
}

// TestConsumersAreNamed: an error about a queue's consumer names the consumer.
func TestConsumersAreNamed(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	for name, create := range map[string]func() (interface{ Close() error }, error){
		"a Poller": func() (interface{ Close() error }, error) { return NewPoller[int](e.cq, 1) },
		"Calls":    func() (interface{ Close() error }, error) { return NewCalls(e.cq, 1, nil) },
	} {
		own, err := create()
		require.NoError(t, err)
		_, err = NewPoller[int](e.cq, 1)
		assert.ErrorContains(t, err, "the queue already has "+name)
		_, err = e.cq.Poll(make([]ibv.WC, 1))
		assert.ErrorContains(t, err, "the queue has "+name+", which receives all completions")
		require.NoError(t, own.Close())
	}
}

// Tickets of requests without a completion are freed by the next completion, by RESET and by Close.
func TestPollerFreesTickets(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	p := newPoller[int](t, e, 64)
	post := func(qp *QP, unsignalled, signalled int) {
		e.send.Reset()
		for i := range unsignalled + signalled {
			id, err := p.Ticket(i)
			require.NoError(t, err)
			if w := e.send.Write(id, 0, 0); i >= unsignalled {
				w.Signaled()
			}
		}
		_, err := qp.PostSend(e.send)
		require.NoError(t, err)
	}
	dst := make([]Completed[int], 8)
	post(e.qp, 5, 1)
	assert.Equal(t, 6, p.Out())
	n, err := p.Poll(dst)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, 5, dst[0].Value)
	assert.Zero(t, p.Out())

	post(e.qp, 3, 0)
	assert.Equal(t, 3, p.Out())
	require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	assert.Zero(t, p.Out(), "RESET frees tickets")

	later := connectToSelf(t, e.newQP(ibv.QPT_RC, nil, QueueOptions{}))
	post(later, 3, 0)
	require.NoError(t, later.Close())
	assert.Zero(t, p.Out(), "Close frees tickets")

	failing := connectToSelf(t, e.newQP(ibv.QPT_RC, nil, QueueOptions{})) // all requests after a failure complete
	post(failing, 2, 0)
	id, err := p.Ticket(7)
	require.NoError(t, err)
	e.send.Reset()
	e.send.Write(id, 0, 0x999).SGE(1, 1, 0x999)
	_, err = failing.PostSend(e.send)
	require.NoError(t, err)
	n, err = p.Poll(dst)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.True(t, dst[0].Known)
	assert.Equal(t, 7, dst[0].Value)
	assert.Error(t, CompletionErr(&dst[0].WC))
	assert.Zero(t, p.Out(), "requests before a completion have succeeded")
	require.NoError(t, failing.Close())

	stays := connectToSelf(t, e.newQP(ibv.QPT_RC, nil, QueueOptions{}))
	post(stays, 0, 2)
	require.NoError(t, stays.Close())
	assert.Equal(t, 2, p.Out(), "their completions have not been polled")
	again := connectToSelf(t, e.newQP(ibv.QPT_RC, nil, QueueOptions{})) // may reuse the number
	post(again, 0, 1)
	n, err = p.Poll(dst) // completions kept by Close
	require.NoError(t, err)
	more, err := p.Poll(dst[n:])
	require.NoError(t, err)
	require.Equal(t, 3, n+more)
	for i, want := range []int{0, 1, 0} {
		assert.True(t, dst[i].Known)
		assert.Equal(t, want, dst[i].Value)
	}
	require.NoError(t, again.Close())
	require.NoError(t, p.Close())
	_, err = p.Poll(dst)
	assert.ErrorIs(t, err, ErrClosed)
}

func TestPollerDoesNotAllocate(t *testing.T) {
	if !runtime.Fast {
		t.Skip("calls of this build go through purego, which allocates")
	}
	e := selfConnected(t, ibv.QPT_RC)
	p := newPoller[*testQP](t, e, 16)
	dst := make([]Completed[*testQP], 4)
	ctx := context.Background()
	post := func(id uint64) {
		if _, err := e.qp.PostSend(emptyWrites(e.send, id, 1)); err != nil {
			panic(err)
		}
	}
	assert.Zero(t, testing.AllocsPerRun(500, func() {
		id, err := p.Ticket(e)
		post(id)
		n, err2 := p.Wait(ctx, dst)
		if err != nil || err2 != nil || n != 1 || dst[0].Value != e {
			panic("no completion")
		}
	}))
	require.NoError(t, p.Close())
	calls, err := NewCalls(e.cq, 16, nil)
	closeAtEnd(t, calls, err)
	assert.Zero(t, testing.AllocsPerRun(500, func() {
		call, err := calls.Begin()
		post(call.ID())
		wc, err2 := call.Wait(ctx)
		if err != nil || err2 != nil || wc.Status != ibv.WC_SUCCESS {
			panic("no completion")
		}
	}))
}

// A poller cannot be closed while a goroutine waits with it. A closed poller issues no tickets.
func TestPollerCloseWhileWaiting(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	p := newPoller[int](t, e, 4)
	ctx, cancel := context.WithCancel(timeout(t))
	waited := make(chan error, 1)
	go func() {
		_, err := p.Wait(ctx, make([]Completed[int], 1))
		waited <- err
	}()
	require.Eventually(t, func() bool { return e.cq.waiters.Load() > 0 }, 10*time.Second, time.Millisecond)
	err := p.Close()
	assert.ErrorIs(t, err, ErrInUse)
	assert.ErrorIs(t, err, syscall.EBUSY)
	_, err = p.Ticket(1)
	require.NoError(t, err, "the poller is not closed")
	cancel()
	assert.ErrorIs(t, requireEnd(t, waited), context.Canceled)
	require.NoError(t, p.Close())
	_, err = p.Ticket(1)
	assert.ErrorIs(t, err, ErrClosed)
	_, err = p.Wait(timeout(t), make([]Completed[int], 1))
	assert.ErrorIs(t, err, ErrClosed)
	newPoller[int](t, e, 1)
}

// Data-path operations of objects do not allocate.
func TestObjectsDoNotAllocate(t *testing.T) {
	if !runtime.Fast {
		t.Skip("calls of this build go through purego, which allocates")
	}
	e := selfConnected(t, ibv.QPT_RC)
	srq, err := e.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	sharing := connectToSelf(t, e.newQP(ibv.QPT_RC, srq, QueueOptions{}))
	closeAtEnd(t, sharing, nil)
	e.send.Reset()
	e.send.Send(1).Signaled()
	e.recv.Reset()
	e.recv.Recv(2)
	ctx := context.Background()
	for name, round := range map[string]func() (int, error){
		"posts and Poll": func() (int, error) {
			_, err := e.qp.PostRecv(e.recv)
			_, err2 := e.qp.PostSend(e.send)
			n, err3 := e.cq.Poll(e.wcs)
			return n, errors.Join(err, err2, err3)
		},
		"a shared receive queue and Wait": func() (int, error) {
			_, err := srq.PostRecv(e.recv)
			_, err2 := sharing.PostSend(e.send)
			n, err3 := e.cq.Wait(ctx, e.wcs)
			return n, errors.Join(err, err2, err3)
		},
		"WaitBusy": func() (int, error) {
			_, err := e.qp.PostRecv(e.recv)
			_, err2 := e.qp.PostSend(e.send)
			n, err3 := e.cq.WaitBusy(ctx, e.wcs)
			return n, errors.Join(err, err2, err3)
		},
	} {
		assert.Zero(t, testing.AllocsPerRun(500, func() {
			if n, err := round(); n != 2 || err != nil {
				panic(err)
			}
		}), name)
	}
}

// Other polls fail while a Poller exists, because the goroutine that waits for the completion would not receive it.
func TestPollsWhilePollerExists(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	p, err := NewPoller[int](e.cq, 4)
	require.NoError(t, err)
	id, err := p.Ticket(7)
	require.NoError(t, err)
	e.send.Reset()
	e.send.Write(id, 0, 0).Signaled()
	_, err = e.qp.PostSend(e.send)
	require.NoError(t, err)
	for name, poll := range map[string]func() (int, error){
		"Poll":                     func() (int, error) { return e.cq.Poll(e.wcs) },
		"Poll with an empty slice": func() (int, error) { return e.cq.Poll(nil) },
		"Wait":                     func() (int, error) { return e.cq.Wait(timeout(t), e.wcs) },
		"WaitSolicited":            func() (int, error) { return e.cq.WaitSolicited(timeout(t), e.wcs) },
		"WaitBusy":                 func() (int, error) { return e.cq.WaitBusy(timeout(t), e.wcs) },
		"PollProgram":              func() (int, error) { _, err := e.cq.PollProgram(new(PollProgram)); return 0, err },
	} {
		n, err := poll()
		assert.Zero(t, n, name)
		assert.ErrorIs(t, err, ErrInUse, name)
		assert.ErrorContains(t, err, "which receives all completions: poll or wait there", name)
	}
	got := make([]Completed[int], 1)
	n, err := p.Wait(timeout(t), got)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, 7, got[0].Value)
	require.NoError(t, p.Close())
	n, err = e.cq.Poll(e.wcs)
	assert.Zero(t, n)
	assert.NoError(t, err, "users may poll the queue again")
}

// A wait with an empty slice fails. It neither returns at once nor hangs.
func TestWaitForZeroCompletions(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	for name, wait := range map[string]func() (int, error){
		"Wait":          func() (int, error) { return e.cq.Wait(timeout(t), nil) },
		"WaitSolicited": func() (int, error) { return e.cq.WaitSolicited(timeout(t), e.wcs[:0]) },
		"WaitBusy":      func() (int, error) { return e.cq.WaitBusy(timeout(t), nil) },
		"Poller.Wait": func() (int, error) {
			p, err := NewPoller[int](e.cq, 4)
			require.NoError(t, err)
			defer p.Close()
			return p.Wait(timeout(t), nil)
		},
	} {
		_, err := wait()
		assert.ErrorIs(t, err, syscall.EINVAL, name)
		assert.ErrorContains(t, err, "the slice for completions is empty", name)
	}
}
