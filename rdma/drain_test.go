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
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

func bytesOf[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

// polled returns all completions of a queue, even if it has a Poller or Calls.
func polled(t testing.TB, cq *CQ) (all []ibv.WC) {
	wcs := make([]ibv.WC, 5)
	for {
		n, err := cq.queue.Poll(wcs)
		require.NoError(t, err)
		if n == 0 {
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

// Full queues, checked or not, are drained: every request completes exactly once and no marker is returned.
func TestDrainOfFullQueues(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD} {
		for _, unchecked := range []bool{false, true} {
			d := openSoft(t)
			pd, err := d.AllocPD()
			e := newTestQP(t, closeAtEnd(t, pd, err), kind, nil, QueueOptions{Unchecked: unchecked})
			connectToSelf(t, e.qp)
			e.receive(100, 16)
			require.NoError(t, e.qp.Drain(timeout(t)))
			var ids []uint64
			for _, wc := range polled(t, e.cq) {
				assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
				ids = append(ids, wc.WRID)
			}
			assert.Equal(t, idsFrom(100, 16), ids, "%v, unchecked: %v", kind, unchecked)
			require.NoError(t, e.qp.Drain(timeout(t)), "again")
			assert.Empty(t, polled(t, e.cq))
			e.receive(200, 16) // in ERR receives complete at once
			require.NoError(t, e.qp.Drain(timeout(t)), "again")
			assert.Len(t, polled(t, e.cq), 16)
			require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			connectToSelf(t, e.qp)
			if kind == ibv.QPT_RC {
				e.write(7, 16)
				assert.Len(t, polled(t, e.cq), 16)
			}
		}
	}
}

func idsFrom(first uint64, n int) (all []uint64) {
	for i := range uint64(n) {
		all = append(all, first+i)
	}
	return all
}

// stalled returns a queue pair whose sends do not complete before a drain, because its peer posts no receive.
func stalled(t *testing.T) (*testQP, *soft.Fabric) {
	fabric, err := soft.New(soft.Options{Faults: soft.Faults{NotReady: true}})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	closeAtEnd(t, d, err)
	pd, err := d.AllocPD()
	e := newTestQP(t, closeAtEnd(t, pd, err), ibv.QPT_RC, nil, QueueOptions{})
	local, err := e.qp.Endpoint()
	require.NoError(t, err)
	attr, err := e.qp.ConnectAttr(local)
	require.NoError(t, err)
	attr.RNRRetry, attr.MinRNRTimer = RNRRetryInfinite, 31
	require.NoError(t, e.qp.ConnectWith(attr))
	e.send.Reset()
	for i := range uint64(16) {
		e.send.Send(i).Signaled()
	}
	_, err = e.qp.PostSend(e.send)
	require.NoError(t, err)
	assert.Empty(t, polled(t, e.cq))
	return e, fabric
}

// Other goroutines can poll during a drain. Each completion is returned exactly once, during the drain or afterwards.
func TestDrainDuringPolls(t *testing.T) {
	for range rounds(t, 100) {
		e, _ := stalled(t)
		e.receive(100, 16)
		drained, seen := make(chan error, 1), map[uint64]int{}
		go func() { drained <- e.qp.Drain(timeout(t)) }()
		var err error
		for done := false; !done; {
			select {
			case err = <-drained:
				done = true
			default:
				goruntime.Gosched()
			}
			n, err := e.cq.Poll(e.wcs[:3])
			require.NoError(t, err)
			for _, wc := range e.wcs[:n] {
				seen[wc.WRID]++
			}
		}
		require.NoError(t, err)
		for _, wc := range polled(t, e.cq) {
			seen[wc.WRID]++
		}
		assert.Len(t, seen, 32)
		for id, n := range seen {
			assert.Equal(t, 1, n, id)
		}
		assert.Equal(t, 16, e.qp.send.Free())
		assert.Equal(t, 16, e.qp.recv.Free())
	}
}

// A canceled drain has no visible effect on polls, and the next drain resumes it.
func TestCancelledDrain(t *testing.T) {
	e, _ := stalled(t)
	// another queue pair's drain of the same queue
	unlock, err := e.qp.lockDrains(drainContext{Context: context.Background()})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err = e.qp.Drain(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "not drained")
	unlock()

	canceled, end := context.WithCancel(context.Background())
	end()
	poll := e.cq.queue.replacePath(polling(func() {}))           // the markers are posted but do not complete
	for e.qp.sendMark.done == nil || e.qp.recvMark.done == nil { // the drain may be canceled before
		require.ErrorIs(t, e.qp.Drain(canceled), context.Canceled)
	}
	require.ErrorIs(t, e.qp.Drain(canceled), context.Canceled, "no second marker is posted")
	assert.Equal(t, 2, e.cq.queue.outstandingMarkers())
	e.cq.queue.replacePath(poll)
	assert.Len(t, polled(t, e.cq), 16, "polls do not return a marker, not even of a canceled drain")
	e.receive(100, 2) // behind the marker
	require.NoError(t, e.qp.Drain(timeout(t)))
	assert.Len(t, polled(t, e.cq), 2)
	assert.Zero(t, e.cq.queue.outstandingMarkers())
}

// Close cancels a drain in progress and then drains the queue pair itself.
func TestCloseDuringDrain(t *testing.T) {
	e, _ := stalled(t)
	unlock, err := e.qp.lockDrains(drainContext{Context: context.Background()})
	require.NoError(t, err)
	drained, closed := make(chan error, 1), make(chan error, 1)
	go func() { drained <- e.qp.Drain(context.Background()) }()
	for e.qp.changes.TryLock() {
		e.qp.changes.Unlock()
		goruntime.Gosched()
	}
	go func() { closed <- e.qp.Close() }()
	assert.ErrorIs(t, requireEnd(t, drained), ErrClosed)
	unlock()
	require.NoError(t, requireEnd(t, closed))
	assert.Len(t, polled(t, e.cq), 16, "outstanding requests can still be polled")
}

// A drain ends even if the completion queue has overrun and lost the marker.
func TestDrainAfterOverrun(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	lost := e.cq.mark() // a marker that is never posted
	ends := make(chan error, 2)
	go func() { ends <- e.qp.await(drainContext{Context: context.Background()}, &lost) }()
	go func() {
		ends <- e.qp.whileFull(drainContext{Context: context.Background()}, e.cq,
			func() error { return &runtime.CallError{Function: "ibv_post_send", Errno: syscall.ENOMEM} })
	}()
	time.Sleep(5 * time.Millisecond)
	assert.Empty(t, ends)
	e.cq.broken(ibv.EVENT_CQ_ERR)
	for range 2 {
		err := requireEnd(t, ends)
		assert.ErrorIs(t, err, syscall.EIO)
		assert.ErrorContains(t, err, "not drained")
	}
	lost.forget()
}

// Two queue pairs that use two completion queues in opposite order can be drained at once.
func TestDrainsInOppositeOrder(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	var cqs [2]*CQ
	for i := range cqs {
		cq, err := d.CreateCQ(200, nil, 0)
		cqs[i] = closeAtEnd(t, cq, err)
	}
	var all sync.WaitGroup
	for i := range 4 {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cqs[i%2].Ptr(), RecvCQ: cqs[1-i%2].Ptr(),
			Cap: smallCap}, QueueOptions{})
		closeAtEnd(t, qp, err)
		connectToSelf(t, qp)
		all.Go(func() {
			for range 500 {
				if !assert.NoError(t, qp.Drain(timeout(t))) {
					return
				}
			}
		})
	}
	all.Wait()
}

// With a shared receive queue, a drain waits for IBV_EVENT_QP_LAST_WQE_REACHED. After a device has once not raised the
// event, later drains do not wait.
func TestDrainOfSharedReceives(t *testing.T) {
	usual := lastWQEWait
	waitForLastWQE(t, time.Minute)
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	e := newTestQP(t, pd, ibv.QPT_RC, srq, QueueOptions{})
	recv := recvBatch(t, 4, 1)
	for i := range uint64(4) {
		recv.Recv(i)
	}
	_, err = srq.PostRecv(recv)
	require.NoError(t, err)
	connectToSelf(t, e.qp)
	start := time.Now()
	require.NoError(t, e.qp.Drain(timeout(t)))
	assert.Less(t, time.Since(start), lastWQEWait)
	assert.False(t, d.noLastWQE.Load())
	assert.Equal(t, 12, srq.Queue().Free(), "unused receives are still posted")

	closing := connectToSelf(t, e.newQP(ibv.QPT_RC, srq, QueueOptions{}))
	start = time.Now()
	require.NoError(t, closing.Close())
	assert.Less(t, time.Since(start), lastWQEWait, "Close waits for the event, too")
	assert.False(t, d.noLastWQE.Load())

	waitForLastWQE(t, usual)
	silent := connectToSelf(t, e.newQP(ibv.QPT_RC, srq, QueueOptions{}))
	silent.lastWQE = new(latch)
	d.objects.remove(address(silent.c)) // so that its events are ignored
	start = time.Now()
	require.NoError(t, silent.Drain(timeout(t)))
	assert.GreaterOrEqual(t, time.Since(start), lastWQEWait)
	waitForLastWQE(t, time.Minute)
	start = time.Now()
	require.NoError(t, silent.Close())
	assert.Less(t, time.Since(start), lastWQEWait)
	assert.True(t, d.noLastWQE.Load())
	d.notify(AsyncEvent{Type: ibv.EVENT_QP_LAST_WQE_REACHED, QP: e.qp})
	assert.False(t, d.noLastWQE.Load(), "the device has raised the event")

	waitForLastWQE(t, usual)
	moved := connectToSelf(t, e.newQP(ibv.QPT_RC, srq, QueueOptions{}))
	d.objects.remove(address(moved.c))
	require.NoError(t, moved.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	start = time.Now()
	require.NoError(t, moved.Close())
	assert.GreaterOrEqual(t, time.Since(start), lastWQEWait,
		"the drain also waits if the caller has moved the queue pair to ERR")
	d.noLastWQE.Store(false)
	require.NoError(t, errors.Join(e.newQP(ibv.QPT_RC, srq, QueueOptions{}).Close()))
}

// A drain releases the slots of unsignaled requests. Completions from before RESET release no slots posted after it.
func TestSlotsAfterDrainAndReset(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	all := e.qp.send.Free()
	emptyWrites(e.send, 1, 3)
	for i := range e.send.WRs() {
		e.send.WR(i).SendFlags = 0
	}
	_, err := e.qp.PostSend(e.send)
	require.NoError(t, err)
	require.Equal(t, all-3, e.qp.send.Free())
	require.NoError(t, e.qp.Drain(timeout(t)))
	assert.Equal(t, all, e.qp.send.Free())
	require.Empty(t, polled(t, e.cq))

	reset := func() {
		require.NoError(t, e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		connectToSelf(t, e.qp)
	}
	reset()
	e.write(7, 1)
	reset()
	e.write(7, 1)
	for left := range 2 { // the first completion is from before RESET
		n, err := e.cq.Poll(e.wcs[:1])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		assert.Equal(t, all-1+left, e.qp.send.Free())
	}
}

// The number of outstanding requests of an unchecked queue pair is unknown, so Close drains it too. Its completions can
// be polled afterwards.
func TestCloseUncheckedQP(t *testing.T) {
	pd := softPD(t)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{Unchecked: true})
	connectToSelf(t, e.qp)
	e.receive(1, 3)
	require.NoError(t, e.qp.Close())
	all := polled(t, e.cq)
	require.Len(t, all, 3)
	for i, wc := range all {
		assert.EqualValues(t, 1+i, wc.WRID)
		assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	}
}

// A datagram shorter than its header or longer than its memory is rejected.
func TestInvalidDatagrams(t *testing.T) {
	buffer := make([]byte, 64)
	for n, ok := range map[int]bool{0: false, GRHBytes - 1: false, GRHBytes: true, 64: true, 65: false} {
		payload, _, err := Datagram(&ibv.WC{ByteLen: uint32(n)}, buffer)
		if !ok {
			assert.ErrorIs(t, err, syscall.EINVAL, n)
			continue
		}
		require.NoError(t, err, n)
		assert.Len(t, payload, n-GRHBytes)
	}
}
