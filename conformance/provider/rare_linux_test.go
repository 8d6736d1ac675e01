// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestAddressGone closes an address handle after posting requests, which contain a copy of it. Posting with a closed
// handle reads freed memory, like libmlx5, but calls nothing on it.
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
	local, err := qp.Endpoint()
	require.NoError(t, err)
	path, err := qp.Path(local)
	require.NoError(t, err)
	receive(t, qp.PostRecv, slices.Repeat([]ibv.SGE{mr.SGE(0, 100)}, 32)...)
	handle := func() *rdma.AH {
		ah, err := pd.CreateAH(&path)
		require.NoError(t, err)
		return ah
	}
	if os.Getenv(envInside) == pathGo { // libmlx5 dereferences a null pointer
		b, err := rdma.NewSendBatch(1, 1, 0)
		require.NoError(t, err)
		b.Send(1).UD(0, local.QPNum, local.QKey)
		_, err = qp.PostSend(b)
		assert.ErrorIs(t, err, syscall.EINVAL)
		b.Close()
	}
	removed := handle()
	stale := removed.Ptr()
	require.NoError(t, removed.Close())
	send(t, qp, func(b *rdma.SendBatch) { b.Send(1).UD(stale, local.QPNum, local.QKey).Signaled() })
	ah := handle()
	send(t, qp, func(b *rdma.SendBatch) {
		for range 8 {
			b.Send(1).UD(ah.Ptr(), local.QPNum, local.QKey).Signaled()
		}
	})
	require.NoError(t, ah.Close())
	for range 2 * 9 {
		wc := next(t, qp.SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}

// TestOverrun checks that an overrun breaks a completion queue: completions that fit can be polled, an event is raised,
// waits end, and queue pairs close without hanging.
func TestOverrun(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(15, channel, 0)
	keep(t, cq, err)
	qp, err := device.NewRC(rdma.QPParts{CQ: cq, Cap: ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1,
		MaxRecvSGE: 1}, Options: rdma.QueueOptions{Overcommit: true}})
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
	const given = "the queue has overrun or failed otherwise: close it and its queue pairs"
	_, err = cq.Wait(ctx, wcs)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, given)
	_, err = qp.PostSend(b)
	assert.ErrorIs(t, err, syscall.ENOMEM, "requests without a completion keep their slots")
	err = qp.Drain(ctx)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, given)
	require.NoError(t, ctx.Err())
}

// TestResizedUnderway resizes a completion queue while goroutines poll it and completions arrive. It checks that every
// request completes once. The data path in Go rejects the resize, and loses nothing either.
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
	for last := -1; ; { // each resize takes one entry until the next poll
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

// TestSRQLimit checks that the limit event of a shared receive queue is raised once, by the receive that goes below the
// limit, and again after the limit was set again.
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
