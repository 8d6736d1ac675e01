// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestMoveOverlapping: if the ranges overlap, the destination gets the original bytes of the source.
func TestMoveOverlapping(t *testing.T) {
	const room = 4 << 12
	memory, want := make([]byte, room), make([]byte, room)
	for _, n := range []int{1, 7, 8, 9, 64, 71, 200, 4096, 5000} {
		for _, shift := range []int{-4097, -65, -9, -8, -1, 0, 1, 7, 8, 9, 63, 64, 65, 4095, 4097} {
			for i := range memory {
				memory[i] = byte(i*7 + i>>8)
			}
			copy(want, memory)
			const from = 4100
			copy(want[from+shift:][:n], want[from:][:n])
			base := uint64(uintptr(unsafe.Pointer(&memory[0])))
			mem.Move(base+uint64(from+shift), base+from, uint64(n))
			require.Equal(t, want, memory, "%d bytes moved by %d", n, shift)
		}
	}
}

// TestMulticastNumberIsSkipped: the table never assigns the queue pair number that is reserved for multicast.
func TestMulticastNumberIsSkipped(t *testing.T) {
	n, object := &numbers.Table[engine.Numbered]{}, engine.Numbered{QP: &engine.QP{}}
	d := &engine.Port{On: &engine.Engine{}}
	var number uint32
	for range numbers.Most { // fills the table up to its last entry
		low, values := d.Tops()
		number, _ = n.Add(object, low, values)
	}
	for range 600 {
		n.Remove(number)
		var ok bool
		low, values := d.Tops()
		number, ok = n.Add(object, low, values)
		require.True(t, ok)
		require.EqualValues(t, 1<<numbers.Bits-1, number&(1<<numbers.Bits-1))
		require.NotEqualValues(t, engine.MulticastQPN, number)
		require.Equal(t, object, n.Get(number))
	}
}

// TestReplyRouteIPv6: flow label and traffic class come from the header.
func TestReplyRouteIPv6(t *testing.T) {
	var h [engine.GRHSize]byte
	binary.BigEndian.PutUint32(h[:], 6<<28|0xa5<<20|0x12345)
	h[8], h[24] = 1, 2
	route, own, errno := engine.ReadGRH(&h)
	require.Zero(t, errno)
	assert.Equal(t, [16]byte{2}, own)
	assert.Equal(t, [16]byte{1}, *route.DGID.Raw())
	assert.EqualValues(t, 0x12345, route.FlowLabel)
	assert.EqualValues(t, 0xa5, route.TrafficClass)
}

// TestReplyRouteIPv4: a header without a checksum is accepted. Soft-RoCE omits the checksum in loopback packets.
func TestReplyRouteIPv4(t *testing.T) {
	h := [engine.GRHSize]byte{20: 0x45, 21: 0x28, 32: 10, 33: 1, 36: 10, 37: 2}
	route, own, errno := engine.ReadGRH(&h)
	require.Zero(t, errno)
	assert.Equal(t, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 2}, own)
	assert.Equal(t, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1}, *route.DGID.Raw())
	assert.EqualValues(t, 0x28, route.TrafficClass)
}

// TestNoResponderResources: a queue pair with max_dest_rd_atomic 0 rejects reads and atomics.
func TestNoResponderResources(t *testing.T) {
	for _, op := range []ibv.WROpcode{ibv.WR_RDMA_READ, ibv.WR_ATOMIC_FETCH_AND_ADD} {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
		require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{}, ibv.QP_MAX_DEST_RD_ATOMIC))
		wr := s.toBufB(s.send(1, op, s.bufA.sge(0, 8)), 0)
		if op != ibv.WR_RDMA_READ {
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey}
		}
		require.NoError(t, s.post(s.p.a, wr))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_REM_INV_REQ_ERR}, s.statuses(s.p.aSend), op)
	}
}

// TestReadByteLen: the completions of reads and atomics report the number of bytes read.
func TestReadByteLen(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(1, ibv.WR_RDMA_READ, s.bufA.sge(0, 100), s.bufA.sge(200, 23)), 0)))
	assert.EqualValues(t, 123, s.poll(s.p.aSend).ByteLen)
	wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.sge(0, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.at(0), RKey: s.bufB.mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.EqualValues(t, 8, s.poll(s.p.aSend).ByteLen)
}

// TestDrainIsNotInterrupted: while requests are in flight, a queue pair in SQD can only change to ERR or RESET.
func TestDrainIsNotInterrupted(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	require.True(t, s.fabric.SetLink("soft1", false))
	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(1, ibv.WR_RDMA_WRITE), 0)))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	toRTS := func() error {
		return verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE)
	}
	assert.ErrorIs(t, toRTS(), syscall.EINVAL)
	require.True(t, s.fabric.SetLink("soft1", true))
	s.fabric.Advance(time.Second)
	require.NoError(t, toRTS())
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
}

// TestSRQLimit: the limit event is delivered when fewer receives than the limit are left, and the queue cannot be made
// smaller than the limit.
func TestSRQLimit(t *testing.T) {
	r := newTestbed(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	require.NoError(t, err)
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 3}, ibv.SRQ_LIMIT))
	assert.ErrorIs(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{MaxWR: 2}, ibv.SRQ_MAX_WR), syscall.EINVAL)
	for range 4 {
		require.NoError(t, verbs.PostSRQRecv(srq, &offHeap[ibv.RecvWR](r, 1)[0],
			&offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
	}
	armed := func() uint32 {
		attr := new(ibv.SRQAttr)
		require.NoError(t, verbs.QuerySRQ(srq, attr))
		return attr.SRQLimit
	}
	r.postLoopback(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	assert.EqualValues(t, 3, armed(), "3 receives are left")
	r.postLoopback(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	r.event(ibv.EVENT_SRQ_LIMIT_REACHED)()
	assert.Zero(t, armed(), "the limit is disarmed by its event")
	require.NoError(t, verbs.DestroySRQ(srq))
}

// TestInvalidBinds: binds to a key of another window, to the current key, and to a region without ACCESS_MW_BIND fail.
func TestInvalidBinds(t *testing.T) {
	for _, c := range []struct {
		name   string
		access ibv.AccessFlags
		key    uint32
		want   ibv.WCStatus
	}{
		{"valid", ibv.ACCESS_MW_BIND, 1, ibv.WC_SUCCESS},
		{"key of another window", ibv.ACCESS_MW_BIND, 1 << 8, ibv.WC_MW_BIND_ERR},
		{"the same key", ibv.ACCESS_MW_BIND, 0, ibv.WC_MW_BIND_ERR},
		{"region without MW_BIND", 0, 1, ibv.WC_MW_BIND_ERR},
	} {
		s := newTestPair(t, ibv.QPT_RC, Options{})
		region, w := s.buffer(1, 64, allAccess&^ibv.ACCESS_MW_BIND|c.access), s.window(ibv.MW_TYPE_2)
		wr := s.send(3, ibv.WR_BIND_MW)
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(w), RKey: w.RKey ^ c.key,
			BindInfo: ibv.MWBindInfo{MR: ibv.PtrTo(region.mr), Addr: region.at(0), Length: 64,
				MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
		require.NoError(t, s.post(s.p.b, wr))
		assert.Equal(t, c.want, s.poll(s.p.bSend).Status, c.name)
		require.NoError(t, verbs.DeallocMW(w))
	}
}

// TestArmTwice: arming a queue for solicited completions does not cancel an earlier request for any completion. A write
// with immediate data can be solicited, like a send.
func TestArmTwice(t *testing.T) {
	for _, solicited := range []bool{false, true} {
		t.Run(fmt.Sprint("solicited ", solicited), func(t *testing.T) {
			r := newTestbed(t, Options{})
			ch, err := verbs.CreateCompChannel(r.context[0])
			require.NoError(t, err)
			cq, err := verbs.CreateCQ(r.context[0], 16, 0, ch, 0)
			require.NoError(t, err)
			qp := r.loopback(cq, nil)
			if !solicited {
				require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
			}
			require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
			r.recv(qp, 1)
			wr := r.send(2, ibv.WR_RDMA_WRITE_WITH_IMM)
			if wr.SendFlags = 0; solicited {
				wr.SendFlags = ibv.SEND_SOLICITED
			}
			require.NoError(t, r.post(qp, wr))
			r.fabric.Mu.Lock()
			events := len(impl.Find[impl.Channel](mem.AddressOf(ch)).Events.Queue)
			r.fabric.Mu.Unlock()
			assert.Equal(t, 1, events)
			require.NoError(t, verbs.DestroyQP(qp))
			require.NoError(t, verbs.DestroyCQ(cq))
			require.NoError(t, verbs.DestroyCompChannel(ch))
		})
	}
}
