// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"math/rand/v2"
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

// TestResetUnderway moves a queue pair to RESET and connects it again while its requests complete, another queue pair
// completes in the same queue, and a goroutine polls. It checks that each request completes at most once, in order.
// With a shared receive queue, the queue pair is drained first, so that every receive completes.
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
				if !shared || wc.Status != ibv.WC_WR_FLUSH_ERR { // flushed by the drain
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
	all.Go(func() { // keep the other queue pair busy
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
		if round%2 == 1 { // otherwise the device is still working
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
