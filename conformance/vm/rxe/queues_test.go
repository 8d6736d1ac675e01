// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// TestQueues posts prepared work through package rdma's queues, checked and unchecked and with each way to call. It
// checks that no message is lost or reordered.
func TestQueues(t *testing.T) {
	r := testbed.Open(t)
	for _, unchecked := range []bool{false, true} {
		for _, way := range []string{"", "blocking", "system"} {
			t.Run(map[bool]string{false: "checked", true: "unchecked"}[unchecked]+" "+way, func(t *testing.T) {
				sub := r.For(t)
				pair := sub.Pair(ibv.QPT_RC)
				o := rdma.QueueOptions{Cap: testbed.Caps, Unchecked: unchecked, Way: way}
				q := queues(t, pair, o)
				unchanged := runtime.System // rxe posts through the kernel, which does not sleep
				if testbed.Kernel(t) == testbed.Soft || testbed.Native() {
					assert.Equal(t, "software", q.send.Provider())
					unchanged = runtime.Blocking
				} else {
					assert.Contains(t, q.send.Provider(), "rxe")
				}
				if way == "" {
					assert.Equal(t, unchanged, q.send.Way())
				}
				rounds(t, sub, q, 20)
			})
		}
	}
}

type queueSet struct {
	send       *rdma.SendQueue
	recv       *rdma.RecvQueue
	sent, came *rdma.CompletionQueue
}

func queues(t *testing.T, p *testbed.Pair, o rdma.QueueOptions) (q queueSet) {
	t.Helper()
	var err error
	q.send, err = rdma.NewSendQueue(p.A, o)
	require.NoError(t, err)
	q.recv, err = rdma.NewRecvQueue(p.B, o)
	require.NoError(t, err)
	q.sent, err = rdma.NewCompletionQueue(p.ASend, o)
	require.NoError(t, err)
	q.came, err = rdma.NewCompletionQueue(p.BRecv, o)
	require.NoError(t, err)
	q.sent.Track(p.A.QPNum, q.send, nil)
	q.came.Track(p.B.QPNum, nil, q.recv)
	return q
}

// rounds sends chains of 8 numbered messages, of which the last one is signaled.
func rounds(t *testing.T, r *testbed.Testbed, q queueSet, n int) {
	t.Helper()
	const chain, size = 8, 64
	from, to := r.Buffer(chain*size, ibv.ACCESS_LOCAL_WRITE), r.Buffer(chain*size, ibv.ACCESS_LOCAL_WRITE)
	sends, err := rdma.NewSendBatch(chain, 1, 0)
	require.NoError(t, err)
	defer sends.Close()
	recvs, err := rdma.NewRecvBatch(chain, 1)
	require.NoError(t, err)
	defer recvs.Close()
	for i := range chain {
		s := sends.Send(uint64(i)).Add(from.SGE(i*size, size))
		if i == chain-1 {
			s.Signaled()
		}
		recvs.Recv(uint64(i)).Add(to.SGE(i*size, size))
	}
	for round := range n {
		for i := range chain {
			binary.NativeEndian.PutUint64(from.Bytes[i*size:], uint64(round*chain+i))
		}
		posted, err := q.recv.Post(recvs)
		require.NoError(t, err)
		require.Equal(t, chain, posted)
		posted, err = q.send.Post(sends)
		require.NoError(t, err)
		require.Equal(t, chain, posted)
		for i, wc := range drain(t, q.came, chain) {
			require.Equal(t, ibv.WC_SUCCESS, wc.Status)
			require.EqualValues(t, i, wc.WRID)
			require.EqualValues(t, round*chain+i, binary.NativeEndian.Uint64(to.Bytes[i*size:]))
		}
		require.EqualValues(t, chain-1, drain(t, q.sent, 1)[0].WRID)
	}
}

// drain polls until n completions have arrived.
func drain(t *testing.T, q *rdma.CompletionQueue, n int) []ibv.WC {
	t.Helper()
	wcs := make([]ibv.WC, n)
	for got, deadline := 0, time.Now().Add(5*time.Second); got < n; {
		k, err := q.Poll(wcs[got:])
		require.NoError(t, err)
		got += k
		require.False(t, time.Now().After(deadline), "%d of %d completions", got, n)
	}
	return wcs
}

// TestCheckedQueue checks that requests that the provider would accept and then fail are rejected before the call, with
// the name of the rule, and that the queue pair remains usable.
func TestCheckedQueue(t *testing.T) {
	r := testbed.Open(t)
	pair := r.Pair(ibv.QPT_UC)
	buffer := r.Buffer(64, r.Access)
	sends, err := rdma.NewSendBatch(64, 1, 0)
	require.NoError(t, err)
	defer sends.Close()
	checked := queues(t, pair, rdma.QueueOptions{Cap: testbed.Caps}).send
	sends.Read(1, buffer.Address(0), buffer.MR.RKey).Add(buffer.SGE(0, 8)).Signaled()
	posted, err := checked.Post(sends)
	assert.Zero(t, posted)
	assert.ErrorContains(t, err, "IBV_WR_RDMA_READ")
	assert.ErrorContains(t, err, "UC")
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.Equal(t, ibv.QPS_RTS, r.State(pair.A))

	// The queue has 16 slots: a list of 20 requests is rejected completely, and a list of 16 is accepted.
	sends.Reset()
	for i := range 20 {
		sends.Write(uint64(i), buffer.Address(0), buffer.MR.RKey).Add(buffer.SGE(0, 8)).Signaled()
	}
	posted, err = checked.Post(sends)
	assert.Zero(t, posted)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	var failed *rdma.PostError
	if assert.True(t, errors.As(err, &failed)) {
		assert.Zero(t, failed.Index)
	}
	posted, err = checked.PostRange(sends, 0, 16)
	assert.Equal(t, 16, posted)
	assert.NoError(t, err)
	for range 16 {
		assert.Equal(t, ibv.WC_SUCCESS, r.Completion(pair.ASend).Status)
	}

	unchecked, err := rdma.NewSendQueue(pair.A, rdma.QueueOptions{Unchecked: true})
	require.NoError(t, err)
	sends.Reset()
	sends.Read(1, buffer.Address(0), buffer.MR.RKey).Add(buffer.SGE(0, 8)).Signaled()
	posted, err = unchecked.Post(sends)
	if testbed.Kernel(t) == testbed.Soft {
		assert.Zero(t, posted)
		assert.ErrorIs(t, err, syscall.EINVAL, "the software device follows the page, unchecked")
		return
	}
	assert.Equal(t, 1, posted)
	assert.NoError(t, err, "the provider accepts it")
	assert.NotEqual(t, ibv.WC_SUCCESS, r.Completion(pair.ASend).Status)
	assert.Equal(t, ibv.QPS_ERR, r.State(pair.A))
}
