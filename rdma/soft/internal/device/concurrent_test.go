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

func newWorker(r *rig) *worker {
	w := &worker{
		wr: &outside[ibv.SendWR](r, 1)[0], recv: &outside[ibv.RecvWR](r, 1)[0], sge: &outside[ibv.SGE](r, 1)[0],
		bad: &outside[ibv.Ptr[ibv.SendWR]](r, 1)[0], badR: &outside[ibv.Ptr[ibv.RecvWR]](r, 1)[0],
		wc: &outside[ibv.WC](r, 1)[0],
	}
	w.wr.SGList, w.wr.NumSGE = ibv.PtrTo(w.sge), 1
	w.recv.SGList, w.recv.NumSGE = ibv.PtrTo(w.sge), 1
	return w
}

// post posts one request, again while the queue is full.
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

// poll waits for a completion, which has to succeed.
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

// TestConcurrently: separate goroutines send, receive and poll on connections that share completion queues and
// receives, both ways at once. Messages are not lost, duplicated or reordered within a connection; the received data
// equals the sent data, without data races.
func TestConcurrently(t *testing.T) {
	const connections, messages, depth, size = 3, 2000, 32, 64
	r := newRig(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: depth, MaxSGE: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	shared := r.cq(1, 4*depth)
	buffer := r.buffer(1, depth*size, everything)
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
		from, w := r.buffer(0, depth*size, everything), newWorker(r)
		senders.Go(func() {
			left := depth // slots of the ring of buffers that are not on their way
			for n := range messages {
				if left == 0 {
					w.poll(cq) // every fourth is signalled
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
	wc, more := r.polled(shared)
	assert.False(t, more, "%+v", wc)
}

// TestAtomicsAtOnce: every addition counts, regardless of the poster.
func TestAtomicsAtOnce(t *testing.T) {
	const connections, additions = 4, 1000
	r := newRig(t, Options{})
	counter := r.buffer(1, 64, everything)
	var adders sync.WaitGroup
	var seen atomic.Uint64
	for range connections {
		p, result, w := r.pair(ibv.QPT_RC), r.buffer(0, 8, everything), newWorker(r)
		adders.Go(func() {
			for range additions {
				*w.sge = result.sge(0, 8)
				w.wr.Opcode, w.wr.SendFlags = ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.SEND_SIGNALED
				*w.wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: counter.at(8), RKey: counter.mr.RKey, CompareAdd: 1}
				w.post(p.a)
				w.poll(p.aSend)
				seen.Add(binary.NativeEndian.Uint64(result.bytes))
			}
		})
	}
	adders.Wait()
	const all = connections * additions
	assert.EqualValues(t, all, binary.NativeEndian.Uint64(counter.bytes[8:]))
	assert.EqualValues(t, all*(all-1)/2, seen.Load(), "each value was fetched once")
}
