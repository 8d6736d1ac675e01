// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// loop connects a queue pair to itself.
func loop(t testing.TB, qp *rdma.QP) {
	t.Helper()
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
}

func domain(t testing.TB) *rdma.PD {
	t.Helper()
	pd, err := open(t).AllocPD()
	return keep(t, pd, err)
}

func write(t testing.TB, qp *rdma.QP, b *rdma.SendBatch, id uint64) error {
	b.Reset()
	b.Write(id, 0, 0).Signaled()
	_, err := qp.PostSend(b)
	return err
}

func sendBatch(t testing.TB, n int) *rdma.SendBatch {
	b, err := rdma.NewSendBatch(n, 1, 0)
	return keep(t, b, err)
}

// TestNoLostWakeups checks that a waiting goroutine gets a completion that arrives at any point between arming, polling
// again and waiting.
func TestNoLostWakeups(t *testing.T) {
	const n = 5_000
	s := newSide(t, domain(t), ibv.QPT_RC)
	loop(t, s.qp)
	s.cq.SetBusyPoll(0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	next := make(chan uint64, 1)
	var poster sync.WaitGroup
	defer poster.Wait()
	defer close(next)
	batch := sendBatch(t, 1)
	poster.Go(func() {
		for id := range next {
			for spin := rand.IntN(2000); spin > 0; spin-- {
				goruntime.KeepAlive(spin)
			}
			if err := write(t, s.qp, batch, id); err != nil {
				t.Error(err)
			}
		}
	})
	var elapsed []time.Duration
	for i := range uint64(n) {
		start := time.Now()
		next <- i
		k, err := s.cq.Wait(ctx, s.wcs[:1])
		elapsed = append(elapsed, time.Since(start))
		require.NoError(t, err, "after %d", i)
		require.Equal(t, 1, k)
		require.Equal(t, i, s.wcs[0].WRID)
	}
	slices.Sort(elapsed)
	t.Logf("%d waits: median %v, p99 %v", n, elapsed[n/2], elapsed[n*99/100])
}

// TestQueuesShareChannel creates and closes queues that share a channel, each with a pending event that a waiter on
// another queue may read.
func TestQueuesShareChannel(t *testing.T) {
	pd := domain(t)
	d := pd.Device()
	channel, err := d.CreateCompChannel()
	keep(t, channel, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for range 4 {
		batch := sendBatch(t, 1)
		all.Go(func() {
			for range 25 {
				cq, err := d.CreateCQ(64, channel, 0)
				require.NoError(t, err)
				cq.SetBusyPoll(0)
				qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
					Cap: testbed.Caps}, rdma.QueueOptions{})
				require.NoError(t, err)
				loop(t, qp)
				wcs := make([]ibv.WC, 4)
				for i := range uint64(10) {
					require.NoError(t, write(t, qp, batch, i))
					_, err := cq.Wait(ctx, wcs)
					if !assert.NoError(t, err) {
						return
					}
				}
				require.NoError(t, cq.ReqNotify(false))
				require.NoError(t, write(t, qp, batch, 77))
				require.NoError(t, qp.Close())
				require.NoError(t, cq.Close())
			}
		})
	}
	all.Wait()
}

func TestCloseWakesWaiters(t *testing.T) {
	d := open(t)
	for range 50 {
		channel, err := d.CreateCompChannel()
		require.NoError(t, err)
		cq, err := d.CreateCQ(4, channel, 0)
		require.NoError(t, err)
		errs := make(chan error, 8)
		for range 8 {
			go func() {
				_, err := cq.Wait(context.Background(), make([]ibv.WC, 1))
				errs <- err
			}()
		}
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		require.NoError(t, cq.Close())
		for range 8 {
			assert.ErrorIs(t, <-errs, rdma.ErrClosed)
		}
		require.NoError(t, channel.Close())
	}
}

// TestDrainTimes measures how long it takes to drain full queues, checked and unchecked, and queue pairs with a shared
// receive queue.
func TestDrainTimes(t *testing.T) {
	pd := domain(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, unchecked := range []bool{false, true} {
		cq, err := pd.Device().CreateCQ(64, nil, 0)
		keep(t, cq, err)
		var elapsed []time.Duration
		for range 50 {
			qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				Cap: testbed.Caps}, rdma.QueueOptions{Unchecked: unchecked})
			require.NoError(t, err)
			loop(t, qp)
			recv, err := rdma.NewRecvBatch(16, 1)
			require.NoError(t, err)
			for i := range uint64(16) {
				recv.Recv(i)
			}
			_, err = qp.PostRecv(recv)
			require.NoError(t, err)
			start := time.Now()
			require.NoError(t, qp.Drain(ctx))
			elapsed = append(elapsed, time.Since(start))
			wcs := make([]ibv.WC, 32)
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			assert.Equal(t, 16, n)
			require.NoError(t, qp.Close())
			require.NoError(t, recv.Close())
		}
		slices.Sort(elapsed)
		t.Logf("16 receives, unchecked %v: median %v, longest %v", unchecked, elapsed[25], elapsed[49])
	}
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	cq, err := pd.Device().CreateCQ(64, nil, 0)
	keep(t, cq, err)
	var duration []time.Duration
	for range 6 {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
			Cap: testbed.Caps}, rdma.QueueOptions{})
		require.NoError(t, err)
		loop(t, qp)
		start := time.Now()
		require.NoError(t, qp.Close())
		duration = append(duration, time.Since(start))
	}
	t.Logf("shared receive queue: closed in %v", duration)
	slices.Sort(duration)
	assert.Less(t, duration[2], 400*time.Millisecond, "half a second is the timeout for a missing event; a busy machine may "+
		"add some to others")
}

// TestCloseWithSharedReceives closes queue pairs with a shared receive queue while messages arrive, and checks that no
// receive is lost or completed twice.
func TestCloseWithSharedReceives(t *testing.T) {
	pd := domain(t)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	cq, err := pd.Device().CreateCQ(256, nil, 0)
	keep(t, cq, err)
	recv, err := rdma.NewRecvBatch(64, 1)
	keep(t, recv, err)
	depth := srq.Queue().Free()
	for i := range min(64, depth) {
		recv.Recv(uint64(i) | 1<<32)
	}
	_, err = srq.PostRecv(recv)
	require.NoError(t, err)
	batch := sendBatch(t, 8)
	seen := map[uint64]int{}
	for range 4 {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
			Cap: testbed.Caps}, rdma.QueueOptions{})
		require.NoError(t, err)
		loop(t, qp)
		batch.Reset()
		for i := range uint64(8) {
			batch.Send(i).Signaled()
		}
		_, err = qp.PostSend(batch)
		require.NoError(t, err)
		require.NoError(t, qp.Close())
		wcs := make([]ibv.WC, 64)
		n, err := cq.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			if wc.WRID >= 1<<32 {
				seen[wc.WRID]++
			}
		}
	}
	for id, n := range seen {
		assert.Equal(t, 1, n, id)
	}
	t.Logf("%d receives consumed, %d free of %d", len(seen), srq.Queue().Free(), depth)
	assert.Equal(t, depth-64+len(seen), srq.Queue().Free())
}

// TestCloseDuringUse closes objects from two goroutines while others post, poll, wait, arm, modify, drain and
// create.
func TestCloseDuringUse(t *testing.T) {
	d := open(t)
	for range 20 {
		pd, err := d.AllocPD()
		require.NoError(t, err)
		channel, err := d.CreateCompChannel()
		require.NoError(t, err)
		cq, err := d.CreateCQ(128, channel, 0)
		require.NoError(t, err)
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: testbed.Caps},
			rdma.QueueOptions{})
		require.NoError(t, err)
		loop(t, qp)
		ctx, cancel := context.WithCancel(context.Background())
		var users sync.WaitGroup
		use := func(f func() error) {
			users.Go(func() {
				for {
					if err := f(); errors.Is(err, rdma.ErrClosed) {
						return
					}
					goruntime.Gosched()
				}
			})
		}
		batch := sendBatch(t, 1)
		use(func() error { return write(t, qp, batch, 1) })
		use(func() error { return qp.Drain(ctx) })
		use(func() error { return qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE) })
		use(func() error {
			local, err := qp.Endpoint()
			if err != nil {
				return err
			}
			return qp.Connect(local)
		})
		use(func() error { _, err := cq.Poll(make([]ibv.WC, 2)); return err })
		use(func() error { _, err := cq.Wait(ctx, make([]ibv.WC, 1)); return err })
		use(func() error { return cq.ReqNotify(false) })
		use(func() error {
			qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_UC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				Cap: testbed.Caps}, rdma.QueueOptions{})
			if err == nil {
				err = qp.Close()
			}
			time.Sleep(time.Millisecond) // let the others close objects
			return err
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() {
				assert.NoError(t, qp.Close())
				for _, o := range []closer{cq, pd, channel} {
					for err := o.Close(); err != nil; err = o.Close() {
						if !assert.ErrorIs(t, err, rdma.ErrInUse) { // the current queue pair
							return
						}
						goruntime.Gosched()
					}
				}
			})
		}
		closers.Wait()
		users.Wait()
		cancel()
	}
}

// TestManyQueuePairs creates and connects 10,000 queue pairs (2,000 in a guest of make test) from several goroutines,
// some with work that Close has to drain. It checks that no kernel resources, descriptors or goroutines remain after
// Close.
func TestManyQueuePairs(t *testing.T) {
	testbed.Immediate(t, "queue pairs are closed at once, and what they sent has completed")
	const workers, busy = 4, 50
	n := testbed.Many(10_000, 2_000)
	pd := domain(t)
	caps := ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	cq, err := pd.Device().CreateCQ(2*n, nil, 0)
	keep(t, cq, err)
	before, err := testbed.Resources()
	require.NoError(t, err)
	goroutines, files := goruntime.NumGoroutine(), descriptors(t)
	qps := make([]*rdma.QP, n)
	share := func(each func(i int) error) (elapsed time.Duration) {
		start := time.Now()
		var all errgroup.Group
		for w := range workers {
			all.Go(func() error {
				for i := w; i < n; i += workers {
					if err := each(i); err != nil {
						return fmt.Errorf("queue pair %d: %w", i, err)
					}
				}
				return nil
			})
		}
		require.NoError(t, all.Wait())
		return time.Since(start) / time.Duration(n)
	}
	created := share(func(i int) (err error) {
		qps[i], err = pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: caps},
			rdma.QueueOptions{})
		return err
	})
	local, err := qps[0].Endpoint()
	require.NoError(t, err)
	attr, err := qps[0].ConnectAttr(local) // path resolution is not part of this test
	require.NoError(t, err)
	connected := share(func(i int) error {
		attr := *attr
		attr.DestQPNum = qps[i].Num()
		return qps[i].ConnectWith(&attr)
	})
	now, err := testbed.Resources()
	require.NoError(t, err)
	assert.EqualValues(t, n, now["qp"]-before["qp"], "at once")
	numbers := map[uint32]bool{}
	batch := sendBatch(t, 1)
	for i, qp := range qps {
		numbers[qp.Num()] = true
		if i%busy == 0 {
			require.NoError(t, write(t, qp, batch, uint64(i)))
		}
	}
	assert.Len(t, numbers, n)
	closed := share(func(i int) error { return qps[i].Close() })
	left, err := testbed.Leaks(before)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, cq.Len(), cq.Free())
	// the first queue pairs make a goroutine open the device's event channel
	assert.InDelta(t, files, descriptors(t), 1)
	deadline := time.Now().Add(5 * time.Second)
	for ; goruntime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		// the goroutines of the test take a moment to exit
		if !assert.True(t, time.Now().Before(deadline), "leaked goroutines") {
			break
		}
	}
	wcs := make([]ibv.WC, n/busy+1)
	k, err := cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, n/busy, k, "all posted requests completed")
	for i := range k { // over packets, a queue pair may close before its peer has acknowledged
		if wcs[i].Status != ibv.WC_WR_FLUSH_ERR || os.Getenv("GOVERBS_SOFT_WIRE") == "" {
			require.NoError(t, rdma.CompletionErr(&wcs[i]))
		}
	}
	t.Logf("created in %v, connected in %v, closed in %v each", created, connected, closed)
}

func descriptors(t testing.TB) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}
