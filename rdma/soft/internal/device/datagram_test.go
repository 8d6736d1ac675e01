// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// ah creates an address handle on one device for another device.
func (r *testbed) ah(from, to int) *ibv.AH {
	attr := r.av(to)
	ah, err := verbs.CreateAH(r.pd[from], &attr)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyAH(ah)) })
	return ah
}

func datagram(wr *ibv.SendWR, ah *ibv.AH, qpn, qkey uint32) *ibv.SendWR {
	*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: qpn, RemoteQKey: qkey}
	return wr
}

func TestDatagrams(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{})
	ah := s.ah(0, 1)
	copy(s.bufA.bytes, "datagram")
	send := func(id uint64, qpn, qkey uint32, length int) {
		t.Helper()
		require.NoError(t, s.post(s.p.a, datagram(s.send(id, ibv.WR_SEND, s.bufA.sge(0, length)), ah, qpn, qkey)))
	}
	s.recv(s.p.b, 7, s.bufB.sge(0, 100))
	send(1, s.p.b.QPNum, testQKey, 8)
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	wc := s.poll(s.p.bRecv)
	assert.Equal(t, ibv.WC{WRID: 7, Opcode: ibv.WC_RECV, ByteLen: 48, QPNum: s.p.b.QPNum, SrcQP: s.p.a.QPNum,
		WCFlags: ibv.WC_GRH}, wc)
	assert.Equal(t, "datagram", string(s.bufB.bytes[40:48]))

	// The header contains the return address.
	grh := (*ibv.GRH)(mem.Pointer(s.bufB.at(0)))
	attr := new(ibv.AHAttr)
	require.NoError(t, verbs.InitAHFromWC(s.context[1], 1, &wc, grh, attr))
	assert.Equal(t, s.av(0).GRH.DGID, attr.GRH.DGID)
	assert.EqualValues(t, 1, attr.GRH.SGIDIndex)
	replyAH, err := verbs.CreateAHFromWC(s.pd[1], &wc, grh, 1)
	require.NoError(t, err)
	s.recv(s.p.a, 8, s.bufA.sge(100, 100))
	require.NoError(t, s.post(s.p.b, datagram(s.send(2, ibv.WR_SEND, s.bufB.sge(40, 8)), replyAH, wc.SrcQP, testQKey)))
	assert.EqualValues(t, 8, s.poll(s.p.aRecv).WRID)
	assert.Equal(t, "datagram", string(s.bufA.bytes[140:148]))
	require.NoError(t, verbs.DestroyAH(replyAH))

	// Messages with a wrong Q_Key or destination are dropped; the receive stays posted.
	s.recv(s.p.b, 9, s.bufB.sge(0, 100))
	send(3, s.p.b.QPNum, testQKey+1, 8)
	send(4, s.p.b.QPNum+100, testQKey, 8)
	send(5, s.p.b.QPNum, 1<<31, 8) // bit 31 selects the sender's Q_Key, which is correct
	assert.Equal(t, []ibv.WCStatus{0, 0, 0}, s.statuses(s.p.aSend))
	assert.Equal(t, []ibv.WCStatus{0}, s.statuses(s.p.bRecv))
	port := new(ibv.PortAttr)
	require.NoError(t, verbs.QueryPort(s.context[1], 1, port))
	assert.EqualValues(t, 1, port.QKeyViolCntr)

	big := s.buffer(0, 8192, allAccess)
	require.NoError(t, s.post(s.p.a, datagram(s.send(6, ibv.WR_SEND, big.sge(0, 4097)), ah, s.p.b.QPNum, testQKey)))
	assert.Equal(t, ibv.WC_LOC_LEN_ERR, s.poll(s.p.aSend).Status, "longer than the path MTU")
	assert.Equal(t, ibv.QPS_SQE, s.state(s.p.a))
	send(7, s.p.b.QPNum, testQKey, 8)
	assert.Equal(t, []ibv.WCStatus{ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.aSend))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	send(8, s.p.b.QPNum, testQKey, 8)
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, s.statuses(s.p.aSend))
}

// TestDatagramTooLong: a datagram that is longer than its receive does not break the queue pair. It is dropped, or
// completes a shared receive in error; the next datagram arrives.
func TestDatagramTooLong(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(map[bool]string{false: "receive queue", true: "shared receives"}[shared], func(t *testing.T) {
			r := newTestbed(t, Options{})
			bufA, bufB := r.buffer(0, 1024, allAccess), r.buffer(1, 1024, allAccess)
			sends, recvs := r.cq(0, 16), r.cq(1, 16)
			from := r.qp(0, ibv.QPT_UD, testCaps, sends, sends)
			init := &ibv.QPInitAttr{QPType: ibv.QPT_UD, SendCQ: ibv.PtrTo(recvs), RecvCQ: ibv.PtrTo(recvs), Cap: testCaps}
			recv := func(to *ibv.QP, id uint64, sges ...ibv.SGE) { r.recv(to, id, sges...) }
			if shared {
				srq, err := verbs.CreateSRQ(r.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: 2}})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
				init.SRQ = ibv.PtrTo(srq)
				recv = func(_ *ibv.QP, id uint64, sges ...ibv.SGE) {
					wr, own := &offHeap[ibv.RecvWR](r, 1)[0], offHeap[ibv.SGE](r, len(sges))
					copy(own, sges)
					*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&own[0]), NumSGE: int32(len(own))}
					require.NoError(t, verbs.PostSRQRecv(srq, wr, &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
				}
			}
			to, err := verbs.CreateQP(r.pd[1], init)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
			r.connect(from, 1, 0)
			r.connect(to, 0, 0)
			ah := r.ah(0, 1)
			send := func(length int) {
				require.NoError(t, r.post(from, datagram(r.send(1, ibv.WR_SEND, bufA.sge(0, length)), ah, to.QPNum,
					testQKey)))
				require.Equal(t, ibv.WC_SUCCESS, r.poll(sends).Status)
			}
			recv(to, 7, bufB.sge(0, 30), bufB.sge(30, 25))
			recv(to, 8, bufB.sge(100, 56))
			send(16) // with the header, one byte more than the receive
			_, received := r.tryPoll(recvs)
			assert.Equal(t, shared, received)
			assert.Equal(t, ibv.QPS_RTS, r.state(to))
			assert.EqualValues(t, 1, r.fabric.HWCounters("soft1")["resp_local_length_error"])
			assert.Equal(t, make([]byte, 1024), bufB.bytes)
			send(15)
			wc := r.poll(recvs)
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
			assert.EqualValues(t, map[bool]uint64{false: 7, true: 8}[shared], wc.WRID)
		})
	}
}

// TestDatagramDestination: the address handle determines the destination at the time of the send, also after its
// address has moved to another device, and when it reuses the memory of a destroyed handle.
func TestDatagramDestination(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{})
	to := s.av(1)
	arrives := func(ah *ibv.AH) bool {
		t.Helper()
		require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND), ah, s.p.b.QPNum, testQKey)))
		assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
		_, received := s.tryPoll(s.p.bRecv)
		return received
	}
	for id := range uint64(4) {
		s.recv(s.p.b, id, s.bufB.sge(0, 64))
	}
	ah, err := verbs.CreateAH(s.pd[0], &to)
	require.NoError(t, err)
	assert.True(t, arrives(ah))

	from := s.av(0)
	own := *from.GRH.DGID.Raw()
	address := netip.AddrFrom16(*to.GRH.DGID.Raw()).Unmap()
	names := s.fabric.Addresses()
	require.NoError(t, s.fabric.MoveAddress(address, names[netip.AddrFrom16(own).Unmap()]))
	assert.False(t, arrives(ah), "address moved to the other device")
	require.NoError(t, s.fabric.MoveAddress(address, names[address]))
	assert.True(t, arrives(ah))

	require.NoError(t, verbs.DestroyAH(ah))
	other := s.ah(0, 0)
	require.Same(t, ah, other, "memory of the destroyed handle is reused")
	assert.False(t, arrives(other))
}

// group is a queue pair that sends to a multicast group, and queue pairs that can join the group.
type group struct {
	*testbed
	gid   *ibv.GID
	from  *ibv.QP
	sends *ibv.CQ
	ah    *ibv.AH
	to    []*ibv.QP
	recvs []*ibv.CQ
}

func newGroup(r *testbed, n int) *group {
	g := &group{testbed: r, gid: &offHeap[ibv.GID](r, 1)[0], sends: r.cq(0, 16)}
	*g.gid.Raw() = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 1, 15: 1}
	g.from = r.qp(0, ibv.QPT_UD, testCaps, g.sends, g.sends)
	r.connect(g.from, 0, 0)
	attr := r.av(0)
	attr.GRH.DGID = *g.gid
	var err error
	g.ah, err = verbs.CreateAH(r.pd[0], &attr)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyAH(g.ah)) })
	for range n {
		cq := r.cq(1, 16)
		qp := r.qp(1, ibv.QPT_UD, testCaps, cq, cq)
		r.connect(qp, 1, 0)
		g.to, g.recvs = append(g.to, qp), append(g.recvs, cq)
	}
	return g
}

// send posts a datagram to the group.
func (g *group) send(id uint64, sges ...ibv.SGE) {
	g.t.Helper()
	require.NoError(g.t, g.post(g.from, datagram(g.testbed.send(id, ibv.WR_SEND, sges...), g.ah, 0xffffff, testQKey)))
}

func TestMulticast(t *testing.T) {
	r := newTestbed(t, Options{})
	g := newGroup(r, 3)
	b, to := r.buffer(1, 1024, allAccess), g.to
	for i, qp := range to {
		r.recv(qp, 7, b.sge(i*100, 100))
	}
	for _, qp := range to[:2] {
		require.NoError(t, verbs.AttachMcast(qp, g.gid, 0))
	}
	g.send(1)
	r.poll(g.sends)
	for i, cq := range g.recvs {
		_, received := r.tryPoll(cq)
		assert.Equal(t, i < 2, received)
	}
	require.NoError(t, verbs.DetachMcast(to[0], g.gid, 0))
	assert.ErrorIs(t, verbs.DetachMcast(to[0], g.gid, 0), syscall.EINVAL)
	assert.ErrorIs(t, verbs.DestroyQP(to[1]), syscall.EBUSY)
	require.NoError(t, verbs.DetachMcast(to[1], g.gid, 0))
}

// TestMulticastLoopback: a queue pair with QP_CREATE_BLOCK_SELF_MCAST_LB does not receive its own multicast messages;
// other members do. Without the flag, it receives them, too.
func TestMulticastLoopback(t *testing.T) {
	r := newTestbed(t, Options{})
	b := r.buffer(0, 1024, allAccess)
	for _, flags := range []ibv.QPCreateFlags{0, ibv.QP_CREATE_BLOCK_SELF_MCAST_LB} {
		g := newGroup(r, 1)
		init := &ibv.QPInitAttrEx{Cap: testCaps, QPType: ibv.QPT_UD, CompMask: ibv.QP_INIT_ATTR_PD |
			ibv.QP_INIT_ATTR_CREATE_FLAGS, PD: ibv.PtrTo(r.pd[0]), CreateFlags: flags}
		recvs := r.cq(0, 16)
		init.SendCQ, init.RecvCQ = ibv.PtrTo(g.sends), ibv.PtrTo(recvs)
		qp, err := verbs.CreateQPEx(r.context[0], init)
		require.NoError(t, err)
		r.connect(qp, 0, 0)
		g.from = qp
		for _, member := range []*ibv.QP{qp, g.to[0]} {
			require.NoError(t, verbs.AttachMcast(member, g.gid, 0))
		}
		r.recv(qp, 1, b.sge(0, 100))
		bufB := r.buffer(1, 100, allAccess)
		r.recv(g.to[0], 2, bufB.sge(0, 100))
		g.send(3)
		assert.EqualValues(t, 3, r.poll(g.sends).WRID)
		assert.EqualValues(t, 2, r.poll(g.recvs[0]).WRID)
		_, looped := r.tryPoll(recvs)
		assert.Equal(t, flags == 0, looped)
		for _, member := range []*ibv.QP{qp, g.to[0]} {
			require.NoError(t, verbs.DetachMcast(member, g.gid, 0))
		}
		require.NoError(t, verbs.DestroyQP(qp))
	}
}
