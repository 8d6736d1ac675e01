// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// recvQueues returns all kinds of receive queues.
func (b *bench) recvQueues(t *testing.T, shared bool) map[string]queue[*rdma.RecvBatch] {
	all := map[string]queue[*rdma.RecvBatch]{}
	for _, way := range ways {
		o := rdma.QueueOptions{Unchecked: true, Way: way.String()}
		if shared {
			q, err := rdma.NewSharedRecvQueue(b.device.SRQ, o)
			require.NoError(t, err)
			all[way.String()] = q
			continue
		}
		q, err := rdma.NewRecvQueue(b.device.QP, o)
		require.NoError(t, err)
		all[way.String()] = q
	}
	return all
}

// TestRecvBatch checks that a RecvBatch posts the same list as C for the same values, on a QP and on an SRQ.
func TestRecvBatch(t *testing.T) {
	b := newBench(t)
	batch, err := rdma.NewRecvBatch(32, maxSGE)
	require.NoError(t, err)
	defer batch.Close()
	for _, queue := range []struct {
		function, object, slot string
		shared                 bool
	}{
		{"stub_post_recv", "ibv_qp", "ibv_context_ops.post_recv", false},
		{"stub_post_srq_recv", "ibv_srq", "ibv_context_ops.post_srq_recv", true},
	} {
		queues := b.recvQueues(t, queue.shared)
		for range 2_000 {
			recipes := make([]recipe, 1+b.random.IntN(24))
			for i := range recipes {
				recipes[i] = shape{sges: b.random.IntN(maxSGE + 1)}.values(b.random, b.data.Bytes())
				recipes[i].list = 1
			}
			b.answer(queue.slot, len(recipes))
			want := b.postC(queue.function, b.device.Address(queue.object), recipes)
			for name, q := range queues {
				batch.Reset()
				for i := range recipes {
					r := batch.Recv(recipes[i].wrID)
					for _, e := range recipes[i].sge[:recipes[i].numSGE] {
						r = r.SGE(e.Addr, e.Length, e.LKey)
					}
				}
				require.NoError(t, batch.Err())
				b.stub.ResetLog()
				n, err := q.Post(batch)
				if !b.same(t, queue.slot+" rdma "+name, recipes, want, b.posted(n, len(recipes), err)) {
					return
				}
			}
		}
	}
}

// TestPollCQ checks that polling returns the completions of C's ibv_poll_cq, with none, some, all, or a failure, and
// that arming makes C's call.
func TestPollCQ(t *testing.T) {
	b := newBench(t)
	cq, object := b.device.CQ, b.device.Address("ibv_cq")
	const most = 8
	wcs := unsafe.Slice((*ibv.WC)(unsafe.Pointer(&b.other.Bytes()[0])), most)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&wcs[0])), most*unsafe.Sizeof(wcs[0]))
	where := uintptr(unsafe.Pointer(&wcs[0]))
	pollers := map[string]func(n int) (int, error){
		"libibverbs": func(n int) (int, error) { return libibverbs.PollCQ(cq, n, &wcs[0]) },
	}
	notifiers := map[string]func(solicited bool) error{}
	for _, way := range ways {
		q, err := rdma.NewCompletionQueue(cq, rdma.QueueOptions{Way: way.String()})
		require.NoError(t, err)
		pollers[way.String()], notifiers[way.String()] = func(n int) (int, error) { return q.Poll(wcs[:n]) },
			q.ReqNotify
	}
	for range 2_000 {
		requested := 1 + b.random.IntN(most)
		givenCount := b.random.IntN(requested + 2) // one more means failure
		result := uint64(givenCount)
		if givenCount > requested {
			givenCount, result = 0, ^uint64(1) // -2
		}
		entries := make([]byte, givenCount*int(unsafe.Sizeof(ibv.WC{})))
		b.scatter(entries)
		b.stub.Script("ibv_context_ops.poll_cq", Result{Value: result, Pokes: []Poke{{Arg: 2, Bytes: entries}}})
		b.stub.ResetLog()
		clear(memory)
		inC, _ := b.stub.Call("ibv_poll_cq", uint64(object), uint64(requested), uint64(where))
		log, want := bytes.Clone(b.stub.RawLog()), bytes.Clone(memory)
		for name, poll := range pollers {
			b.stub.ResetLog()
			clear(memory)
			n, err := poll(requested)
			assert.Equal(t, log, b.stub.RawLog(), name)
			assert.Equal(t, want, memory, name)
			assert.Equal(t, int32(inC) < 0, err != nil, "%s: %v", name, err)
			assert.Equal(t, max(int(int32(inC)), 0), n, name)
		}
		solicited := b.random.IntN(2)
		answer := []uint64{0, 12}[b.random.IntN(2)]
		b.stub.Script("ibv_context_ops.req_notify_cq", Result{Value: answer})
		b.stub.ResetLog()
		b.stub.Call("ibv_req_notify_cq", uint64(object), uint64(solicited))
		log = bytes.Clone(b.stub.RawLog())
		for id, notify := range notifiers {
			b.stub.ResetLog()
			err := notify(solicited == 1)
			assert.Equal(t, log, b.stub.RawLog(), id)
			assert.EqualValues(t, answer, errnoOf(err), id)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %d requested, %d returned", *seed, requested, givenCount)
		}
	}
}
