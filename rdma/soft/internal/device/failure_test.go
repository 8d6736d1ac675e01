// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// testPair is a connected pair of queue pairs on a virtual clock, with a registered buffer on each side.
type testPair struct {
	*testbed
	p          *pair
	bufA, bufB *buffer
}

func newTestPair(t *testing.T, kind ibv.QPType, o Options) *testPair {
	o.Virtual = true
	r := newTestbed(t, o)
	return &testPair{r, r.pair(kind), r.buffer(0, 4096, allAccess), r.buffer(1, 4096, allAccess)}
}

func (s *testPair) toBufB(wr *ibv.SendWR, offset int) *ibv.SendWR {
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.bufB.at(offset), RKey: s.bufB.mr.RKey}
	return wr
}

func (r *testbed) state(qp *ibv.QP) ibv.QPState {
	attr := new(ibv.QPAttr)
	require.NoError(r.t, verbs.QueryQP(qp, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
	return attr.QPState
}

// statuses polls until no more completions arrive, while the virtual clock advances, and returns their statuses in
// order.
func (s *testPair) statuses(cq *ibv.CQ) (all []ibv.WCStatus) {
	for empty := 0; empty < 20; {
		if wc, ok := s.tryPoll(cq); ok {
			all, empty = append(all, wc.Status), 0
		} else {
			empty++
		}
	}
	return all
}

// TestRequestErrors: each error completes with the expected status on each side, and moves queue pairs to ERR.
func TestRequestErrors(t *testing.T) {
	type statuses = []ibv.WCStatus
	for _, c := range []struct {
		name           string
		newWR          func(s *testPair) *ibv.SendWR
		sent, received statuses
		peer           ibv.QPState
	}{
		{"bad lkey", func(s *testPair) *ibv.SendWR {
			sge := s.bufA.sge(0, 16)
			sge.LKey ^= 0xff00
			return s.send(1, ibv.WR_SEND, sge)
		}, statuses{ibv.WC_LOC_PROT_ERR}, nil, ibv.QPS_RTS},
		{"local address beyond the region", func(s *testPair) *ibv.SendWR {
			sge := s.bufA.sge(4090, 16)
			return s.send(1, ibv.WR_SEND, sge)
		}, statuses{ibv.WC_LOC_PROT_ERR}, nil, ibv.QPS_RTS},
		{"local address that wraps around", func(s *testPair) *ibv.SendWR {
			sge := s.bufA.sge(0, 16)
			sge.Addr = ^uint64(0) - 7
			return s.send(1, ibv.WR_SEND, sge)
		}, statuses{ibv.WC_LOC_PROT_ERR}, nil, ibv.QPS_RTS},
		{"bad rkey", func(s *testPair) *ibv.SendWR {
			wr := s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16)), 0)
			wr.WR.RDMA().RKey ^= 1
			return wr
		}, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"write beyond the region", func(s *testPair) *ibv.SendWR {
			return s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16)), 4088)
		}, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"read of a region without remote read", func(s *testPair) *ibv.SendWR {
			s.bufB = s.buffer(1, 64, ibv.ACCESS_LOCAL_WRITE)
			return s.toBufB(s.send(1, ibv.WR_RDMA_READ, s.bufA.sge(0, 16)), 0)
		}, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"read into a region without local write", func(s *testPair) *ibv.SendWR {
			return s.toBufB(s.send(1, ibv.WR_RDMA_READ, s.buffer(0, 64, 0).sge(0, 16)), 0)
		}, statuses{ibv.WC_LOC_PROT_ERR}, nil, ibv.QPS_RTS},
		{"write not allowed by the queue pair", func(s *testPair) *ibv.SendWR {
			require.NoError(s.t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPAccessFlags: ibv.ACCESS_REMOTE_READ},
				ibv.QP_ACCESS_FLAGS))
			return s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16)), 0)
		}, statuses{ibv.WC_REM_INV_REQ_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"receive too short", func(s *testPair) *ibv.SendWR {
			return s.send(1, ibv.WR_SEND, s.bufA.sge(0, 65))
		}, statuses{ibv.WC_REM_INV_REQ_ERR}, statuses{ibv.WC_LOC_LEN_ERR}, ibv.QPS_ERR},
		{"unaligned atomic", func(s *testPair) *ibv.SendWR {
			wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(0, 8))
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(4), RKey: s.bufB.mr.RKey}
			return wr
		}, statuses{ibv.WC_REM_INV_REQ_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"atomic of four bytes", func(s *testPair) *ibv.SendWR {
			wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(0, 4))
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey}
			return wr
		}, statuses{ibv.WC_LOC_LEN_ERR}, nil, ibv.QPS_RTS},
		{"invalidation of a key that is not a window's", func(s *testPair) *ibv.SendWR {
			wr := s.send(1, ibv.WR_SEND_WITH_INV, s.bufA.sge(0, 16))
			*wr.InvalidateRKey() = s.bufB.mr.RKey
			return wr
		}, statuses{ibv.WC_REM_INV_REQ_ERR}, statuses{ibv.WC_REM_INV_REQ_ERR}, ibv.QPS_ERR},
		{"deregistered region", func(s *testPair) *ibv.SendWR {
			mr, err := verbs.RegMR(s.pd[1], pointerTo(&s.bufB.bytes[0]), 64, allAccess)
			require.NoError(s.t, err)
			wr := s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16))
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.bufB.at(0), RKey: mr.RKey}
			require.NoError(s.t, verbs.DeregMR(mr))
			return wr
		}, statuses{ibv.WC_REM_ACCESS_ERR}, statuses{ibv.WC_WR_FLUSH_ERR}, ibv.QPS_ERR},
		{"peer in RESET", func(s *testPair) *ibv.SendWR {
			require.NoError(s.t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			return s.send(1, ibv.WR_SEND, s.bufA.sge(0, 16))
		}, statuses{ibv.WC_RETRY_EXC_ERR}, nil, ibv.QPS_RESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTestPair(t, ibv.QPT_RC, Options{})
			s.recv(s.p.b, 7, s.bufB.sge(512, 64))
			for i := range s.bufA.bytes {
				s.bufA.bytes[i] = 0xaa
			}
			require.NoError(t, s.post(s.p.a, c.newWR(s)))
			assert.Equal(t, c.sent, s.statuses(s.p.aSend))
			assert.Equal(t, c.received, s.statuses(s.p.bRecv))
			assert.Equal(t, ibv.QPS_ERR, s.state(s.p.a))
			assert.Equal(t, c.peer, s.state(s.p.b))
			for _, b := range s.bufB.bytes {
				require.Zero(t, b, "the peer's memory was modified")
			}
			require.NoError(t, s.post(s.p.a, s.send(2, ibv.WR_SEND)), "requests posted in ERR are accepted and flushed")
			assert.Equal(t, statuses{ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.aSend))
		})
	}
}

// TestFlush: when a request fails, outstanding requests are flushed in order, including unsignalled ones.
func TestFlush(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	wrs := []*ibv.SendWR{s.send(1, ibv.WR_SEND), s.send(2, ibv.WR_SEND), s.send(3, ibv.WR_SEND), s.send(4, ibv.WR_SEND)}
	for i := range wrs[:3] {
		wrs[i].Next = ibv.PtrTo(wrs[i+1])
	}
	wrs[2].SendFlags = 0
	for id := range uint64(3) {
		s.recv(s.p.a, 10+id)
	}
	require.NoError(t, s.post(s.p.a, wrs[0]))
	for _, want := range []ibv.WC{
		{WRID: 1, Status: ibv.WC_RNR_RETRY_EXC_ERR}, {WRID: 2, Status: ibv.WC_WR_FLUSH_ERR},
		{WRID: 3, Status: ibv.WC_WR_FLUSH_ERR}, {WRID: 4, Status: ibv.WC_WR_FLUSH_ERR},
	} {
		var wc ibv.WC
		for ok, polls := false, 0; !ok; polls++ { // each unsuccessful poll advances the virtual clock
			require.Less(t, polls, 10)
			wc, ok = s.tryPoll(s.p.aSend)
		}
		assert.Equal(t, want.WRID, wc.WRID)
		assert.Equal(t, want.Status, wc.Status)
	}
	for id := range uint64(3) {
		wc := s.poll(s.p.aRecv)
		assert.Equal(t, 10+id, wc.WRID)
		assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	}
}

// TestRetries: the virtual clock measures how long a sender retries.
func TestRetries(t *testing.T) {
	t.Run("no answer", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.True(t, s.fabric.SetLink("soft1", false))
		start := s.fabric.Now()
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
		assert.Equal(t, 3*4096*time.Nanosecond<<14, s.fabric.Now()-start, "timeout 14, and two retries")
	})
	t.Run("answer after a retry", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		s.fabric.SetLink("soft1", false)
		s.recv(s.p.b, 7)
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		s.tryPoll(s.p.aSend)
		s.fabric.SetLink("soft1", true)
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.bRecv))
	})
	t.Run("no receive", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		start := s.fabric.Now()
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_RNR_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
		assert.Equal(t, 2*10*time.Microsecond, s.fabric.Now()-start, "two retries, min_rnr_timer 1")
		assert.Equal(t, ibv.QPS_RTS, s.state(s.p.b))
	})
	t.Run("receive posted during RNR retries", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 8))))
		s.tryPoll(s.p.aSend)
		s.recv(s.p.b, 7, s.bufB.sge(0, 8))
		assert.EqualValues(t, 7, s.poll(s.p.bRecv).WRID)
		assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	})
	t.Run("unlimited RNR retries", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
		s.tryPoll(s.p.aSend)
		require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{RNRRetry: 7}, ibv.QP_RNR_RETRY))
		require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Empty(t, s.statuses(s.p.aSend))
		s.recv(s.p.b, 7)
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
	})
	t.Run("sequence numbers differ", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		s.toRTR(s.p.a, 1, s.p.b.QPNum)
		attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 78, Timeout: 14, RetryCnt: 2, RNRRetry: 2, MaxRdAtomic: 4}
		require.NoError(t, verbs.ModifyQP(s.p.a, attr,
			ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC))
		s.recv(s.p.b, 7)
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
	})
}

// TestLimits: queues hold as many requests as they were created for, until completions are polled.
func TestLimits(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UC, Options{})
	for id := range uint64(15) {
		wr := s.send(id, ibv.WR_SEND)
		wr.SendFlags = 0
		require.NoError(t, s.post(s.p.a, wr))
	}
	require.NoError(t, s.post(s.p.a, s.send(15, ibv.WR_SEND)))
	assert.ErrorIs(t, s.post(s.p.a, s.send(16, ibv.WR_SEND)), syscall.ENOMEM, "no completion was polled")
	assert.EqualValues(t, 15, s.poll(s.p.aSend).WRID)
	require.NoError(t, s.post(s.p.a, s.send(16, ibv.WR_SEND)), "one signalled completion releases all slots before it")

	for id := range uint64(16) {
		s.recv(s.p.b, id)
	}
	assert.ErrorIs(t, s.tryRecv(s.p.b, 16), syscall.ENOMEM)
	s.poll(s.p.aSend)
	require.NoError(t, s.post(s.p.a, s.send(17, ibv.WR_SEND)))
	s.poll(s.p.aSend)
	assert.ErrorIs(t, s.tryRecv(s.p.b, 16), syscall.ENOMEM, "its completion was not polled")
	s.poll(s.p.bRecv)
	assert.NoError(t, s.tryRecv(s.p.b, 16))

	assert.ErrorIs(t, s.tryRecv(s.p.b, 1, make([]ibv.SGE, 5)...), syscall.EINVAL)
	assert.ErrorIs(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, make([]ibv.SGE, 5)...)), syscall.EINVAL)
	inline := s.send(1, ibv.WR_SEND, s.bufA.sge(0, 65))
	inline.SendFlags |= ibv.SEND_INLINE
	assert.ErrorIs(t, s.post(s.p.a, inline), syscall.EINVAL)
	assert.ErrorIs(t, s.post(s.p.a, s.send(1, ibv.WR_RDMA_READ, s.bufA.sge(0, 8))), syscall.EINVAL, "UC has no reads")
}

// TestOverrun: the overrun of a completion queue is an error of the queue and of its queue pairs.
func TestOverrun(t *testing.T) {
	r := newTestbed(t, Options{})
	small, other := r.cq(0, 2), r.cq(0, 16)
	qp := r.qp(0, ibv.QPT_UC, testCaps, small, other)
	r.connect(qp, 0, qp.QPNum)
	for id := range uint64(3) {
		require.NoError(t, r.post(qp, r.send(id, ibv.WR_SEND)))
	}
	event := r.asyncEvent(0, ibv.EVENT_CQ_ERR)
	assert.Equal(t, ibv.PtrTo(small), *event.Element.CQ())
	require.NoError(t, verbs.AckAsyncEvent(event))
	require.NoError(t, verbs.AckAsyncEvent(r.asyncEvent(0, ibv.EVENT_QP_FATAL)))
	r.poll(small)
	r.poll(small)
	_, err := verbs.PollCQ(small, 1, new(ibv.WC))
	assert.Error(t, err)
}
