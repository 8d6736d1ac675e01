// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// worker holds the records that one goroutine reuses to post and poll.
type worker struct {
	wr   *ibv.SendWR
	recv *ibv.RecvWR
	sge  *ibv.SGE
	bad  *ibv.Ptr[ibv.SendWR]
	badR *ibv.Ptr[ibv.RecvWR]
	wc   *ibv.WC
}

func newWorker(r *testbed) *worker {
	w := &worker{
		wr: &offHeap[ibv.SendWR](r, 1)[0], recv: &offHeap[ibv.RecvWR](r, 1)[0], sge: &offHeap[ibv.SGE](r, 1)[0],
		bad: &offHeap[ibv.Ptr[ibv.SendWR]](r, 1)[0], badR: &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0],
		wc: &offHeap[ibv.WC](r, 1)[0],
	}
	w.wr.SGList, w.wr.NumSGE = ibv.PtrTo(w.sge), 1
	w.recv.SGList, w.recv.NumSGE = ibv.PtrTo(w.sge), 1
	return w
}

// post posts one request, and retries while the queue is full.
func (w *worker) post(qp *ibv.QP) {
	for {
		err := verbs.PostSend(qp, w.wr, w.bad)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.ENOMEM) {
			panic(err)
		}
		runtime.Gosched()
	}
}

// poll waits for a completion. It panics if the completion has an error.
func (w *worker) poll(cq *ibv.CQ) ibv.WC {
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		n, err := verbs.PollCQ(cq, 1, w.wc)
		if err != nil || n == 1 && w.wc.Status != ibv.WC_SUCCESS || time.Now().After(deadline) {
			panic(fmt.Sprintf("%v %v %v", n, err, w.wc.Status))
		}
		if n == 1 {
			return *w.wc
		}
	}
}

// TestConcurrentTraffic: separate goroutines send, receive and poll on connections that share completion queues and
// receives, both ways at once. Messages are not lost, duplicated or reordered within a connection; the received data
// equals the sent data, without data races.
func TestConcurrentTraffic(t *testing.T) {
	const connections, messages, depth, size = 3, 2000, 32, 64
	r := newTestbed(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: depth, MaxSGE: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	shared := r.cq(1, 4*depth)
	buffer := r.buffer(1, depth*size, allAccess)
	bySender := map[uint32]int{}
	var senders sync.WaitGroup
	caps := ibv.QPCap{MaxSendWR: depth, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}
	for i := range connections {
		cq := r.cq(0, 4*depth)
		a := r.qp(0, ibv.QPT_RC, caps, cq, cq)
		b, err := verbs.CreateQP(r.pd[1],
			&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(shared), RecvCQ: ibv.PtrTo(shared),
				SRQ: ibv.PtrTo(srq), Cap: caps})
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DestroyQP(b)) }()
		r.toRTR(a, 1, b.QPNum)
		r.toRTR(b, 0, a.QPNum)
		require.NoError(t, verbs.ModifyQP(a,
			&ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4},
			ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC))
		bySender[b.QPNum] = i
		from, w := r.buffer(0, depth*size, allAccess), newWorker(r)
		senders.Go(func() {
			left := depth // free slots of the ring of buffers
			for n := range messages {
				if left == 0 {
					w.poll(cq) // every fourth send is signalled
					left += 4
				}
				at := n % depth * size
				binary.NativeEndian.PutUint64(from.bytes[at:], uint64(n))
				*w.sge = from.sge(at, 8+n%(size-8))
				w.wr.WRID, w.wr.Opcode, w.wr.SendFlags = uint64(n), ibv.WR_SEND, 0
				if n%4 == 3 {
					w.wr.SendFlags = ibv.SEND_SIGNALED
				}
				w.post(a)
				left--
			}
			for ; left < depth; left += 4 {
				w.poll(cq)
			}
		})
	}
	next := make([]int, connections)
	w := newWorker(r)
	receive := func(i int) {
		*w.sge = buffer.sge(i*size, size)
		w.recv.WRID = uint64(i)
		require.NoError(t, verbs.PostSRQRecv(srq, w.recv, w.badR))
	}
	for i := range depth {
		receive(i)
	}
	for range connections * messages {
		wc := w.poll(shared)
		from := bySender[wc.QPNum]
		n := next[from]
		next[from]++
		require.EqualValues(t, n, binary.NativeEndian.Uint64(buffer.bytes[wc.WRID*size:]), "connection %d", from)
		require.EqualValues(t, 8+n%(size-8), wc.ByteLen)
		receive(int(wc.WRID))
	}
	senders.Wait()
	wc, more := r.tryPoll(shared)
	assert.False(t, more, "%+v", wc)
}

// TestConcurrentAtomics: concurrent fetch-and-adds of several queue pairs are atomic.
func TestConcurrentAtomics(t *testing.T) {
	const connections, additions = 4, 1000
	r := newTestbed(t, Options{})
	counter := r.buffer(1, 64, allAccess)
	var adders sync.WaitGroup
	var sum atomic.Uint64
	for range connections {
		p, result, w := r.pair(ibv.QPT_RC), r.buffer(0, 8, allAccess), newWorker(r)
		adders.Go(func() {
			for range additions {
				*w.sge = result.sge(0, 8)
				w.wr.Opcode, w.wr.SendFlags = ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.SEND_SIGNALED
				*w.wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: counter.at(8), RKey: counter.mr.RKey, CompareAdd: 1}
				w.post(p.a)
				w.poll(p.aSend)
				sum.Add(binary.NativeEndian.Uint64(result.bytes))
			}
		})
	}
	adders.Wait()
	const total = connections * additions
	assert.EqualValues(t, total, binary.NativeEndian.Uint64(counter.bytes[8:]))
	assert.EqualValues(t, total*(total-1)/2, sum.Load(), "each value was fetched once")
}
