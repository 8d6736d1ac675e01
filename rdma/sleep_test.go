// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	goruntime "runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/wakeup"
	"github.com/goverbs/goverbs/runtime"
)

// newSleeper returns two functions: round calls wait in another goroutine and post once it sleeps; end stops the
// goroutine.
func newSleeper(ch *CompChannel, wait func() error, post func()) (round, end func()) {
	begin, done := make(chan struct{}), make(chan error)
	go func() {
		defer close(done)
		for range begin {
			done <- wait()
		}
	}()
	round = func() {
		begin <- struct{}{}
		for len(ch.ready.Turn) == 0 {
			goruntime.Gosched()
		}
		for range 20 { // usually enough for it to sleep
			goruntime.Gosched()
		}
		post()
		if err := <-done; err != nil {
			panic(err)
		}
	}
	return round, func() {
		close(begin)
		<-done
	}
}

// A sleeping wait of any kind does not allocate if it uses the context of the previous wait.
func TestSleepDoesNotAllocate(t *testing.T) {
	if !runtime.Fast {
		t.Skip("calls of this build go through purego, which allocates")
	}
	if underRaceDetector {
		t.Skip("the race detector drops pool entries at random")
	}
	e := selfConnected(t, ibv.QPT_RC)
	if wakeup.Of(e.channel.C().FD) != nil {
		t.Skip("the substitute for descriptors on this platform allocates")
	}
	solicited, err := NewSendBatch(1, 1, 0)
	closeAtEnd(t, solicited, err)
	solicited.Send(1).Flags(ibv.SEND_SIGNALED | ibv.SEND_SOLICITED)
	e.recv.Reset()
	e.recv.Recv(2)
	writes := func(e *testQP) func() {
		return func() {
			if _, err := e.qp.PostSend(emptyWrites(e.send, 1, 1)); err != nil {
				panic(err)
			}
		}
	}
	polled := selfConnected(t, ibv.QPT_RC)
	p := newPoller[*testQP](t, polled, 16)
	dst := make([]Completed[*testQP], 4)
	calls := newSoftCalls(t)
	long, cancel := context.WithCancel(context.Background())
	defer cancel()
	type key struct{}
	for name, ctx := range map[string]context.Context{"no cancellation": context.Background(), "cancellation": long,
		"cancellation and a value": context.WithValue(long, key{}, 1)} {
		assertNoAllocs := func(kind string, round, end func()) {
			assert.Zero(t, testing.AllocsPerRun(200, round), "%s, a context with %s", kind, name)
			end()
		}
		round, end := newSleeper(polled.channel, func() error { _, err := p.Wait(ctx, dst); return err }, writes(polled))
		assertNoAllocs("Poller.Wait", round, end)
		for kind, wait := range map[string]func() (int, error){
			"CQ.Wait": func() (int, error) { return e.cq.Wait(ctx, e.wcs) },
			"CompChannel.Wait": func() (int, error) {
				if err := e.cq.ReqNotify(false); err != nil {
					return 0, err
				}
				if _, err := e.channel.Wait(ctx); err != nil {
					return 0, err
				}
				return e.cq.Poll(e.wcs)
			},
		} {
			round, end := newSleeper(e.channel, func() error { _, err := wait(); return err }, writes(e))
			assertNoAllocs(kind, round, end)
		}
		round, end = newSleeper(e.channel, func() error {
			n, err := e.cq.WaitSolicited(ctx, e.wcs)
			for n < 2 && err == nil { // the other completion, of the send or the receive
				var more int
				more, err = e.cq.Poll(e.wcs)
				n += more
			}
			return err
		}, func() {
			_, err := e.qp.PostRecv(e.recv)
			if err == nil {
				_, err = e.qp.PostSend(solicited)
			}
			if err != nil {
				panic(err)
			}
		})
		assertNoAllocs("CQ.WaitSolicited", round, end)
		round, end = calls(ctx)
		assertNoAllocs("Call.Wait", round, end)
	}
}

// newSoftCalls returns a function that calls newSleeper for a Call.Wait with the given context.
func newSoftCalls(t *testing.T) func(ctx context.Context) (round, end func()) {
	e := selfConnected(t, ibv.QPT_RC)
	calls, err := NewCalls(e.cq, 4, nil)
	closeAtEnd(t, calls, err)
	return func(ctx context.Context) (round, end func()) {
		ids := make(chan uint64, 1)
		return newSleeper(e.channel, func() error {
			call, err := calls.Begin()
			if err != nil {
				return err
			}
			ids <- call.ID()
			_, err = call.Wait(ctx)
			return err
		}, func() {
			if _, err := e.qp.PostSend(emptyWrites(e.send, <-ids, 1)); err != nil {
				panic(err)
			}
		})
	}
}

// A wait that sleeps reads the channel only once, after the event has arrived.
func TestSleepReadsChannelOnce(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	reads, get := 0, e.channel.get
	e.channel.get = func() bool {
		reads++
		return get()
	}
	round, end := newSleeper(e.channel, func() error { _, err := e.cq.Wait(timeout(t), e.wcs); return err },
		func() { e.write(1, 1) })
	defer end()
	const n = 100
	for range n {
		round()
	}
	assert.LessOrEqual(t, reads, n)
}

// An unread event is read before the queue is armed, because devices may raise no further event until then.
func TestSleepReadsPendingEvent(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	look := func() bool {
		e.cq.sleeper = sleeper{to: into{wcs: e.wcs}}
		return e.cq.readable()
	}
	leave := func() {
		t.Helper()
		require.NoError(t, e.cq.ReqNotify(false))
		e.write(1, 1)
		n, err := e.cq.Poll(e.wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	take := func(want *CQ) {
		t.Helper()
		require.True(t, e.cq.sleeper.got)
		cq, err := e.channel.ackEvent()
		require.NoError(t, err)
		require.Equal(t, want, cq)
	}
	require.NoError(t, e.channel.ready.SetNonblock()) // CQ.Wait does this
	leave()
	assert.False(t, look())
	assert.False(t, e.channel.get(), "an event was left unread")
	assert.True(t, e.cq.queue.armed.Load())
	e.write(2, 1)
	require.True(t, e.cq.readable(), "after a sleep")
	assert.Equal(t, 1, e.cq.sleeper.n)
	assert.False(t, look())

	other, err := e.pd.Device().CreateCQ(4, e.channel, 0)
	require.NoError(t, err)
	require.NoError(t, other.ReqNotify(false))
	qp, err := e.pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: other.Ptr(), RecvCQ: other.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{})
	require.NoError(t, err)
	connectToSelf(t, qp)
	_, err = qp.PostSend(emptyWrites(e.send, 1, 1))
	require.NoError(t, err)
	require.True(t, look(), "event of another queue")
	take(other)
	require.NoError(t, qp.Close())
	require.NoError(t, other.Close())
}

// A wait does not read the event that wakes it. ReqNotify reads that event before it arms the queue.
func TestSleepLeavesEvent(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	round, end := newSleeper(e.channel, func() error { _, err := e.cq.Wait(t.Context(), e.wcs); return err },
		func() { e.write(1, 1) })
	defer end()
	for range 20 {
		round()
		require.NoError(t, e.cq.ReqNotify(false))
		assert.False(t, e.channel.get(), "ReqNotify left the event of the wait unread")
		e.write(2, 1)
		cq, err := e.channel.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, e.cq, cq)
		n, err := e.cq.Poll(e.wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
}

// A wait's context becomes collectable once the context ends, another wait begins, or the queue is closed.
func TestSleepReleasesContext(t *testing.T) {
	type big struct{ memory [1 << 10]byte }
	type key struct{}
	e := selfConnected(t, ibv.QPT_RC)
	wait := func(cq *CQ, cancelled bool) weak.Pointer[big] {
		v := &big{}
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, v))
		var posting sync.WaitGroup // the batch is reused
		defer posting.Wait()
		posting.Go(func() {
			for len(cq.channel.ready.Turn) == 0 {
				goruntime.Gosched()
			}
			if cancelled {
				cancel()
			} else {
				e.write(1, 1)
			}
		})
		if _, err := cq.Wait(ctx, e.wcs); cancelled {
			assert.ErrorIs(t, err, context.Canceled)
		} else {
			assert.NoError(t, err)
		}
		return weak.Make(v)
	}
	gone := func(p weak.Pointer[big]) bool {
		goruntime.GC()
		return p.Value() == nil
	}
	soonGone := func(p weak.Pointer[big], when string) {
		t.Helper()
		assert.Eventually(t, func() bool { return gone(p) }, 10*time.Second, time.Millisecond, when)
	}
	soonGone(wait(e.cq, true), "the context has ended")
	a := wait(e.cq, false)
	b := wait(e.cq, false)
	soonGone(a, "another goroutine waits")
	if wakeup.Of(e.channel.C().FD) == nil { // a software descriptor holds no context
		assert.False(t, gone(b), "the channel must hold the context for this test")
	}
	require.NoError(t, e.qp.Close())
	require.NoError(t, e.cq.Close())
	soonGone(b, "the queue is closed")
}

// oddContext is a context that cannot be compared and is unknown to package context.
type oddContext struct {
	context.Context
	all  []int
	over chan struct{}
}

func (c oddContext) Done() <-chan struct{} { return c.over }

func (c oddContext) Err() error {
	select {
	case <-c.over:
		return context.Canceled
	default:
		return nil
	}
}

// Canceling a context of any kind ends the wait, even if the previous wait used the same context.
func TestAnyContextEndsSleep(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	for range 100 {
		ctx := oddContext{context.Background(), nil, make(chan struct{})}
		var ends sync.WaitGroup
		for i := range 3 {
			round, end := newSleeper(e.channel, func() error { _, err := e.cq.Wait(ctx, e.wcs); return err },
				func() { e.write(uint64(i), 1) })
			round()
			end()
		}
		ends.Go(func() { close(ctx.over) })
		_, err := e.cq.Wait(ctx, e.wcs)
		assert.ErrorIs(t, err, context.Canceled)
		_, err = e.channel.Wait(ctx)
		assert.ErrorIs(t, err, context.Canceled)
		ends.Wait()
	}
}
