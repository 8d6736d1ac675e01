// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestAddressGone: requests carry their address, so that a handle may go when its requests were posted. One that is
// gone is read all the same, as libmlx5 reads it, and asked for nothing.
func TestAddressGone(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	qp, err := device.NewUD(rdma.QPParts{PD: pd, Cap: ibv.QPCap{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 1,
		MaxRecvSGE: 1}, Options: rdma.QueueOptions{Unchecked: true}})
	keep(t, qp, err)
	own, err := qp.Endpoint()
	require.NoError(t, err)
	path, err := qp.Path(own)
	require.NoError(t, err)
	receive(t, qp.PostRecv, slices.Repeat([]ibv.SGE{mr.SGE(0, 100)}, 32)...)
	handle := func() *rdma.AH {
		ah, err := pd.CreateAH(&path)
		require.NoError(t, err)
		return ah
	}
	if os.Getenv(envInside) == pathGo { // libmlx5 reads what is at address 0
		b, err := rdma.NewSendBatch(1, 1, 0)
		require.NoError(t, err)
		b.Send(1).UD(0, own.QPNum, own.QKey)
		_, err = qp.PostSend(b)
		assert.ErrorIs(t, err, syscall.EINVAL)
		b.Close()
	}
	gone := handle()
	stale := gone.Ptr()
	require.NoError(t, gone.Close())
	send(t, qp, func(b *rdma.SendBatch) { b.Send(1).UD(stale, own.QPNum, own.QKey).Signaled() })
	ah := handle()
	send(t, qp, func(b *rdma.SendBatch) {
		for range 8 {
			b.Send(1).UD(ah.Ptr(), own.QPNum, own.QKey).Signaled()
		}
	})
	require.NoError(t, ah.Close())
	for range 2 * 9 {
		wc := next(t, qp.SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}

// TestOverrun: a completion queue that has no room for a completion is given up. What it had room for is polled, its
// event tells, and waits end; queue pairs are closed without hanging.
func TestOverrun(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(15, channel, 0)
	keep(t, cq, err)
	qp, err := device.NewRC(rdma.QPParts{CQ: cq, Cap: ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		Options: rdma.QueueOptions{Overcommit: true}})
	keep(t, qp, err)
	connectToItself(t, qp)
	b, err := rdma.NewSendBatch(64, 1, 0)
	keep(t, b, err)
	for i := range 64 {
		b.Write(uint64(i), 0, 0).Signaled()
	}
	_, err = qp.PostSend(b)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	event, err := device.Event(ctx)
	require.NoError(t, err)
	assert.Equal(t, ibv.EVENT_CQ_ERR, event.Type)
	assert.Same(t, cq, event.CQ)
	wcs := make([]ibv.WC, 64)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	assert.EqualValues(t, cq.C().CQE+1, n, "the ring is full")
	for i, wc := range wcs[:n] {
		require.NoError(t, rdma.CompletionErr(&wc))
		require.EqualValues(t, i, wc.WRID)
	}
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	assert.Zero(t, n)
	const given = "the queue has overrun, or failed otherwise; it and its queue pairs have to be closed"
	_, err = cq.Wait(ctx, wcs)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, given)
	_, err = qp.PostSend(b)
	assert.ErrorIs(t, err, syscall.ENOMEM, "those without a completion keep their places")
	err = qp.Drain(ctx)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, given)
	require.NoError(t, ctx.Err())
}

// TestResizedUnderway: a completion queue is resized while goroutines poll it and completions come. Every request
// completes once. The data path in Go refuses, and loses nothing either.
func TestResizedUnderway(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(63, channel, 0)
	keep(t, cq, err)
	const room, requests = 16, 20_000
	qp, err := device.NewRC(rdma.QPParts{CQ: cq, Cap: ibv.QPCap{MaxSendWR: room, MaxRecvWR: 1, MaxSendSGE: 1,
		MaxRecvSGE: 1}})
	keep(t, qp, err)
	connectToItself(t, qp)
	var all sync.WaitGroup
	var mu sync.Mutex
	seen, count := make([]bool, requests), 0
	free := make(chan struct{}, room)
	for range 2 {
		all.Go(func() {
			wcs := make([]ibv.WC, 4)
			for {
				n, err := cq.Poll(wcs)
				mu.Lock()
				assert.NoError(t, err)
				for _, wc := range wcs[:max(n, 0)] {
					assert.NoError(t, rdma.CompletionErr(&wc))
					assert.False(t, seen[wc.WRID], "request %d completed twice", wc.WRID)
					seen[wc.WRID] = true
					count++
					<-free
				}
				done := count == requests || t.Failed()
				mu.Unlock()
				if done {
					return
				}
				if n == 0 {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	all.Go(func() {
		b, err := rdma.NewSendBatch(1, 1, 0)
		assert.NoError(t, err)
		defer b.Close()
		for i := range requests {
			select {
			case free <- struct{}{}:
			case <-time.After(30 * time.Second):
				mu.Lock()
				assert.Fail(t, "completions are missing", "%d of %d", i-count, i)
				mu.Unlock()
				return
			}
			b.Reset()
			b.Write(uint64(i), 0, 0).Signaled()
			if _, err := qp.PostSend(b); !assert.NoError(t, err) {
				return
			}
		}
	})
	resized := 0
	for last := -1; ; { // each resizing takes one place, until something was polled
		mu.Lock()
		now, done := count, count == requests || t.Failed()
		mu.Unlock()
		if done {
			break
		}
		if now == last {
			time.Sleep(time.Microsecond)
			continue
		}
		last = now
		err := cq.Resize([]int{255, 63, 127, 1000}[resized%4])
		if os.Getenv(envInside) == pathGo {
			require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		} else {
			require.NoError(t, err)
		}
		resized++
	}
	all.Wait()
	assert.Greater(t, resized, 10)
}

// TestResetUnderway: a queue pair is moved to RESET and connected again while its requests complete, another queue pair
// completes in the same queue, and a goroutine polls. Each request completes at most once, in order. Of a shared queue,
// every receive comes back, because the queue pair is drained before.
func TestResetUnderway(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	t.Run("own receives", func(t *testing.T) { resetUnderway(t, device, false) })
	t.Run("shared receives", func(t *testing.T) { resetUnderway(t, device, true) })
}

func resetUnderway(t *testing.T, device *rdma.Device, shared bool) {
	pd, err := device.AllocPD()
	keep(t, pd, err)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(255, channel, 0)
	keep(t, cq, err)
	mr, err := pd.RegMR(make([]byte, 2*size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	const room, rounds, mark, receiveID = 16, 300, 999, 1 << 40
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: room, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	var qps [2]*rdma.QP
	for i := range qps {
		parts := rdma.QPParts{PD: pd, CQ: cq, Cap: ibv.QPCap{MaxSendWR: room, MaxSendSGE: 1, MaxRecvWR: room,
			MaxRecvSGE: 1}}
		if shared && i == 0 {
			parts.SRQ, parts.Cap.MaxRecvWR, parts.Cap.MaxRecvSGE = srq, 0, 0
		}
		qps[i], err = device.NewRC(parts)
		keep(t, qps[i], err)
		connectToItself(t, qps[i])
	}
	qp, other := qps[0], qps[1].Num()
	var all sync.WaitGroup
	stop, marked, free := make(chan struct{}), make(chan uint64, rounds), make(chan struct{}, room)
	var received atomic.Int32
	all.Go(func() {
		wcs := make([]ibv.WC, 4)
		var last, lastOther uint64
		for {
			n, err := cq.Poll(wcs)
			if !assert.NoError(t, err) {
				return
			}
			for _, wc := range wcs[:n] {
				if !shared || wc.Status != ibv.WC_WR_FLUSH_ERR { // by the drain
					assert.NoError(t, rdma.CompletionErr(&wc))
				}
				switch {
				case wc.QPNum == other:
					assert.Equal(t, lastOther+1, wc.WRID)
					lastOther = wc.WRID
					<-free
				case wc.WRID == receiveID:
					received.Add(1)
				default:
					assert.Greater(t, wc.WRID, last)
					if last = wc.WRID; last%1000 == mark {
						marked <- last / 1000
					}
				}
			}
			select {
			case <-stop:
				return
			default:
				if n == 0 {
					time.Sleep(time.Microsecond)
				}
			}
		}
	})
	all.Go(func() { // the other queue pair works all the time
		b, err := rdma.NewSendBatch(1, 1, 0)
		assert.NoError(t, err)
		defer b.Close()
		for id := uint64(1); ; id++ {
			select {
			case free <- struct{}{}:
			case <-stop:
				return
			}
			b.Reset()
			b.Write(id, 0, 0).Signaled()
			if _, err := qps[1].PostSend(b); !assert.NoError(t, err) {
				return
			}
		}
	})
	defer all.Wait()
	defer close(stop)
	one, err := rdma.NewRecvBatch(1, 1)
	require.NoError(t, err)
	defer one.Close()
	one.Recv(receiveID).Add(mr.SGE(0, size))
	list, err := rdma.NewSendBatch(room, 1, 0)
	require.NoError(t, err)
	defer list.Close()
	post := qp.PostRecv
	if shared {
		post = srq.PostRecv
	}
	fill := func() (n int) {
		for ; ; n++ {
			if _, err := post(one); err != nil {
				require.ErrorIs(t, err, syscall.ENOMEM)
				return n
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range uint64(rounds) {
		fill()
		list.Reset()
		for i := range uint64(1 + r.IntN(room)) {
			list.Send(1000*round + i + 1).Add(mr.SGE(size, size)).Signaled()
		}
		_, err := qp.PostSend(list)
		require.NoError(t, err)
		if round%2 == 1 { // otherwise the device is at work
			time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		}
		if shared {
			require.NoError(t, qp.Drain(t.Context()))
		}
		require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		connectToItself(t, qp)
		send(t, qp, func(b *rdma.SendBatch) { b.Write(1000*round+mark, 0, 0).Signaled() })
		select {
		case m := <-marked:
			require.Equal(t, round, m)
		case <-time.After(30 * time.Second):
			require.Fail(t, "nothing completes any more")
		}
	}
	fill()
	before := received.Load()
	for i := range uint64(room) {
		send(t, qp, func(b *rdma.SendBatch) { b.Send(1000*rounds + i + 1).Signaled() })
	}
	require.Eventually(t, func() bool { return received.Load() == before+room }, 30*time.Second, time.Millisecond)
	assert.Equal(t, room, fill())
}

// TestSRQLimit: the limit of a shared receive queue is told once, with the receive that goes below it, and again when it
// was set again.
func TestSRQLimit(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	qps, _ := pair(t, device, device.NewRC, rdma.QPParts{PD: pd, SRQ: srq})
	limit := func() uint32 {
		attr, err := srq.Query()
		require.NoError(t, err)
		return attr.SRQLimit
	}
	take := func() {
		send(t, qps[0], func(b *rdma.SendBatch) { b.Send(1).Signaled() })
		next(t, qps[1].RecvCQ())
		next(t, qps[0].SendCQ())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, l := range []uint32{3, 1, 5} {
		receive(t, srq.PostRecv, slices.Repeat([]ibv.SGE{mr.SGE(0, 8)}, 6)...)
		require.NoError(t, srq.Modify(&ibv.SRQAttr{SRQLimit: l}, ibv.SRQ_LIMIT))
		for left := uint32(5); left >= l; left-- {
			take()
			assert.Equal(t, l, limit(), "with %d left", left)
		}
		take()
		assert.Zero(t, limit())
		event, err := device.Event(ctx)
		require.NoError(t, err)
		assert.Equal(t, ibv.EVENT_SRQ_LIMIT_REACHED, event.Type)
		assert.Same(t, srq, event.SRQ)
		for range l - 1 {
			take()
		}
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = device.Event(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "one more event")
}
