// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// TestRetryTimers: a request is retransmitted when its timer fires. Another request or a receive does not retransmit it
// earlier.
func TestRetryTimers(t *testing.T) {
	type statuses = []ibv.WCStatus
	t.Run("no receive", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		for id := range uint64(4) {
			require.NoError(t, s.post(s.p.a, s.send(id, ibv.WR_SEND)))
		}
		assert.EqualValues(t, 1, s.fabric.Counters().NotReady, "four requests, the first was sent once")
		assert.Equal(t, statuses{ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_WR_FLUSH_ERR, ibv.WC_WR_FLUSH_ERR,
			ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.aSend))
		assert.EqualValues(t, 3, s.fabric.Counters().NotReady)
		assert.Equal(t, 20*time.Microsecond, s.fabric.Now(), "two retries, min_rnr_timer 1")
	})
	t.Run("receive posted", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		copy(s.bufA.bytes, "patient")
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 7))))
		s.recv(s.p.b, 1, s.bufB.sge(0, 64))
		s.fabric.Advance(9 * time.Microsecond)
		assert.Zero(t, s.bufB.bytes[0])
		s.fabric.Advance(time.Microsecond)
		assert.Equal(t, "patient", string(s.bufB.bytes[:7]))
		s.poll(s.p.aSend)
		s.poll(s.p.bRecv)
	})
	t.Run("no answer", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.True(t, s.fabric.SetLink("soft1", false))
		for id := range uint64(3) {
			require.NoError(t, s.post(s.p.a, s.send(id, ibv.WR_SEND)))
		}
		assert.EqualValues(t, 1, s.fabric.Counters().Lost, "three requests, the first was sent once")
		assert.Equal(t, statuses{ibv.WC_RETRY_EXC_ERR, ibv.WC_WR_FLUSH_ERR, ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.aSend))
		assert.EqualValues(t, 3, s.fabric.Counters().Lost)
		assert.Equal(t, 3*4096*time.Nanosecond<<14, s.fabric.Now(), "timeout 14, and two retries")
	})
}

// TestDuplicateRequests: a request that arrives twice, or is retransmitted because its answer was lost, is executed
// once.
func TestDuplicateRequests(t *testing.T) {
	for name, faults := range map[string]Faults{"twice": {Duplicate: 1}, "again": {Seed: 2, Drop: 0.2}} {
		t.Run(name, func(t *testing.T) {
			s := newTestPair(t, ibv.QPT_RC, Options{Faults: faults})
			for i := range uint64(8) {
				wr := s.send(i, ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(8, 8))
				*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey, CompareAdd: 1}
				require.NoError(t, s.post(s.p.a, wr))
				require.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
				require.Equal(t, i, binary.NativeEndian.Uint64(s.bufA.bytes[8:]), "value before the operation")
				require.Equal(t, i+1, binary.NativeEndian.Uint64(s.bufB.bytes))
				s.recv(s.p.b, i, s.bufB.sge(64, 8))
				require.NoError(t, s.post(s.p.a, s.send(i, ibv.WR_SEND, s.bufA.sge(0, 8))))
				require.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
				require.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.bRecv))
				require.NoError(t, s.post(s.p.a, s.toBufB(s.send(i, ibv.WR_RDMA_READ, s.bufA.sge(16, 8)), 0)))
				require.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
				require.Equal(t, i+1, binary.NativeEndian.Uint64(s.bufA.bytes[16:]))
			}
			if name == "twice" {
				assert.EqualValues(t, 24, s.fabric.Counters().Duplicates)
			} else {
				assert.Positive(t, s.fabric.Counters().Duplicates, "no answer was dropped")
			}
		})
	}
	t.Run("unreliable", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_UC, Options{Faults: Faults{Duplicate: 1}})
		s.recv(s.p.b, 1)
		s.recv(s.p.b, 2)
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Len(t, s.statuses(s.p.bRecv), 1)
		assert.EqualValues(t, 1, s.fabric.Counters().Duplicates)
		require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
		assert.Len(t, s.statuses(s.p.bRecv), 1)
		s.statuses(s.p.aSend)
	})
}

// TestLostNAK: a receiver that rejects a message moves to ERR and accepts no retransmission. A sender that does not get
// the NAK times out.
func TestLostNAK(t *testing.T) {
	for seed := range uint64(200) {
		s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{Seed: seed, Drop: 0.5}})
		wr := s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 16)), 0)
		wr.WR.RDMA().RKey ^= 1
		require.NoError(t, s.post(s.p.a, wr))
		if s.state(s.p.b) != ibv.QPS_ERR || s.state(s.p.a) != ibv.QPS_RTS { // not executed, or answered
			continue
		}
		assert.Equal(t, []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
		return
	}
	t.Fatal("no answer was dropped")
}

// TestTagsNotReady: a receiver that is not ready does not accept tagged messages or the FIN of a rendezvous.
func TestTagsNotReady(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	r.add(10, 0xa, 0, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.fabric.SetFaults(Faults{NotReady: true})
	tmh := offHeap[ibv.TMH](r.testbed, 1)
	tmh[0] = ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(0xa)}
	copy(r.bufA.bytes, mem.List[byte](mem.AddressOf(&tmh[0]), int(resource.TagHeader)))
	require.NoError(t, r.post(r.p.a, r.send(1, ibv.WR_SEND, r.bufA.sge(0, 20))))
	_, matches := r.tryPoll(r.cq)
	assert.False(t, matches)
	r.fabric.SetFaults(Faults{})
	r.fabric.Advance(10 * time.Microsecond)
	r.completed(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.Equal(t, ibv.WC_SUCCESS, r.poll(r.p.aSend).Status)
}

// TestFinAfterPendingRequest: the FIN of a rendezvous does not overtake a request that was executed and waits for its
// answer. Otherwise the request would be executed again.
func TestFinAfterPendingRequest(t *testing.T) {
	for seed := range uint64(200) {
		r := newTagTestbed(t, 4, 4)
		r.fabric.SetFaults(Faults{Seed: seed, Drop: 0.5})
		wr := r.testbed.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, r.bufB.sge(8, 8))
		*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: r.bufA.at(2048), RKey: r.bufA.mr.RKey, CompareAdd: 1}
		require.NoError(t, r.post(r.p.b, wr))
		r.fabric.SetFaults(Faults{})
		if r.fabric.Counters().Lost == 0 || r.bufA.bytes[2048] == 0 { // answered, or not executed
			continue
		}
		r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
		r.add(10, 0xa, 0, 64)
		r.rendezvous(0xa, 1024, 24)
		for empty := 0; empty < 20; {
			if _, ok := r.tryPoll(r.p.bSend); !ok {
				empty++
			}
			r.tryPoll(r.cq)
		}
		assert.EqualValues(t, 1, binary.NativeEndian.Uint64(r.bufA.bytes[2048:]))
		assert.EqualValues(t, 77, r.poll(r.p.aRecv).WRID, "the FIN")
		return
	}
	t.Fatal("no answer was dropped")
}

// TestLoopbackError: a queue pair connected to itself, whose own message moves it to ERR, flushes its pending requests
// at once, although the answer was lost.
func TestLoopbackError(t *testing.T) {
	broke := 0
	for seed := range uint64(8) {
		r := newTestbed(t, Options{Virtual: true, Faults: Faults{Seed: seed, Drop: 1}})
		send, recv := r.cq(0, 16), r.cq(0, 16)
		qp := r.qp(0, ibv.QPT_RC, testCaps, send, recv)
		r.connect(qp, 0, qp.QPNum)
		b := r.buffer(0, 64, allAccess)
		r.recv(qp, 1, b.sge(0, 4))
		require.NoError(t, r.post(qp, r.send(2, ibv.WR_SEND, b.sge(8, 8))))
		attr := new(ibv.QPAttr)
		require.NoError(t, verbs.QueryQP(qp, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		if attr.QPState != ibv.QPS_ERR {
			continue // the message was lost, not the answer
		}
		broke++
		require.Equal(t, ibv.WC_WR_FLUSH_ERR, r.poll(send).Status)
		require.Equal(t, ibv.WC_LOC_LEN_ERR, r.poll(recv).Status)
		require.Zero(t, r.fabric.Now(), "the requests were not flushed at once")
	}
	require.Positive(t, broke)
}
