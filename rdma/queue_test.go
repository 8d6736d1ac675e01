// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
)

func TestPost(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(64, 4, 0), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			q := sendQueue(t, d, o)
			b := sendBatch(t, 8, 1, 0)
			for _, n := range []int{3, 8, 8, 1} { // the chain ends at a different request each time
				posted, err := q.Post(writes(b, 100, n))
				require.NoError(t, err)
				assert.Equal(t, n, posted)
				assert.Len(t, d.sends[len(d.sends)-1], n)
			}
			d.sends = nil
			posted, err := q.PostRange(writes(b, 0, 8), 2, 5)
			require.NoError(t, err)
			assert.Equal(t, 3, posted)
			posted, err = q.Post(b)
			require.NoError(t, err)
			assert.Equal(t, 8, posted)
			assert.Equal(t, append(ids(2, 5), ids(0, 8)...), d.sendIDs())

			b.Reset()
			posted, err = q.Post(b)
			assert.ErrorIs(t, err, syscall.EINVAL, "an empty batch has no completion")
			assert.ErrorContains(t, err, "the batch is empty")
			assert.Zero(t, posted)
			posted, err = q.PostRange(b, 0, 0)
			assert.NoError(t, err, "an empty range is valid")
			assert.Zero(t, posted)
			assert.Len(t, d.sends, 2, "an empty post does not call the device")
			assert.Panics(t, func() { q.PostRange(writes(b, 0, 2), 1, 3) })
		})
	}
}

func TestPostFails(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(64, 4, 0), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_UC)
			q := sendQueue(t, d, o)
			b := writes(sendBatch(t, 8, 1, 0), 0x10, 8)
			d.fail = 3
			posted, err := q.Post(b)
			assert.Equal(t, 3, posted)
			require.ErrorIs(t, err, syscall.ENOMEM)
			var e *PostError
			require.ErrorAs(t, err, &e)
			assert.Equal(t, PostError{Verb: "ibv_post_send", QPNum: 0x12, QPType: ibv.QPT_UC, Index: 3, WRID: 0x13,
				Errno: syscall.ENOMEM}, *e)
			assert.EqualError(t, err, "ibv_post_send: QP 0x12 (UC): WR 3 (id 0x13): cannot allocate memory")

			d.fail = passes
			posted, err = q.PostRange(b, posted, b.Len())
			require.NoError(t, err)
			assert.Equal(t, 5, posted)
			assert.Equal(t, ids(0x10, 0x18), d.sendIDs(), "the next post continues after the failed request")

			d.fail, d.null, d.errno = 2, true, syscall.EOPNOTSUPP
			posted, err = q.Post(b)
			assert.Zero(t, posted)
			require.ErrorIs(t, err, runtime.ErrNotSupported)
			assert.EqualError(t, err, "ibv_post_send: QP 0x12 (UC): the failed WR is unknown; any may have been "+
				"posted: operation not supported")

			b.SGEs(0)
			b.Send(1).SGE(1, 1, 1)
			_, err = q.Post(b)
			assert.EqualError(t, err, "ibv_post_send: QP 0x12 (UC): the batch has room for 8 work "+
				"requests, not for 9: cannot allocate memory")
		})
	}
}

func TestPostWithoutASlot(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	d.context.Ops = ibv.ContextOps{}
	_, err := NewSendQueue(&d.qp, options(1, 1, 1))
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.EqualError(t, err, "ibv_post_send: the device's provider lacks it")
	_, err = NewRecvQueue(&d.qp, options(1, 1, 1))
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	_, err = NewSharedRecvQueue(&d.srq, options(1, 1, 1))
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	_, err = NewCompletionQueue(&d.cq, QueueOptions{})
	require.ErrorIs(t, err, runtime.ErrNotSupported)

	d = newDevice(t, ibv.QPT_RC)
	d.context.Ops.ReqNotifyCQ = 0
	cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err, "polling needs no events")
	assert.ErrorIs(t, cq.ReqNotify(false), runtime.ErrNotSupported)

	_, err = NewSendQueue(&d.qp, QueueOptions{})
	assert.ErrorContains(t, err, "QueueOptions.Cap")
}

func TestRecvQueue(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q, err := NewRecvQueue(&d.qp, options(4, 1, 0))
	require.NoError(t, err)
	b := recvBatch(t, 8, 2)
	fill := func(n int) {
		b.Reset()
		for i := range n {
			b.Recv(uint64(i)).Add(ibv.SGE{Addr: 0x1008, Length: 16, LKey: 3})
		}
	}
	fill(3)
	posted, err := q.Post(b)
	require.NoError(t, err)
	assert.Equal(t, 3, posted)
	require.Len(t, d.recvs, 1)
	assert.Len(t, d.recvs[0], 3)
	assert.Equal(t, ibv.SGE{Addr: 0x1008, Length: 16, LKey: 3}, *d.recvs[0][2].SGList.Deref())
	assert.Equal(t, 1, q.Free())
	_, err = q.Post(b)
	assert.EqualError(t, err, "ibv_post_recv: QP 0x12 (RC): WR 0 (id 0x0): a list of 3 does not fit: 1 of 4 slots "+
		"are free until completions are polled: cannot allocate memory")

	wcs := []ibv.WC{success(7), {WRID: 0, QPNum: 0x12, Opcode: ibv.WC_RECV},
		{WRID: 1, QPNum: 0x99, Opcode: ibv.WC_RECV}, {WRID: 1, QPNum: 0x12, Status: ibv.WC_WR_FLUSH_ERR}}
	q.Retire(wcs)
	assert.Equal(t, 3, q.Free(), "completions of sends and of another queue pair release no slot")

	fill(1)
	b.Recv(9).SGE(1, 2, 3).SGE(4, 5, 6)
	_, err = q.Post(b)
	assert.EqualError(t, err, "ibv_post_recv: QP 0x12 (RC): WR 1 (id 0x9): 2 entries exceed the queue's limit "+
		"of 1: invalid argument")
	fill(2)
	d.fail = 1
	posted, err = q.Post(b)
	assert.Equal(t, 1, posted)
	assert.EqualError(t, err, "ibv_post_recv: QP 0x12 (RC): WR 1 (id 0x1): cannot allocate memory")
	assert.Equal(t, 2, q.Free())
	d.qp.State = ibv.QPS_RESET
	_, err = q.Post(b)
	assert.EqualError(t, err, "ibv_post_recv: QP 0x12 (RC): WR 0 (id 0x0): the receive queue accepts no requests in RESET "+
		"(valid in: INIT, RTR, RTS, SQD, SQE, ERR): invalid argument")
	q.Reset()
	assert.Equal(t, 4, q.Free())

	d.qp.SRQ = ibv.PtrTo(&d.srq)
	_, err = NewRecvQueue(&d.qp, options(4, 1, 0))
	assert.ErrorIs(t, err, syscall.EINVAL)
}

func TestSharedRecvQueue(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q, err := NewSharedRecvQueue(&d.srq, options(4, 1, 0))
	require.NoError(t, err)
	b := recvBatch(t, 4, 1)
	for i := range uint64(4) {
		b.Recv(i)
	}
	d.fail = 2
	posted, err := q.Post(b)
	assert.Equal(t, 2, posted)
	assert.EqualError(t, err, "ibv_post_srq_recv: SRQ 0x7: WR 2 (id 0x2): cannot allocate memory")
	assert.Equal(t, 2, q.Free())
	q.Retire([]ibv.WC{{WRID: 1, QPNum: 1, Opcode: ibv.WC_RECV}, {WRID: 0, QPNum: 2, Opcode: ibv.WC_RECV},
		{WRID: 0, Opcode: ibv.WC_SEND}})
	assert.Equal(t, 4, q.Free(), "in any order, from any queue pair")
	q.Retire([]ibv.WC{{Opcode: ibv.WC_RECV}})
	assert.Equal(t, 4, q.Free(), "never more than the capacity")
}

func TestPollReleasesSlots(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	send := sendQueue(t, d, options(4, 1, 0))
	recv, err := NewRecvQueue(&d.qp, options(4, 1, 0))
	require.NoError(t, err)
	cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
	require.NoError(t, err)
	cq.Track(0x12, send, recv)
	_, err = send.Post(writes(sendBatch(t, 4, 1, 0), 1, 4))
	require.NoError(t, err)
	r := recvBatch(t, 2, 0)
	r.Recv(1)
	r.Recv(2)
	_, err = recv.Post(r)
	require.NoError(t, err)

	d.wcs = []ibv.WC{{WRID: 4, QPNum: 0x13}, {WRID: 1, QPNum: 0x12, Opcode: ibv.WC_RECV}, success(4)}
	wcs := make([]ibv.WC, 2)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.Equal(t, []int{0, 3}, []int{send.Free(), recv.Free()})
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, []int{4, 3}, []int{send.Free(), recv.Free()})
	n, err = cq.Poll(nil)
	assert.NoError(t, err)
	assert.Zero(t, n)

	cq.Untrack(0x12)
	d.wcs = []ibv.WC{{WRID: 2, QPNum: 0x12, Opcode: ibv.WC_RECV}}
	_, err = cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, 3, recv.Free())

	require.NoError(t, cq.ReqNotify(true))
	require.NoError(t, cq.ReqNotify(false))
	assert.Equal(t, []bool{true, false}, d.only)
	assert.Equal(t, provider.Software, cq.Provider())
}

// A panic in a backend leaves the queue unlocked. The number of posted requests is unknown, so their slots stay taken.
func TestPanicInBackendUnlocks(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	address, err := space.Slot(func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) { panic("backend") })
	require.NoError(t, err)
	d.context.Ops.PostSend = ibv.FuncPtr(address)
	q := sendQueue(t, d, options(16, 1, 0))
	b := writes(sendBatch(t, 1, 1, 0), 1, 1)
	for range 2 { // the second time the batch is already closed
		assert.PanicsWithValue(t, "backend", func() { q.Post(b) })
		free := make(chan struct{})
		go func() {
			q.mu.Lock()
			q.mu.Unlock()
			close(free)
		}()
		select {
		case <-free:
		case <-time.After(20 * time.Second):
			require.FailNow(t, "the queue is still locked")
		}
	}
	assert.Equal(t, 14, q.Free())
}

func TestErrnoOf(t *testing.T) {
	for result, want := range map[int32]runtime.Errno{12: syscall.ENOMEM, -12: syscall.ENOMEM, -1: syscall.EIO,
		math.MinInt32: 1 << 31} {
		assert.Equal(t, want, errnoOf(result))
	}
}

// refused returns the error with which the queue rejects posts, or nil.
func (q *queue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

// refused returns the error with which polls fail, or nil.
func (q *CompletionQueue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

// panics is a path whose posts panic.
type panics struct{ Path }

func (panics) PostSend(*ibv.QP, *ibv.SendWR, *ibv.Ptr[ibv.SendWR]) int32 { panic("send") }
func (panics) PostRecv(*ibv.QP, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 { panic("receive") }

// TestPathPanics: a post whose path panics takes no slots, for lists, programs and receives.
func TestPathPanics(t *testing.T) {
	x := newExtended(t, ibv.QPT_RC)
	o := options(8, 1, 8)
	o.Path = panics{}
	q, b, p := x.queue(t, o), sendBatch(t, 2, 1, 8), NewWRProgram(&x.qp)
	p.Write(1, 0, 0).SGE(0, 8, 0).Signaled()
	for name, post := range map[string]func(){
		"one":     func() { q.Post(writes(b, 1, 1)) },
		"list":    func() { q.Post(writes(b, 1, 2)) },
		"program": func() { q.PostProgram(p) },
	} {
		for range 2 {
			assert.Panics(t, post, name)
			assert.Equal(t, 8, q.Free(), name)
		}
	}
	d := newDevice(t, ibv.QPT_RC)
	o.Cap.MaxRecvWR, o.Cap.MaxRecvSGE = 8, 1
	r, err := NewRecvQueue(&d.qp, o)
	require.NoError(t, err)
	receives, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	defer receives.Close()
	receives.Recv(1).SGE(0, 8, 0)
	assert.Panics(t, func() { r.Post(receives) })
	assert.Equal(t, 8, r.Free())
}

// acceptingPath accepts every send. It takes no lock.
type acceptingPath struct{ Path }

func (acceptingPath) PostSend(*ibv.QP, *ibv.SendWR, *ibv.Ptr[ibv.SendWR]) int32 { return 0 }

// TestConcurrentUncheckedPosts checks, with the race detector, that posts to an unchecked queue write no shared state.
func TestConcurrentUncheckedPosts(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, QueueOptions{Unchecked: true, Path: acceptingPath{}})
	var posts sync.WaitGroup
	for range 2 {
		b := writes(sendBatch(t, 2, 1, 0), 1, 2)
		posts.Go(func() {
			for range 100 {
				_, err := q.PostRange(b, 1, 2)
				assert.NoError(t, err)
			}
		})
	}
	posts.Wait()
}
