// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"bytes"
	"cmp"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestPostSend tests the promises of ibv_post_send(3). Subtests have the names in promises.txt.
func TestPostSend(t *testing.T) {
	t.Run("list in order", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(5)
		s.post(s.sends(5))
		for i := range uint64(5) {
			assert.Equal(t, ibv.WC_SEND, s.sent(i+1, ibv.WC_SUCCESS).Opcode)
			assert.EqualValues(t, 16, s.received(100+i).ByteLen)
			assert.Equal(t, s.bufA.Bytes[16*i:16*i+16], s.bufB.Bytes[2048+64*i:2048+64*i+16])
		}
		s.none(s.ASend, "five requests, five completions")
	})
	t.Run("first failure ends the list", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(3)
		l := s.sends(3)
		s.tooManySGEs(&l.WRs[1])
		bad, err := l.Post(s.A)
		require.Error(t, err)
		assert.Equal(t, 1, bad, "bad_wr is the request that failed")
		s.sent(1, ibv.WC_SUCCESS)
		s.received(100)
		s.none(s.ASend, "neither the failed request nor what follows it was posted")
		s.none(s.BRecv, "no more completions")
		assert.Equal(t, make([]byte, 64), s.bufB.Bytes[2112:2176])

		l = s.sends(1)
		l.WRs[0].WRID = 9
		s.post(l)
		s.sent(9, ibv.WC_SUCCESS)
	})
	t.Run("errno on failure", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		l := s.sends(1)
		s.tooManySGEs(&l.WRs[0])
		_, err := l.Post(s.A)
		var errno syscall.Errno
		require.ErrorAs(t, err, &errno)
		assert.Positive(t, int(errno))
		assert.Contains(t, []syscall.Errno{syscall.EINVAL, syscall.ENOMEM}, errno)
	})
	t.Run("full queue", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		capacity := int(s.caps().MaxSendWR)
		bad, err := s.sends(capacity + 40).Post(s.A)
		require.Error(t, err)
		assert.GreaterOrEqual(t, bad, capacity, "the created capacity is available")
	})
	t.Run("wr_id", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		for _, id := range []uint64{0, 1, 1<<64 - 1, 0xfeed_0000_0000_beef} {
			s.Recv(s.B, ^id, s.bufB.SGE(0, 64))
			l := s.sends(1)
			l.WRs[0].WRID = id
			s.post(l)
			s.sent(id, ibv.WC_SUCCESS)
			s.received(^id)
		}
	})
	t.Run("gather", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(1)
		sges := testbed.Records[ibv.SGE](s.Testbed, 4)
		for i, at := range []int{900, 3, 700, 31} {
			sges[i] = s.bufA.SGE(at, 4*i+1)
		}
		l := s.sends(1)
		l.WRs[0].SGList, l.WRs[0].NumSGE = ibv.PtrTo(&sges[0]), 4
		s.post(l)
		s.sent(1, ibv.WC_SUCCESS)
		assert.EqualValues(t, 1+5+9+13, s.received(100).ByteLen)
		h := s.bufA.Bytes
		assert.Equal(t, slices.Concat(h[900:901], h[3:8], h[700:709], h[31:44]), s.bufB.Bytes[2048:2048+28])
	})
	t.Run("nothing to gather", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(1)
		l := s.sends(1)
		l.WRs[0].SGList, l.WRs[0].NumSGE = 0, 0
		s.post(l)
		s.sent(1, ibv.WC_SUCCESS)
		assert.Zero(t, s.received(100).ByteLen)
	})
	t.Run("lkey", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(1)
		l := s.sends(1)
		l.SGEs[0].LKey ^= 0xff00
		s.post(l)
		wc := s.Completion(s.ASend)
		want := map[string]ibv.WCStatus{testbed.Soft: ibv.WC_LOC_PROT_ERR, "6.1": ibv.WC_LOC_QP_OP_ERR}
		assert.Equal(t, cmp.Or(want[testbed.Kernel(t)], ibv.WC_WR_FLUSH_ERR), wc.Status)
		assert.Equal(t, make([]byte, 64), s.bufB.Bytes[2048:2112])
	})
	t.Run("zero based region", func(t *testing.T) {
		if testbed.Kernel(t) != testbed.Soft {
			t.Skip("Soft-RoCE has no zero based regions: ibv_reg_mr in conformance/vm/results/control-*.csv")
		}
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(1)
		zero := s.Buffer(256, s.Access|ibv.ACCESS_ZERO_BASED)
		copy(zero.Bytes[32:], "32 bytes into it")
		l := s.sends(1)
		l.SGEs[0] = ibv.SGE{Addr: 32, Length: 16, LKey: zero.MR.LKey}
		s.post(l)
		s.sent(1, ibv.WC_SUCCESS)
		assert.Equal(t, "32 bytes into it", string(s.bufB.Bytes[2048:2064]))
	})
	t.Run("immediate data", func(t *testing.T) {
		for _, opcode := range []ibv.WROpcode{ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM} {
			s := newTestPair(t, ibv.QPT_RC)
			s.recvs(1)
			l := s.remote(opcode, 0)
			*l.WRs[0].ImmData() = ibv.ToBE32(0xa1b2c3d4)
			s.post(l)
			s.sent(1, ibv.WC_SUCCESS)
			wc := s.received(100)
			assert.Equal(t, ibv.WC_WITH_IMM, wc.WCFlags&ibv.WC_WITH_IMM)
			raw := *(*[4]byte)(unsafe.Pointer(wc.ImmData()))
			assert.Equal(t, [4]byte{0xa1, 0xb2, 0xc3, 0xd4}, raw, "network byte order")
			at := map[ibv.WROpcode]int{ibv.WR_SEND_WITH_IMM: 2048}[opcode]
			assert.Equal(t, s.bufA.Bytes[:16], s.bufB.Bytes[at:at+16])
		}
	})
	t.Run("remote address", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.post(s.remote(ibv.WR_RDMA_WRITE, 1000))
		assert.Equal(t, ibv.WC_RDMA_WRITE, s.sent(1, ibv.WC_SUCCESS).Opcode)
		want := make([]byte, 4096)
		copy(want[1000:], s.bufA.Bytes[:16])
		assert.True(t, bytes.Equal(want, s.bufB.Bytes), "16 bytes there, and no other")

		copy(s.bufB.Bytes[3000:], "what the peer has")
		l := s.remote(ibv.WR_RDMA_READ, 3000)
		s.post(l)
		assert.Equal(t, ibv.WC_RDMA_READ, s.sent(1, ibv.WC_SUCCESS).Opcode)
		assert.Equal(t, "what the peer ha", string(s.bufA.Bytes[:16]))
		s.none(s.BRecv, "the peer gets no completion")
	})
	t.Run("rkey", func(t *testing.T) {
		for _, opcode := range []ibv.WROpcode{ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
			s := newTestPair(t, ibv.QPT_RC)
			l := s.remote(opcode, 0)
			l.WRs[0].WR.RDMA().RKey ^= 0xff00
			s.post(l)
			s.sent(1, ibv.WC_REM_ACCESS_ERR)
			assert.Equal(t, make([]byte, 4096), s.bufB.Bytes)
		}
	})
	t.Run("compare and swap", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		word := (*uint64)(unsafe.Pointer(&s.bufB.Bytes[64]))
		*word = 5
		for i, c := range []struct{ compare, swap, after uint64 }{{5, 77, 77}, {5, 1, 77}} {
			l := s.sends(1)
			l.WRs[0].Opcode, l.SGEs[0] = ibv.WR_ATOMIC_CMP_AND_SWP, s.bufA.SGE(512, 8)
			*l.WRs[0].WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.Address(64), CompareAdd: c.compare, Swap: c.swap,
				RKey: s.bufB.MR.RKey}
			s.post(l)
			assert.Equal(t, ibv.WC_COMP_SWAP, s.sent(1, ibv.WC_SUCCESS).Opcode)
			assert.Equal(t, []uint64{5, 77}[i], *(*uint64)(unsafe.Pointer(&s.bufA.Bytes[512])), "the previous value")
			assert.Equal(t, c.after, *word)
		}
	})
	t.Run("fetch and add", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		word := (*uint64)(unsafe.Pointer(&s.bufB.Bytes[64]))
		*word = 1<<64 - 2
		l := s.sends(1)
		l.WRs[0].Opcode, l.SGEs[0] = ibv.WR_ATOMIC_FETCH_AND_ADD, s.bufA.SGE(512, 8)
		*l.WRs[0].WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.bufB.Address(64), CompareAdd: 5, RKey: s.bufB.MR.RKey}
		s.post(l)
		assert.Equal(t, ibv.WC_FETCH_ADD, s.sent(1, ibv.WC_SUCCESS).Opcode)
		assert.Equal(t, uint64(1<<64-2), *(*uint64)(unsafe.Pointer(&s.bufA.Bytes[512])))
		assert.EqualValues(t, 3, *word)
	})
	t.Run("datagram", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_UD)
		other := s.QP(ibv.QPT_UD, s.BSend, s.BRecv)
		s.Bring(other, ibv.QPS_RTS)
		s.recvs(1)
		s.Recv(other, 200, s.bufB.SGE(1024, 64))
		ah := s.Handle()
		for _, to := range []struct {
			qpn, qkey uint32
			id        uint64
			at        int
		}{{s.B.QPNum, testbed.QKey, 100, 2048}, {other.QPNum, testbed.QKey, 200, 1024}} {
			l := s.sends(1)
			*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: to.qpn, RemoteQKey: to.qkey}
			s.post(l)
			s.sent(1, ibv.WC_SUCCESS)
			wc := s.received(to.id)
			assert.Equal(t, s.A.QPNum, wc.SrcQP)
			assert.EqualValues(t, 40+16, wc.ByteLen)
			assert.Equal(t, s.bufA.Bytes[:16], s.bufB.Bytes[to.at+40:to.at+56])
		}
		s.recvs(1)
		l := s.sends(1)
		*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: s.B.QPNum, RemoteQKey: testbed.QKey + 1}
		s.post(l)
		s.sent(1, ibv.WC_SUCCESS)
		s.none(s.BRecv, "a datagram with another Q_Key is dropped")
	})
	t.Run("invalidate", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		bindable := s.Buffer(256, s.Access|ibv.ACCESS_MW_BIND)
		key := s.Bound(s.B, s.BSend, bindable)
		write := func(want ibv.WCStatus) {
			l := s.remote(ibv.WR_RDMA_WRITE, 0)
			*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: bindable.Address(0), RKey: key}
			s.post(l)
			s.sent(1, want)
		}
		write(ibv.WC_SUCCESS)
		assert.Equal(t, s.bufA.Bytes[:16], bindable.Bytes[:16])
		s.recvs(1)
		l := s.sends(1)
		l.WRs[0].Opcode = ibv.WR_SEND_WITH_INV
		*l.WRs[0].InvalidateRKey() = key
		s.post(l)
		s.sent(1, ibv.WC_SUCCESS)
		wc := s.received(100)
		if testbed.Kernel(t) == testbed.Soft { // Soft-RoCE invalidates but does not report it
			assert.Equal(t, ibv.WC_WITH_INV, wc.WCFlags&ibv.WC_WITH_INV)
			assert.Equal(t, key, *wc.InvalidatedRKey())
		}
		write(ibv.WC_REM_ACCESS_ERR)
	})
	t.Run("local invalidate", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		bindable := s.Buffer(256, s.Access|ibv.ACCESS_MW_BIND)
		key := s.Bound(s.B, s.BSend, bindable)
		l := s.sends(1)
		l.WRs[0].Opcode, l.WRs[0].NumSGE = ibv.WR_LOCAL_INV, 0
		*l.WRs[0].InvalidateRKey() = key
		_, err := l.Post(s.B)
		require.NoError(t, err)
		wc := s.Completion(s.BSend)
		assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.Equal(t, ibv.WC_LOCAL_INV, wc.Opcode)
		l = s.remote(ibv.WR_RDMA_WRITE, 0)
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: bindable.Address(0), RKey: key}
		s.post(l)
		s.sent(1, ibv.WC_REM_ACCESS_ERR)
	})
	t.Run("bind", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		bindable := s.Buffer(256, s.Access|ibv.ACCESS_MW_BIND)
		mw := s.Window()
		l := s.sends(1)
		key := testbed.Bind(&l.WRs[0], mw, bindable)
		l.WRs[0].NumSGE = 0
		bind := l.WRs[0].BindMW()
		bind.BindInfo.Addr, bind.BindInfo.Length = bindable.Address(64), 128
		bind.BindInfo.MWAccessFlags = ibv.ACCESS_REMOTE_WRITE
		_, err := l.Post(s.B)
		require.NoError(t, err)
		wc := s.Completion(s.BSend)
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.Equal(t, ibv.WC_BIND_MW, wc.Opcode)
		try := func(opcode ibv.WROpcode, offset int, want ibv.WCStatus) {
			l := s.remote(opcode, 0)
			*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: bindable.Address(offset), RKey: key}
			s.post(l)
			s.sent(1, want)
		}
		try(ibv.WR_RDMA_WRITE, 64, ibv.WC_SUCCESS)
		try(ibv.WR_RDMA_WRITE, 176, ibv.WC_SUCCESS)
		assert.Equal(t, s.bufA.Bytes[:16], bindable.Bytes[176:192])
		if testbed.Kernel(t) == testbed.Soft { // Soft-RoCE checks only the bounds of the region
			try(ibv.WR_RDMA_WRITE, 177, ibv.WC_REM_ACCESS_ERR)
			assert.Equal(t, make([]byte, 64), bindable.Bytes[192:])
		}
	})
	t.Run("access of a window", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		bindable := s.Buffer(256, s.Access|ibv.ACCESS_MW_BIND)
		l := s.sends(1)
		key := testbed.Bind(&l.WRs[0], s.Window(), bindable)
		l.WRs[0].NumSGE = 0
		l.WRs[0].BindMW().BindInfo.MWAccessFlags = ibv.ACCESS_REMOTE_WRITE
		_, err := l.Post(s.B)
		require.NoError(t, err)
		require.Equal(t, ibv.WC_SUCCESS, s.Completion(s.BSend).Status)
		l = s.remote(ibv.WR_RDMA_READ, 0)
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: bindable.Address(0), RKey: key}
		s.post(l)
		s.sent(1, ibv.WC_REM_ACCESS_ERR)
	})
	t.Run("unsignalled", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(2)
		l := s.sends(2)
		l.WRs[0].SendFlags = 0
		s.post(l)
		s.sent(2, ibv.WC_SUCCESS)
		s.none(s.ASend, "the first request asked for no completion")
		s.received(100)
		s.received(101)
		assert.Equal(t, s.bufA.Bytes[:16], s.bufB.Bytes[2048:2064])
	})
	t.Run("every request signalled", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		qp, err := verbs.CreateQP(s.PD, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(s.ASend),
			RecvCQ: ibv.PtrTo(s.ARecv), Cap: testbed.Caps, SQSigAll: 1})
		require.NoError(t, err)
		s.Defer(func() { s.Check(verbs.DestroyQP(qp)) })
		peer := s.QP(ibv.QPT_RC, s.BSend, s.BRecv)
		s.Connect(qp, peer)
		s.Recv(peer, 1, s.bufB.SGE(0, 64))
		l := s.sends(1)
		l.WRs[0].SendFlags = 0
		_, err = l.Post(qp)
		require.NoError(t, err)
		s.sent(1, ibv.WC_SUCCESS)
	})
	t.Run("fence", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		for round := range 8 {
			copy(s.bufB.Bytes, bytes.Repeat([]byte{byte(round + 1)}, 1024))
			s.Recv(s.B, 100, s.bufB.SGE(2048, 1024))
			l := s.Sends(2)
			l.SGEs[0], l.SGEs[1] = s.bufA.SGE(0, 1024), s.bufA.SGE(0, 1024)
			l.WRs[0].Opcode = ibv.WR_RDMA_READ
			*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.bufB.Address(0), RKey: s.bufB.MR.RKey}
			l.WRs[1].Opcode, l.WRs[1].SendFlags = ibv.WR_SEND, ibv.SEND_SIGNALED|ibv.SEND_FENCE
			s.post(l)
			s.sent(2, ibv.WC_SUCCESS)
			s.received(100)
			assert.Equal(t, s.bufB.Bytes[:1024], s.bufB.Bytes[2048:3072], "the send has the data of the read")
		}
	})
	t.Run("solicited", func(t *testing.T) {
		for _, opcode := range []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM} {
			testSolicited(t, opcode)
		}
	})
	t.Run("inline", func(t *testing.T) {
		for _, opcode := range []ibv.WROpcode{ibv.WR_SEND, ibv.WR_RDMA_WRITE} {
			s := newTestPair(t, ibv.QPT_RC)
			memory := s.Memory(64) // not registered
			copy(memory, "sent inline from memory")
			s.recvs(1)
			l := s.remote(opcode, 2048)
			l.WRs[0].SendFlags |= ibv.SEND_INLINE
			l.SGEs[0] = ibv.SGE{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Length: 23, LKey: 0xdeadbeef}
			s.post(l)
			copy(memory, "overwritten at once....")
			s.sent(1, ibv.WC_SUCCESS)
			assert.Equal(t, "sent inline from memory", string(s.bufB.Bytes[2048:2071]))
		}
	})
	t.Run("buffer after its completion", func(t *testing.T) {
		s := newTestPair(t, ibv.QPT_RC)
		s.recvs(16)
		for i := range 16 {
			copy(s.bufA.Bytes, bytes.Repeat([]byte{byte(i + 1)}, 16))
			s.post(s.sends(1))
			s.sent(1, ibv.WC_SUCCESS)
		}
		for i := range 16 {
			s.received(uint64(100 + i))
			assert.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, 16), s.bufB.Bytes[2048+64*i:2064+64*i])
		}
	})
}
