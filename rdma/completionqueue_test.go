// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// The memory that C writes completions to stays reachable during the poll, even if the caller does not use it later.
func TestPollKeepsItsMemory(t *testing.T) {
	for _, tracked := range []bool{false, true} {
		d := newDevice(t, ibv.QPT_RC)
		var collected atomic.Bool
		address, err := space.Slot(func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
			for range 3 {
				goruntime.GC()
				time.Sleep(time.Millisecond)
			}
			assert.False(t, collected.Load(), "tracked: %v", tracked)
			return 0, 0
		})
		require.NoError(t, err)
		d.context.Ops.PollCQ = ibv.FuncPtr(address)
		cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
		require.NoError(t, err)
		if tracked {
			cq.Track(0x12, nil, nil)
		}
		poll(cq, &collected)
		require.Eventually(t, func() bool { goruntime.GC(); return collected.Load() }, 10*time.Second, time.Millisecond,
			"the test needs memory that can be collected")
	}
}

//go:noinline
func poll(cq *CompletionQueue, collected *atomic.Bool) {
	wcs := make([]ibv.WC, 16)
	goruntime.SetFinalizer(&wcs[0], func(*ibv.WC) { collected.Store(true) })
	cq.Poll(wcs)
}

func flushed(id uint64) ibv.WC { return ibv.WC{WRID: id, QPNum: 0x12, Status: ibv.WC_WR_FLUSH_ERR} }

// Polls of tracked queues exclude each other, so that completions are retired in order.
func TestTrackedPollsExcludeEachOther(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	var inside, overlaps atomic.Int32
	address, err := space.Slot(func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if inside.Add(1) != 1 {
			overlaps.Add(1)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		return 0, 0
	})
	require.NoError(t, err)
	d.context.Ops.PollCQ = ibv.FuncPtr(address)
	q, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err)
	q.Track(d.qp.QPNum, sendQueue(t, d, options(8, 1, 0)), nil)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				_, err := q.Poll(make([]ibv.WC, 1))
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	assert.Zero(t, overlaps.Load())
}

// A failed completion releases a slot of the queue that its work request was posted to, not of the queue pair's other
// queue.
func TestFailedCompletionReleasesOneSlot(t *testing.T) {
	for _, shared := range []bool{false, true} {
		d := newDevice(t, ibv.QPT_RC)
		send := sendQueue(t, d, options(16, 1, 0))
		recv, err := NewRecvQueue(&d.qp, options(16, 1, 0))
		if shared {
			recv, err = NewSharedRecvQueue(&d.srq, options(16, 1, 0))
		}
		require.NoError(t, err)
		r := recvBatch(t, 16, 1)
		for i := range uint64(16) {
			r.Recv(100 + i)
		}
		_, err = recv.Post(r)
		require.NoError(t, err)
		_, err = send.Post(writes(sendBatch(t, 16, 1, 0), 1, 16))
		require.NoError(t, err)
		cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
		require.NoError(t, err)
		cq.Track(0x12, send, recv)
		for i := range uint64(8) {
			d.wcs = append(d.wcs, flushed(1+i))
		}
		d.wcs = append(d.wcs, flushed(100), flushed(101))
		_, err = cq.Poll(make([]ibv.WC, 16))
		require.NoError(t, err)
		assert.Equal(t, 8, send.Free(), "shared: %v", shared)
		assert.Equal(t, 2, recv.Free(), "shared: %v", shared)
		if shared { // completions carry the numbers of several queue pairs
			continue
		}
		others := []ibv.WC{flushed(110), flushed(10), {WRID: 110, Opcode: ibv.WC_RECV}, {WRID: 16}}
		for i := range others {
			others[i].QPNum = 0x13
		}
		send.Retire(others)
		recv.Retire(others)
		assert.Equal(t, 8, send.Free(), "of another queue pair")
		assert.Equal(t, 2, recv.Free(), "of another queue pair")
	}
}

func TestCompletionsByOpcode(t *testing.T) {
	for op, want := range map[ibv.WCOpcode][2]int{
		ibv.WC_SEND: {1, 0}, ibv.WC_ATOMIC_WRITE: {1, 0}, ibv.WC_DRIVER1: {1, 0}, ibv.WC_DRIVER2: {1, 0},
		ibv.WC_DRIVER3: {1, 0},
		ibv.WC_RECV:    {0, 1}, ibv.WC_RECV_RDMA_WITH_IMM: {0, 1}, ibv.WC_TM_NO_TAG: {0, 1},
		ibv.WC_TM_RECV: {0, 1}, // without IBV_WC_TM_MATCH no tag matched
		ibv.WC_TM_ADD:  {}, ibv.WC_TM_DEL: {}, ibv.WC_TM_SYNC: {},
	} {
		d := newDevice(t, ibv.QPT_RC)
		send := sendQueue(t, d, options(1, 1, 0))
		recv, err := NewSharedRecvQueue(&d.srq, options(1, 1, 0))
		require.NoError(t, err)
		_, err = send.Post(writes(sendBatch(t, 1, 1, 0), 5, 1))
		require.NoError(t, err)
		r := recvBatch(t, 1, 1)
		r.Recv(5)
		_, err = recv.Post(r)
		require.NoError(t, err)
		wcs := []ibv.WC{{WRID: 5, QPNum: 0x12, Opcode: op}}
		send.Retire(wcs)
		recv.Retire(wcs)
		assert.Equal(t, want, [2]int{send.Free(), recv.Free()}, "%v", op)
	}
}

// A queue pair number is reused soon after Close. Completions then release slots of the new queue pair's queues.
func TestQPNumReuse(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err)
	cq.Track(0x99, nil, nil)
	complete := func(wc ibv.WC) {
		d.wcs = append(d.wcs, wc)
		n, err := cq.Poll(make([]ibv.WC, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	for _, delayed := range []bool{false, true} {
		for range 3 {
			send := sendQueue(t, d, options(4, 1, 0))
			cq.Track(0x12, send, nil)
			_, err = send.Post(writes(sendBatch(t, 4, 1, 0), 1, 2))
			require.NoError(t, err)
			complete(flushed(1))
			assert.Equal(t, 3, send.Free())
			cq.Untrack(0x12)
			complete(flushed(2))
			assert.Equal(t, 3, send.Free(), "no longer tracked")
			if delayed { // polled under the new queue pair's number
				complete(ibv.WC{QPNum: 0x99})
			}
		}
	}
}

// collect returns even if other goroutines post as fast as it polls.
func TestCollectEndsUnderLoad(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	d.cq.CQE = 100
	polled := 0
	flood, err := space.Slot(func(_, n, wcs, _, _, _ uint64) (uint64, runtime.Errno) {
		out := unsafe.Slice(ibv.Ptr[ibv.WC](wcs).Deref(), int(n))
		for i := range out {
			out[i] = success(uint64(polled))
			polled++
		}
		if polled > 1<<20 {
			return 0, 0
		}
		return n, 0
	})
	require.NoError(t, err)
	d.context.Ops.PollCQ = ibv.FuncPtr(flood)
	q, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, q.pollAside())
	assert.Greater(t, len(q.pending), 100, "the queue's full depth")
	assert.Less(t, len(q.pending), 200)
	for i, wc := range q.pending {
		assert.EqualValues(t, i, wc.WRID)
	}
}

// trackedAs returns the queues tracked under a queue pair number.
func (q *CompletionQueue) trackedAs(qpNum uint32) trackedQueues {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.tracked.find(qpNum); t != nil {
		return *t
	}
	return trackedQueues{}
}

// outstandingMarkers returns the number of outstanding drain markers.
func (q *CompletionQueue) outstandingMarkers() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.markers)
}

// replacePath installs another path for polls and returns the previous one.
func (q *CompletionQueue) replacePath(p Path) (before Path) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, q.path = q.path, p
	q.updatePlain()
	return before
}
