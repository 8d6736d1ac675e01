// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	tests "github.com/goverbs/goverbs/rdma/soft/internal/testbed"
)

// sendMany sends numbered messages one after another, and logs their completions, completion times and received data.
func (s *testPair) sendMany(n int) (log []string) {
	for i := range n {
		binary.NativeEndian.PutUint64(s.bufA.bytes, uint64(i))
		s.recv(s.p.b, uint64(i), s.bufB.sge(0, 64))
		if err := s.post(s.p.a, s.send(uint64(i), ibv.WR_SEND, s.bufA.sge(0, 8))); err != nil {
			return append(log, err.Error())
		}
		sent := s.statuses(s.p.aSend)
		log = append(log, fmt.Sprint(i, sent, s.fabric.Now(), s.statuses(s.p.bRecv),
			binary.NativeEndian.Uint64(s.bufB.bytes)))
		if sent[0] != ibv.WC_SUCCESS {
			break
		}
	}
	return log
}

// TestFaultsAreRepeatable: runs with the same seed are equal, and runs with different seeds differ.
func TestFaultsAreRepeatable(t *testing.T) {
	run := func(seed uint64) []string {
		s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{Seed: seed, Drop: 0.3, Delay: 0.2, Late: time.Millisecond}})
		return s.sendMany(50)
	}
	first := run(1)
	assert.Equal(t, first, run(1))
	assert.NotEqual(t, first, run(2))
}

// TestDrop: a reliable connection retransmits lost messages, and executes them once; an unreliable one does not notice
// the loss.
func TestDrop(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{Seed: 7, Drop: 0.3}})
	for i := range 40 {
		wr := s.send(uint64(i), ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(8, 8))
		*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey, CompareAdd: 1}
		require.NoError(t, s.post(s.p.a, wr))
		status := s.statuses(s.p.aSend)
		require.Len(t, status, 1)
		if status[0] == ibv.WC_RETRY_EXC_ERR { // lost three times
			require.Greater(t, i, 3)
			break
		}
		require.Equal(t, ibv.WC_SUCCESS, status[0])
		require.EqualValues(t, i+1, binary.NativeEndian.Uint64(s.bufB.bytes))
		require.EqualValues(t, i, binary.NativeEndian.Uint64(s.bufA.bytes[8:]))
	}
	require.Greater(t, s.fabric.Now(), 60*time.Millisecond, "no message was lost")

	u := newTestPair(t, ibv.QPT_UC, Options{Faults: Faults{Seed: 7, Drop: 0.5}})
	arrived := 0
	for i := range 40 {
		u.recv(u.p.b, uint64(i))
		require.NoError(t, u.post(u.p.a, u.send(uint64(i), ibv.WR_SEND)))
		require.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, u.statuses(u.p.aSend))
		if len(u.statuses(u.p.bRecv)) == 0 {
			require.NoError(t, verbs.ModifyQP(u.p.b, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
			require.NoError(t, verbs.ModifyQP(u.p.b, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			u.statuses(u.p.bRecv)
			u.connect(u.p.b, 0, u.p.a.QPNum)
			continue
		}
		arrived++
	}
	assert.InDelta(t, 20, arrived, 10)
}

func TestDuplicates(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{Faults: Faults{Duplicate: 1}})
	s.recv(s.p.b, 1, s.bufB.sge(0, 64))
	s.recv(s.p.b, 2, s.bufB.sge(0, 64))
	require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND), s.ah(0, 1), s.p.b.QPNum, testQKey)))
	assert.Len(t, s.statuses(s.p.aSend), 1)
	assert.Len(t, s.statuses(s.p.bRecv), 2)
}

func TestDelay(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{Delay: 1, Late: 5 * time.Millisecond}})
	copy(s.bufA.bytes, "late")
	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 4)), 0)))
	assert.Zero(t, s.bufB.bytes[0])
	s.fabric.Advance(4 * time.Millisecond)
	assert.Zero(t, s.bufB.bytes[0])
	s.fabric.Advance(time.Millisecond)
	assert.Equal(t, "late", string(s.bufB.bytes[:4]))
	s.poll(s.p.aSend)
}

func TestNotReady(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{NotReady: true}})
	s.recv(s.p.b, 1)
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
	s.tryPoll(s.p.aSend)
	s.fabric.SetFaults(Faults{})
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
	s.fabric.SetFaults(Faults{NotReady: true})
	s.recv(s.p.b, 2)
	require.NoError(t, s.post(s.p.a, s.send(2, ibv.WR_SEND)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_RNR_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
}

// TestAllocationFailures: each allocation fails in turn with ENOMEM, and the failed calls leak nothing.
func TestAllocationFailures(t *testing.T) {
	r := newTestbed(t, Options{})
	before := r.fabric.Resources()
	memory := offHeap[byte](r, 64)
	setUp := func() (err error) {
		pd, err := verbs.AllocPD(r.context[0])
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DeallocPD(pd)) }()
		mr, err := verbs.RegMR(pd, pointerTo(&memory[0]), 64, ibv.ACCESS_LOCAL_WRITE)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		mw, err := verbs.AllocMW(pd, ibv.MW_TYPE_2)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DeallocMW(mw)) }()
		channel, err := verbs.CreateCompChannel(r.context[0])
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DestroyCompChannel(channel)) }()
		cq, err := verbs.CreateCQ(r.context[0], 4, 0, channel, 0)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DestroyCQ(cq)) }()
		srq, err := verbs.CreateSRQ(pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 1}})
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
		qp, err := verbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
			SRQ: ibv.PtrTo(srq)})
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, verbs.DestroyQP(qp)) }()
		attr := r.av(0)
		ah, err := verbs.CreateAH(pd, &attr)
		if err != nil {
			return err
		}
		return verbs.DestroyAH(ah)
	}
	n := 1
	for ; ; n++ {
		r.fabric.SetFaults(Faults{FailAllocation: n})
		err := setUp()
		assert.Equal(t, before, r.fabric.Resources())
		if err == nil {
			break
		}
		assert.ErrorIs(t, err, syscall.ENOMEM)
	}
	assert.Equal(t, 9, n, "eight allocations")
}

// TestLinkDown: a change of the link changes the port state and raises an event.
func TestLinkDown(t *testing.T) {
	r := newTestbed(t, Options{})
	assert.False(t, r.fabric.SetLink("soft7", false))
	port := new(ibv.PortAttr)
	for _, c := range []struct {
		up    bool
		state ibv.PortState
		event ibv.EventType
	}{{false, ibv.PORT_DOWN, ibv.EVENT_PORT_ERR}, {true, ibv.PORT_ACTIVE, ibv.EVENT_PORT_ACTIVE}} {
		require.True(t, r.fabric.SetLink("soft0", c.up))
		require.True(t, r.fabric.SetLink("soft0", c.up))
		require.NoError(t, verbs.QueryPort(r.context[0], 1, port))
		assert.Equal(t, c.state, port.State)
		event := r.asyncEvent(0, c.event)
		assert.EqualValues(t, 1, *event.Element.PortNum())
		require.NoError(t, verbs.AckAsyncEvent(event))
	}
}

func TestLinkInitiallyDown(t *testing.T) {
	r := newTestbed(t, Options{Devices: []DeviceOptions{{Down: true}, {}}})
	port := new(ibv.PortAttr)
	for i, state := range []ibv.PortState{ibv.PORT_DOWN, ibv.PORT_ACTIVE} {
		require.NoError(t, verbs.QueryPort(r.context[i], 1, port))
		assert.Equal(t, state, port.State)
	}
	require.True(t, r.fabric.SetLink("soft0", true))
	require.NoError(t, verbs.QueryPort(r.context[0], 1, port))
	assert.Equal(t, ibv.PORT_ACTIVE, port.State)
}

// TestWaitForMissingEvent: while a goroutine waits for an event that does not arrive, the virtual clock advances, and
// other goroutines can use the fabric.
func TestWaitForMissingEvent(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true, Faults: Faults{NotReady: true}})
	ch, err := verbs.CreateCompChannel(r.context[0])
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(r.context[0], 16, 0, ch, 0)
	require.NoError(t, err)
	t.Cleanup(func() { verbs.DestroyCQ(cq); verbs.DestroyCompChannel(ch) })
	bcq := r.cq(1, 16)
	a, b := r.qp(0, ibv.QPT_RC, testCaps, cq, cq), r.qp(1, ibv.QPT_RC, testCaps, bcq, bcq)
	r.toRTR(a, 1, b.QPNum)
	require.NoError(t, verbs.ModifyQP(a,
		&ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1},
		ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC))
	r.connect(b, 0, a.QPNum)
	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	r.recv(b, 1)
	require.NoError(t, r.post(a, r.send(1, ibv.WR_SEND)))
	received := make(chan struct{})
	go func() {
		defer close(received)
		ev, cx := &offHeap[ibv.Ptr[ibv.CQ]](r, 1)[0], &offHeap[uintptr](r, 1)[0]
		verbs.GetCQEvent(ch, ev, cx)
		verbs.AckCQEvents(cq, 1)
	}()
	time.Sleep(50 * time.Millisecond)
	done := make(chan struct{})
	go func() { r.fabric.SetFaults(Faults{}); close(done) }()
	select {
	case <-done:
	case <-time.After(tests.EventLimit):
		t.Fatal("SetFaults blocks while a goroutine waits for an event")
	}
	r.within("a completion event", func() error { <-received; return nil })
}

// TestVirtualTimeIsMonotonic: a virtual clock never goes backwards, even with negative or huge delays.
func TestVirtualTimeIsMonotonic(t *testing.T) {
	for _, late := range []time.Duration{-time.Hour, math.MaxInt64} {
		s := newTestPair(t, ibv.QPT_RC, Options{Faults: Faults{Delay: 1, Late: late}})
		s.fabric.Advance(time.Minute)
		require.NoError(t, s.post(s.p.a, s.toBufB(s.send(1, ibv.WR_RDMA_WRITE), 0)))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
		assert.GreaterOrEqual(t, s.fabric.Now(), time.Minute)
	}
}

// TestBadOptions: creating a fabric with invalid options fails, and leaks nothing.
func TestBadOptions(t *testing.T) {
	for _, o := range []DeviceOptions{{Name: "a"}, {MTU: 77}, {Address: netip.MustParseAddr("127.0.0.1")},
		{Name: strings.Repeat("n", 64)}} {
		_, err := New(Options{Devices: []DeviceOptions{{Name: "a"}, o}})
		assert.Error(t, err, "%v", o)
		assert.NotErrorIs(t, err, syscall.EBUSY)
	}
}

// TestFaultStateIsFreed: the state of delayed messages and lost answers is freed with its queue pair.
func TestFaultStateIsFreed(t *testing.T) {
	faults := Faults{Seed: 3, Drop: 0.5, Delay: 0.5, Late: time.Millisecond}
	r := newTestbed(t, Options{Virtual: true, Faults: faults})
	bufA, bufB := r.buffer(0, 64, allAccess), r.buffer(1, 64, allAccess)
	t.Run("a queue pair", func(t *testing.T) {
		sub := *r
		sub.t = t
		p := sub.pair(ibv.QPT_RC)
		for id := range uint64(8) {
			wr := sub.send(id, ibv.WR_RDMA_WRITE, bufA.sge(0, 8))
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: bufB.at(0), RKey: bufB.mr.RKey}
			require.NoError(t, sub.post(p.a, wr))
		}
		for range 100 {
			sub.tryPoll(p.aSend)
		}
		require.NotZero(t, r.fabric.Faulty.Known())
	})
	assert.Zero(t, r.fabric.Faulty.Known())
}

// TestLockAfterPanic: a panic during work on ready queue pairs leaves the fabric unlocked.
func TestLockAfterPanic(t *testing.T) {
	f, err := New(Options{})
	require.NoError(t, err)
	assert.Panics(t, func() {
		f.Mu.Lock()
		f.Ready = append(f.Ready, nil) // no queue pair
		f.Unlock()
	})
	require.True(t, f.Mu.TryLock())
	f.Mu.Unlock()
	require.NoError(t, f.Close())
}
