// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// rounds returns the number of rounds for tests of races, usual unless GOVERBS_ROUNDS is set.
func rounds(t testing.TB, usual int) int {
	if text := os.Getenv("GOVERBS_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	return usual
}

// A waiting goroutine gets a completion that arrives at any point between arming, polling again and waiting.
func TestNoLostWakeups(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	n := 1_000_000
	if underRaceDetector || unsafe.Sizeof(uintptr(0)) == 4 { // slower builds
		n /= 20
	}
	n = rounds(t, n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(n)*100*time.Microsecond)
	defer cancel()
	next := make(chan uint64, 1)
	var poster sync.WaitGroup
	defer poster.Wait()
	defer close(next)
	poster.Go(func() {
		for id := range next {
			for spin := rand.IntN(400); spin > 0; spin-- { // until a random point in the other goroutine's Wait
				goruntime.KeepAlive(spin)
			}
			if _, err := e.qp.PostSend(emptyWrites(e.send, id, 1)); err != nil {
				t.Error(err)
			}
		}
	})
	start := time.Now()
	for i := range uint64(n) {
		next <- i
		k, err := e.cq.Wait(ctx, e.wcs[:1])
		require.NoError(t, err, "after %d", i)
		require.Equal(t, 1, k)
		require.Equal(t, i, e.wcs[0].WRID)
	}
	t.Logf("%d times, %v each", n, time.Since(start)/time.Duration(n))
}

// Many goroutines wait on one queue. Each completion goes to one of them, and no completion stays in the queue while a
// goroutine sleeps.
func TestManyWaitOnOneQueue(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	n := rounds(t, 20_000)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute+time.Duration(n)*time.Millisecond)
	defer cancel()
	var waiters sync.WaitGroup
	var got atomic.Int64
	seen := make([]atomic.Bool, n)
	for g := range 8 {
		waiters.Go(func() {
			wcs := make([]ibv.WC, 1+g%2)
			for {
				k, err := e.cq.Wait(ctx, wcs)
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				for _, wc := range wcs[:k] {
					assert.False(t, seen[wc.WRID].Swap(true), "twice")
				}
				if got.Add(int64(k)) == int64(n) {
					cancel()
				}
			}
		})
	}
	for i := 0; i < n; {
		k := min(1+rand.IntN(4), n-i)
		_, err := e.qp.PostSend(emptyWrites(e.send, uint64(i), k))
		if errors.Is(err, syscall.ENOMEM) && ctx.Err() == nil {
			goruntime.Gosched()
			continue
		}
		require.NoError(t, err)
		i += k
	}
	waiters.Wait()
	assert.EqualValues(t, n, got.Load())
}

// Several queues share a channel. A goroutine that reads the event of another queue wakes its waiter. Queues are
// created and closed while events are in flight.
func TestQueuesShareChannel(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	channel, err := d.CreateCompChannel()
	closeAtEnd(t, channel, err)
	ctx := timeout(t)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			batch, err := NewSendBatch(16, 1, 0)
			require.NoError(t, err)
			defer batch.Close()
			for range rounds(t, 2000) / 20 {
				cq, err := d.CreateCQ(32, channel, 0)
				require.NoError(t, err)
				cq.SetBusyPoll(0)
				qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
					Cap: smallCap}, QueueOptions{})
				require.NoError(t, err)
				connectToSelf(t, qp)
				wcs := make([]ibv.WC, 4)
				for i := range uint64(20) {
					_, err := qp.PostSend(emptyWrites(batch, i, 1))
					require.NoError(t, err)
					n, err := cq.Wait(ctx, wcs)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, 1, n)
				}
				// so that another goroutine reads an event of this queue while it closes
				require.NoError(t, cq.ReqNotify(false))
				_, err = qp.PostSend(emptyWrites(batch, 77, 1))
				require.NoError(t, err)
				require.NoError(t, qp.Close())
				require.NoError(t, cq.Close())
			}
		})
	}
	all.Wait()
}

// A wait can be canceled at any moment without losing a completion.
func TestCanceledWaitLosesNoCompletion(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	n := rounds(t, 5000)
	all := timeout(t)
	var waiters sync.WaitGroup
	var got atomic.Int64
	for range 4 {
		waiters.Go(func() {
			wcs := make([]ibv.WC, 2)
			for got.Load() < int64(n) && all.Err() == nil {
				ctx, cancel := context.WithTimeout(all, time.Duration(rand.IntN(100))*time.Microsecond)
				k, err := e.cq.Wait(ctx, wcs)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
					return
				}
				got.Add(int64(k))
			}
		})
	}
	for i := 0; i < n; i++ {
		for _, err := e.qp.PostSend(emptyWrites(e.send, uint64(i), 1)); err != nil; _, err = e.qp.PostSend(e.send) {
			require.ErrorIs(t, err, syscall.ENOMEM)
			time.Sleep(10 * time.Microsecond)
		}
	}
	waiters.Wait()
	assert.EqualValues(t, n, got.Load())
}

// waitAll starts n goroutines that wait, and returns their errors once all are waiting.
func waitAll(e *testQP, n int) (errs chan error) {
	errs = make(chan error, n)
	for range n {
		go func() {
			_, err := e.cq.Wait(context.Background(), make([]ibv.WC, 1))
			errs <- err
		}()
	}
	for e.cq.waiters.Load() < int32(n) {
		goruntime.Gosched()
	}
	return errs
}

func requireEnd(t *testing.T, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(10 * time.Second):
		require.FailNow(t, "a goroutine still waits")
		return nil
	}
}

func TestCloseWakesWaiters(t *testing.T) {
	for range 200 {
		d := openSoft(t)
		channel, err := d.CreateCompChannel()
		require.NoError(t, err)
		cq, err := d.CreateCQ(4, channel, 0)
		require.NoError(t, err)
		const n = 8
		errs := waitAll(&testQP{cq: cq}, n)
		require.NoError(t, cq.Close())
		for range n {
			assert.ErrorIs(t, requireEnd(t, errs), ErrClosed)
		}
		go func() {
			_, err := channel.Wait(context.Background())
			errs <- err
		}()
		time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
		require.NoError(t, channel.Close())
		assert.ErrorIs(t, requireEnd(t, errs), ErrClosed)
	}
}

// The removal of a device ends every wait on queues and channels, including waits that begin later.
func TestDeviceRemovalWhileWaiting(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	a, b := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{}), newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	bare, err := d.CreateCompChannel() // without a completion queue
	closeAtEnd(t, bare, err)
	errs := waitAll(a, 8)
	events := make(chan error, 2)
	for _, channel := range []*CompChannel{b.channel, bare} {
		go func() {
			_, err := channel.Wait(context.Background())
			events <- err
		}()
		for len(channel.ready.Turn) == 0 {
			goruntime.Gosched()
		}
	}
	time.Sleep(time.Millisecond)
	d.notify(AsyncEvent{Type: ibv.EVENT_DEVICE_FATAL})
	for range 8 {
		assert.ErrorIs(t, requireEnd(t, errs), syscall.EIO)
	}
	assert.ErrorIs(t, requireEnd(t, events), syscall.EIO)
	assert.ErrorIs(t, requireEnd(t, events), syscall.EIO)
	_, err = a.cq.Wait(context.Background(), a.wcs)
	assert.ErrorIs(t, err, syscall.EIO)
	_, err = a.cq.WaitBusy(context.Background(), a.wcs)
	assert.ErrorIs(t, err, syscall.EIO)
	_, err = b.channel.Wait(context.Background())
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorIs(t, d.Err(), syscall.EIO)
}

// An error of one queue ends its current and later waits, while waits on other queues of the channel continue.
func TestBrokenQueueEndsItsWaits(t *testing.T) {
	d := openSoft(t)
	channel, err := d.CreateCompChannel()
	closeAtEnd(t, channel, err)
	other, err := d.CreateCQ(4, channel, 0)
	require.NoError(t, err)
	others := waitAll(&testQP{cq: other}, 1)
	for len(channel.ready.Turn) == 0 { // until the reader of the events waits for the other queue
		goruntime.Gosched()
	}
	for range 500 {
		cq, err := d.CreateCQ(4, channel, 0)
		require.NoError(t, err)
		errs := make(chan error, 4)
		for range 4 {
			go func() {
				_, err := cq.Wait(context.Background(), make([]ibv.WC, 1))
				errs <- err
			}()
		}
		for range rand.IntN(100) {
			goruntime.Gosched()
		}
		cq.broken(ibv.EVENT_CQ_ERR)
		for range 4 {
			assert.ErrorIs(t, requireEnd(t, errs), syscall.EIO)
		}
		require.NoError(t, cq.Close())
	}
	assert.Empty(t, others)
	require.NoError(t, other.Close())
	assert.ErrorIs(t, requireEnd(t, others), ErrClosed)
}

// Events of closed objects contain no object and do not block Close.
func TestEventsOfClosedObjects(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	d := e.pd.Device()
	qp := e.newQP(ibv.QPT_RC, nil, QueueOptions{})
	event := &ibv.AsyncEvent{EventType: ibv.EVENT_QP_FATAL}
	*event.Element.QP() = qp.Ptr()
	assert.Equal(t, qp, d.asyncEvent(event).QP)
	require.NoError(t, qp.Close())
	got := d.asyncEvent(event)
	assert.Nil(t, got.QP)
	assert.Equal(t, ibv.EVENT_QP_FATAL, got.Type)
	d.notify(got)

	d.events.add(AsyncEvent{Type: ibv.EVENT_QP_FATAL, QP: qp}) // simulates a lookup before Close
	got, err := d.Event(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, qp, got.QP)
	assert.ErrorIs(t, got.QP.Modify(&ibv.QPAttr{}, ibv.QP_STATE), ErrClosed)
}
