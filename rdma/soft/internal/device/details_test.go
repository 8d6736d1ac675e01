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
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
)

// TestMoveOfCommonBytes: if both ranges overlap, the destination gets the original bytes of the source.
func TestMoveOfCommonBytes(t *testing.T) {
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
			require.Equal(t, want, memory, "%d bytes, moved by %d", n, shift)
		}
	}
}

// TestNumbersNeverMeanMulticast: a place in the table whose number would be that of multicast skips it.
func TestNumbersNeverMeanMulticast(t *testing.T) {
	n, object := &numbers.Table[numbered]{}, numbered{qp: &QP{}}
	d := &Port{on: &Engine{}}
	var number uint32
	for range numbers.Most { // the last one has the last place
		low, values := d.tops()
		number, _ = n.Add(object, low, values)
	}
	for range 600 {
		n.Remove(number)
		var ok bool
		low, values := d.tops()
		number, ok = n.Add(object, low, values)
		require.True(t, ok)
		require.EqualValues(t, 1<<numbers.Bits-1, number&(1<<numbers.Bits-1))
		require.NotEqualValues(t, multicastQPN, number)
		require.Equal(t, object, n.Get(number))
	}
}

// TestWayBackOfIPv6: flow label and traffic class are those of the header.
func TestWayBackOfIPv6(t *testing.T) {
	var h [grhSize]byte
	binary.BigEndian.PutUint32(h[:], 6<<28|0xa5<<20|0x12345)
	h[8], h[24] = 1, 2
	route, own, errno := readGRH(&h)
	require.Zero(t, errno)
	assert.Equal(t, [16]byte{2}, own)
	assert.Equal(t, [16]byte{1}, *route.DGID.Raw())
	assert.EqualValues(t, 0x12345, route.FlowLabel)
	assert.EqualValues(t, 0xa5, route.TrafficClass)
}

// TestWayBackOfIPv4: Soft-RoCE leaves the checksum out of headers of packets that stay on the device.
func TestWayBackOfIPv4(t *testing.T) {
	h := [grhSize]byte{20: 0x45, 21: 0x28, 32: 10, 33: 1, 36: 10, 37: 2}
	route, own, errno := readGRH(&h)
	require.Zero(t, errno)
	assert.Equal(t, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 2}, own)
	assert.Equal(t, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1}, *route.DGID.Raw())
	assert.EqualValues(t, 0x28, route.TrafficClass)
}

// TestNoReadsServed: a queue pair that serves no reads and atomics at once refuses them.
func TestNoReadsServed(t *testing.T) {
	for _, op := range []ibv.WROpcode{ibv.WR_RDMA_READ, ibv.WR_ATOMIC_FETCH_AND_ADD} {
		s := newStage(t, ibv.QPT_RC, Options{})
		require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
		require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{}, ibv.QP_MAX_DEST_RD_ATOMIC))
		wr := s.remote(s.send(1, op, s.here.sge(0, 8)), 0)
		if op != ibv.WR_RDMA_READ {
			*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.there.at(0), RKey: s.there.mr.RKey}
		}
		require.NoError(t, s.post(s.p.a, wr))
		assert.Equal(t, []ibv.WCStatus{ibv.WC_REM_INV_REQ_ERR}, s.statuses(s.p.aSend), op)
	}
}

// TestBytesOfAnswers: the completions of operations that read report the number of bytes read.
func TestBytesOfAnswers(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	require.NoError(t, s.post(s.p.a, s.remote(s.send(1, ibv.WR_RDMA_READ, s.here.sge(0, 100), s.here.sge(200, 23)), 0)))
	assert.EqualValues(t, 123, s.poll(s.p.aSend).ByteLen)
	wr := s.send(1, ibv.WR_ATOMIC_FETCH_AND_ADD, s.here.sge(0, 8))
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.there.at(0), RKey: s.there.mr.RKey}
	require.NoError(t, s.post(s.p.a, wr))
	assert.EqualValues(t, 8, s.poll(s.p.aSend).ByteLen)
}

// TestDrainingIsNotCutShort: while requests that were begun are under way, a queue pair in SQD does not go on but to
// ERR or RESET.
func TestDrainingIsNotCutShort(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	require.True(t, s.fabric.SetLink("soft1", false))
	require.NoError(t, s.post(s.p.a, s.remote(s.send(1, ibv.WR_RDMA_WRITE), 0)))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	back := func() error {
		return verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE)
	}
	assert.ErrorIs(t, back(), syscall.EINVAL)
	require.True(t, s.fabric.SetLink("soft1", true))
	s.fabric.Advance(time.Second)
	require.NoError(t, back())
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
}

// TestLimitOfSharedReceives: the event comes when fewer receives than the limit are left, and the queue does not become
// smaller than that.
func TestLimitOfSharedReceives(t *testing.T) {
	r := newRig(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	require.NoError(t, err)
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 3}, ibv.SRQ_LIMIT))
	assert.ErrorIs(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{MaxWR: 2}, ibv.SRQ_MAX_WR), syscall.EINVAL)
	for range 4 {
		require.NoError(t, verbs.PostSRQRecv(srq, &outside[ibv.RecvWR](r, 1)[0],
			&outside[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
	}
	armed := func() uint32 {
		attr := new(ibv.SRQAttr)
		require.NoError(t, verbs.QuerySRQ(srq, attr))
		return attr.SRQLimit
	}
	r.toItself(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	assert.EqualValues(t, 3, armed(), "3 are left")
	r.toItself(r.cq(0, 4), srq, r.send(1, ibv.WR_SEND))
	r.event(ibv.EVENT_SRQ_LIMIT_REACHED)()
	assert.Zero(t, armed(), "it tells once")
	require.NoError(t, verbs.DestroySRQ(srq))
}

// TestBindsThatAreRefused: a key of another window's place, and a region that no window may be bound to.
func TestBindsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		what   string
		access ibv.AccessFlags
		key    uint32
		want   ibv.WCStatus
	}{
		{"what is right", ibv.ACCESS_MW_BIND, 1, ibv.WC_SUCCESS},
		{"another place", ibv.ACCESS_MW_BIND, 1 << 8, ibv.WC_MW_BIND_ERR},
		{"the same key", ibv.ACCESS_MW_BIND, 0, ibv.WC_MW_BIND_ERR},
		{"no window allowed", 0, 1, ibv.WC_MW_BIND_ERR},
	} {
		s := newStage(t, ibv.QPT_RC, Options{})
		region, w := s.buffer(1, 64, everything&^ibv.ACCESS_MW_BIND|c.access), s.window(ibv.MW_TYPE_2)
		wr := s.send(3, ibv.WR_BIND_MW)
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(w), RKey: w.RKey ^ c.key,
			BindInfo: ibv.MWBindInfo{MR: ibv.PtrTo(region.mr), Addr: region.at(0), Length: 64,
				MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
		require.NoError(t, s.post(s.p.b, wr))
		assert.Equal(t, c.want, s.poll(s.p.bSend).Status, c.what)
		require.NoError(t, verbs.DeallocMW(w))
	}
}

// TestAskedForMore: a program that asked for the next completion's event still gets it when a solicited one's is asked
// for as well. A write's immediate data may be solicited, as a message is.
func TestAskedForMore(t *testing.T) {
	for _, solicited := range []bool{false, true} {
		t.Run(fmt.Sprint("solicited ", solicited), func(t *testing.T) {
			r := newRig(t, Options{})
			ch, err := verbs.CreateCompChannel(r.context[0])
			require.NoError(t, err)
			cq, err := verbs.CreateCQ(r.context[0], 16, 0, ch, 0)
			require.NoError(t, err)
			qp := r.itself(cq, nil)
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
			r.fabric.mu.Lock()
			came := len(find[channel](mem.AddressOf(ch)).events.queue)
			r.fabric.mu.Unlock()
			assert.Equal(t, 1, came)
			require.NoError(t, verbs.DestroyQP(qp))
			require.NoError(t, verbs.DestroyCQ(cq))
			require.NoError(t, verbs.DestroyCompChannel(ch))
		})
	}
}
