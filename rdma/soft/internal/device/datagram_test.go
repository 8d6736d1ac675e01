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

// ah makes an address handle of a device to another one.
func (r *rig) ah(from, to int) *ibv.AH {
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
	s := newStage(t, ibv.QPT_UD, Options{})
	ah := s.ah(0, 1)
	copy(s.here.bytes, "datagram")
	send := func(id uint64, qpn, qkey uint32, length int) {
		t.Helper()
		require.NoError(t, s.post(s.p.a, datagram(s.send(id, ibv.WR_SEND, s.here.sge(0, length)), ah, qpn, qkey)))
	}
	s.recv(s.p.b, 7, s.there.sge(0, 100))
	send(1, s.p.b.QPNum, testQKey, 8)
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	wc := s.poll(s.p.bRecv)
	assert.Equal(t, ibv.WC{WRID: 7, Opcode: ibv.WC_RECV, ByteLen: 48, QPNum: s.p.b.QPNum, SrcQP: s.p.a.QPNum,
		WCFlags: ibv.WC_GRH}, wc)
	assert.Equal(t, "datagram", string(s.there.bytes[40:48]))

	// The header contains the return address.
	grh := (*ibv.GRH)(mem.Pointer(s.there.at(0)))
	attr := new(ibv.AHAttr)
	require.NoError(t, verbs.InitAHFromWC(s.context[1], 1, &wc, grh, attr))
	assert.Equal(t, s.av(0).GRH.DGID, attr.GRH.DGID)
	assert.EqualValues(t, 1, attr.GRH.SGIDIndex)
	back, err := verbs.CreateAHFromWC(s.pd[1], &wc, grh, 1)
	require.NoError(t, err)
	s.recv(s.p.a, 8, s.here.sge(100, 100))
	require.NoError(t, s.post(s.p.b, datagram(s.send(2, ibv.WR_SEND, s.there.sge(40, 8)), back, wc.SrcQP, testQKey)))
	assert.EqualValues(t, 8, s.poll(s.p.aRecv).WRID)
	assert.Equal(t, "datagram", string(s.here.bytes[140:148]))
	require.NoError(t, verbs.DestroyAH(back))

	// Messages without permission are dropped; the receive stays.
	s.recv(s.p.b, 9, s.there.sge(0, 100))
	send(3, s.p.b.QPNum, testQKey+1, 8)
	send(4, s.p.b.QPNum+100, testQKey, 8)
	send(5, s.p.b.QPNum, 1<<31, 8) // the sender's own key, which is the right one
	assert.Equal(t, []ibv.WCStatus{0, 0, 0}, s.statuses(s.p.aSend))
	assert.Equal(t, []ibv.WCStatus{0}, s.statuses(s.p.bRecv))
	port := new(ibv.PortAttr)
	require.NoError(t, verbs.QueryPort(s.context[1], 1, port))
	assert.EqualValues(t, 1, port.QKeyViolCntr)

	big := s.buffer(0, 8192, everything)
	require.NoError(t, s.post(s.p.a, datagram(s.send(6, ibv.WR_SEND, big.sge(0, 4097)), ah, s.p.b.QPNum, testQKey)))
	assert.Equal(t, ibv.WC_LOC_LEN_ERR, s.poll(s.p.aSend).Status, "more than the path carries")
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
		t.Run(map[bool]string{false: "own receives", true: "shared receives"}[shared], func(t *testing.T) {
			r := newRig(t, Options{})
			here, there := r.buffer(0, 1024, everything), r.buffer(1, 1024, everything)
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
					wr, own := &outside[ibv.RecvWR](r, 1)[0], outside[ibv.SGE](r, len(sges))
					copy(own, sges)
					*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&own[0]), NumSGE: int32(len(own))}
					require.NoError(t, verbs.PostSRQRecv(srq, wr, &outside[ibv.Ptr[ibv.RecvWR]](r, 1)[0]))
				}
			}
			to, err := verbs.CreateQP(r.pd[1], init)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
			r.connect(from, 1, 0)
			r.connect(to, 0, 0)
			ah := r.ah(0, 1)
			send := func(length int) {
				require.NoError(t, r.post(from, datagram(r.send(1, ibv.WR_SEND, here.sge(0, length)), ah, to.QPNum,
					testQKey)))
				require.Equal(t, ibv.WC_SUCCESS, r.poll(sends).Status)
			}
			recv(to, 7, there.sge(0, 30), there.sge(30, 25))
			recv(to, 8, there.sge(100, 56))
			send(16) // with the header, one byte more than the receive
			_, came := r.polled(recvs)
			assert.Equal(t, shared, came)
			assert.Equal(t, ibv.QPS_RTS, r.state(to))
			assert.EqualValues(t, 1, r.fabric.HWCounters("soft1")["resp_local_length_error"])
			assert.Equal(t, make([]byte, 1024), there.bytes)
			send(15)
			wc := r.poll(recvs)
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
			assert.EqualValues(t, map[bool]uint64{false: 7, true: 8}[shared], wc.WRID)
		})
	}
}

// TestDatagramsFollowTheirHandle: a datagram goes where its handle leads by now, also when the address has moved to
// another device, or when the memory of a handle that was destroyed is another one's.
func TestDatagramsFollowTheirHandle(t *testing.T) {
	s := newStage(t, ibv.QPT_UD, Options{})
	to := s.av(1)
	comes := func(ah *ibv.AH) bool {
		t.Helper()
		require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND), ah, s.p.b.QPNum, testQKey)))
		assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
		_, came := s.polled(s.p.bRecv)
		return came
	}
	for id := range uint64(4) {
		s.recv(s.p.b, id, s.there.sge(0, 64))
	}
	ah, err := verbs.CreateAH(s.pd[0], &to)
	require.NoError(t, err)
	assert.True(t, comes(ah))

	from := s.av(0)
	own := *from.GRH.DGID.Raw()
	address := netip.AddrFrom16(*to.GRH.DGID.Raw()).Unmap()
	names := s.fabric.Addresses()
	require.NoError(t, s.fabric.MoveAddress(address, names[netip.AddrFrom16(own).Unmap()]))
	assert.False(t, comes(ah), "the other device has the address")
	require.NoError(t, s.fabric.MoveAddress(address, names[address]))
	assert.True(t, comes(ah))

	require.NoError(t, verbs.DestroyAH(ah))
	other := s.ah(0, 0)
	require.Same(t, ah, other, "its memory is used again")
	assert.False(t, comes(other))
}

// group is a queue pair that sends to a multicast group, and others that may join it.
type group struct {
	*rig
	gid   *ibv.GID
	from  *ibv.QP
	sends *ibv.CQ
	ah    *ibv.AH
	to    []*ibv.QP
	recvs []*ibv.CQ
}

func newGroup(r *rig, n int) *group {
	g := &group{rig: r, gid: &outside[ibv.GID](r, 1)[0], sends: r.cq(0, 16)}
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

// send posts a datagram for the group.
func (g *group) send(id uint64, sges ...ibv.SGE) {
	g.t.Helper()
	require.NoError(g.t, g.post(g.from, datagram(g.rig.send(id, ibv.WR_SEND, sges...), g.ah, 0xffffff, testQKey)))
}

func TestMulticast(t *testing.T) {
	r := newRig(t, Options{})
	g := newGroup(r, 3)
	b, to := r.buffer(1, 1024, everything), g.to
	for i, qp := range to {
		r.recv(qp, 7, b.sge(i*100, 100))
	}
	for _, qp := range to[:2] {
		require.NoError(t, verbs.AttachMcast(qp, g.gid, 0))
	}
	g.send(1)
	r.poll(g.sends)
	for i, cq := range g.recvs {
		_, came := r.polled(cq)
		assert.Equal(t, i < 2, came)
	}
	require.NoError(t, verbs.DetachMcast(to[0], g.gid, 0))
	assert.ErrorIs(t, verbs.DetachMcast(to[0], g.gid, 0), syscall.EINVAL)
	assert.ErrorIs(t, verbs.DestroyQP(to[1]), syscall.EBUSY)
	require.NoError(t, verbs.DetachMcast(to[1], g.gid, 0))
}

// TestMulticastUnheard: a queue pair that blocks its own multicast does not get its messages, but others do; one that
// does not block it gets them, too.
func TestMulticastUnheard(t *testing.T) {
	r := newRig(t, Options{})
	b := r.buffer(0, 1024, everything)
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
		there := r.buffer(1, 100, everything)
		r.recv(g.to[0], 2, there.sge(0, 100))
		g.send(3)
		assert.EqualValues(t, 3, r.poll(g.sends).WRID)
		assert.EqualValues(t, 2, r.poll(g.recvs[0]).WRID)
		_, heard := r.polled(recvs)
		assert.Equal(t, flags == 0, heard)
		for _, member := range []*ibv.QP{qp, g.to[0]} {
			require.NoError(t, verbs.DetachMcast(member, g.gid, 0))
		}
		require.NoError(t, verbs.DestroyQP(qp))
	}
}
