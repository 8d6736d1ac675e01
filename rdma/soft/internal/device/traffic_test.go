// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// TestBidirectionalTraffic: two queue pairs send to each other from two goroutines, and run out of receives. All
// messages arrive, in order.
func TestBidirectionalTraffic(t *testing.T) {
	r := newTestbed(t, Options{})
	p := r.pair(ibv.QPT_RC)
	for _, qp := range []*ibv.QP{p.a, p.b} { // no limit
		require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
		require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{RNRRetry: 7}, ibv.QP_RNR_RETRY))
		require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	}
	const n = 2000
	var wg sync.WaitGroup
	side := func(qp *ibv.QP, send, recv *ibv.CQ) {
		wr, bad := r.send(0, ibv.WR_SEND), &offHeap[ibv.Ptr[ibv.SendWR]](r, 1)[0]
		rwr, rbad := &offHeap[ibv.RecvWR](r, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
		wcs := offHeap[ibv.WC](r, 2)
		wg.Go(func() {
			sends, recvs, got, sent := uint64(0), uint64(0), uint64(0), uint64(0)
			for last := time.Now(); got < n || sent < n; {
				before := got + sent
				if sends < n && sends-sent < 8 {
					wr.WRID = sends
					if !assert.NoError(t, verbs.PostSend(qp, wr, bad)) {
						return
					}
					sends++
				}
				if recvs < n && recvs-got < 4 {
					rwr.WRID = recvs
					if !assert.NoError(t, verbs.PostRecv(qp, rwr, rbad)) {
						return
					}
					recvs++
				}
				if k, _ := verbs.PollCQ(send, 1, &wcs[0]); k == 1 {
					if !assert.Equal(t, sent, wcs[0].WRID) || !assert.Equal(t, ibv.WC_SUCCESS, wcs[0].Status) {
						return
					}
					sent++
				}
				if k, _ := verbs.PollCQ(recv, 1, &wcs[1]); k == 1 {
					if !assert.Equal(t, got, wcs[1].WRID) {
						return
					}
					got++
				}
				switch {
				case got+sent > before:
					last = time.Now()
				case time.Since(last) > 20*time.Second:
					t.Errorf("stuck: %d sent of %d, %d received of %d", sent, sends, got, recvs)
					return
				default:
					goruntime.Gosched() // let timers run, which would starve if all processors poll
				}
			}
		})
	}
	side(p.a, p.aSend, p.aRecv)
	side(p.b, p.bSend, p.bRecv)
	wg.Wait()
}

// TestDestroyDuringTraffic: a queue pair is destroyed while its peer and others send to it.
func TestDestroyDuringTraffic(t *testing.T) {
	r := newTestbed(t, Options{})
	var stop atomic.Bool
	var wg sync.WaitGroup
	cq := r.cq(1, 4096)
	for range 30 {
		send := r.cq(0, 16)
		a := r.qp(0, ibv.QPT_RC, testCaps, send, send)
		b, err := verbs.CreateQP(r.pd[1], &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq),
			RecvCQ: ibv.PtrTo(cq), Cap: testCaps})
		require.NoError(t, err)
		r.connect(a, 1, b.QPNum)
		r.connect(b, 0, a.QPNum)
		wr, bad := r.send(1, ibv.WR_SEND), &offHeap[ibv.Ptr[ibv.SendWR]](r, 1)[0]
		wc := &offHeap[ibv.WC](r, 1)[0]
		for id := range uint64(8) {
			r.recv(b, id)
		}
		wg.Go(func() {
			for !stop.Load() {
				verbs.PostSend(a, wr, bad)
				verbs.PollCQ(send, 1, wc)
			}
		})
		require.NoError(t, verbs.DestroyQP(b))
	}
	stop.Store(true)
	wg.Wait()
}

// TestOneSidedAccess: a goroutine that waits for a flag written by a peer, and then reads data of the peer's earlier
// writes, has no data race, because writes are ordered.
func TestOneSidedAccess(t *testing.T) {
	r := newTestbed(t, Options{})
	p := r.pair(ibv.QPT_RC)
	const size, n = 5000, 100
	src, dst := make([]uint64, size/8+1), make([]uint64, size/8+1)
	local, err := verbs.RegMR(r.pd[0], pointerTo(&src[0]), uint64(8*len(src)), allAccess)
	require.NoError(t, err)
	remote, err := verbs.RegMR(r.pd[1], pointerTo(&dst[0]), uint64(8*len(dst)), allAccess)
	require.NoError(t, err)
	write := func(from, to int, signal bool) *ibv.SendWR {
		wr := r.send(1, ibv.WR_RDMA_WRITE, ibv.SGE{Addr: uint64(mem.AddressOf(&src[from])),
			Length: uint32(8 * (to - from)), LKey: local.LKey})
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: uint64(mem.AddressOf(&dst[from])), RKey: remote.RKey}
		if !signal {
			wr.SendFlags = 0
		}
		return wr
	}
	data, flag := write(0, size/8, false), write(size/8, size/8+1, true)
	data.Next = ibv.PtrTo(flag)
	seen := make(chan uint64, 1)
	go func() {
		for i := uint64(1); i <= n; i++ {
			for atomic.LoadUint64(&dst[size/8]) != i {
				goruntime.Gosched()
			}
			wrong := uint64(0)
			for _, v := range dst[:size/8] {
				if v != i {
					wrong = v
				}
			}
			seen <- wrong
		}
	}()
	for i := uint64(1); i <= n; i++ {
		for k := range src {
			src[k] = i
		}
		require.NoError(t, r.post(p.a, data))
		require.Equal(t, ibv.WC_SUCCESS, r.poll(p.aSend).Status)
		require.Zero(t, <-seen)
	}
	require.NoError(t, verbs.DeregMR(local))
	require.NoError(t, verbs.DeregMR(remote))
}
