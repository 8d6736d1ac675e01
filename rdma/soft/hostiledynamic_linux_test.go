// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// TestHostileDynamic sends packets of dynamic connections with valid checksums, of which most fields are drawn, to a
// target and an initiator. Without the access key they change nothing; with it, they may use the target's receives and
// memory, but break neither the target nor connections of others.
func TestHostileDynamic(t *testing.T) {
	t.Run("without the key", func(t *testing.T) { hostileDynamic(t, false) })
	t.Run("with the key", func(t *testing.T) { hostileDynamic(t, true) })
}

const hostileKey = 0x5ca1ab1e0ddba11

func hostileDynamic(t *testing.T, insider bool) {
	attacked, outside := netip.MustParseAddr("127.0.89.1"), netip.MustParseAddr("127.0.89.2")
	open := func(at netip.Addr) *rdma.Device {
		f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: at, Wire: true}}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		d, err := rdma.OpenOn(f, "soft0")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d
	}
	d, peer := open(attacked), open(netip.MustParseAddr("127.0.89.3"))
	own, mr, _, _, dct := dynamicTarget(t, d, 1<<16)
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(outside, 0)))
	require.NoError(t, err)
	defer socket.Close()
	from := packet.Endpoint{GID: outside.As16(), Port: socket.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
	to := packet.Endpoint{GID: attacked.As16(), Port: packet.Port}
	random := rand.New(rand.NewPCG(1, 2))
	order := binary.BigEndian
	key := uint64(hostileKey)
	if !insider {
		key ^= 1 << 40
	}
	for i := range 20000 {
		p := make([]byte, packet.MaxSize)
		p[0] = 0xc0 | byte(random.IntN(32))
		p[1] = byte(random.IntN(4)) << 6
		order.PutUint16(p[2:], 0xffff)
		order.PutUint32(p[4:], dct.Num())
		if random.IntN(8) == 0 {
			order.PutUint32(p[4:], own.Num())
		}
		order.PutUint32(p[8:], uint32(random.IntN(4))|uint32(random.IntN(2))<<31)
		order.PutUint64(p[12:], key)
		order.PutUint64(p[20:], uint64(1+i/64+random.IntN(2)))
		order.PutUint32(p[28:], uint32(random.IntN(3000)))
		order.PutUint64(p[32:], mr.Address()+uint64(random.IntN(1<<16)))
		order.PutUint32(p[40:], mr.RKey()^uint32(random.IntN(2)))
		length := [...]int{0, 8, 1024, 2048, 5000}[random.IntN(5)]
		order.PutUint32(p[44:], uint32(length))
		size := 32 + [...]int{0, 4, 8, 16, 20, 28}[random.IntN(6)] + [...]int{0, 0, 8, 1024, 1024, 4096}[random.IntN(6)] + 4
		p = p[:min(size, len(p))]
		packet.Seal(p, &from, &to, 0)
		_, err := socket.WriteToUDPAddrPort(p, netip.AddrPortFrom(attacked, packet.Port))
		require.NoError(t, err)
		if i%512 == 0 {
			time.Sleep(time.Millisecond) // the socket's buffer
		}
	}
	if !insider {
		assert.Equal(t, make([]byte, 1<<16), mr.Bytes(), "memory was written without the access key")
	}

	// Another initiator uses the target.
	other, theirs, _, theirCQ, _ := dynamicTarget(t, peer, 1<<12)
	copy(theirs.Bytes(), "hello")
	gid, err := peer.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	attr := &ibv.AHAttr{IsGlobal: 1, PortNum: 1}
	*attr.GRH.DGID.Raw() = attacked.As16()
	attr.GRH.SGIDIndex = uint8(gid.GIDIndex)
	ah, err := other.PD().CreateAH(attr)
	closes(t, ah, err)
	program, err := other.NewWRProgram()
	require.NoError(t, err)
	mlx5.DC(program.Write(1, mr.Address(), mr.RKey()).Signaled().Add(theirs.SGE(0, 5)), ah.Ptr(), dct.Num(), hostileKey)
	require.NoError(t, other.PostProgram(program))
	wcs := make([]ibv.WC, 1)
	require.Eventually(t, func() bool { n, err := theirCQ.Poll(wcs); return n == 1 && err == nil }, 10*time.Second,
		time.Millisecond)
	assert.Equal(t, ibv.WC_SUCCESS, wcs[0].Status)
	assert.Equal(t, "hello", string(mr.Bytes()[:5]))
}

// TestForgedDynamicAnswer acknowledges an initiator's request without knowing its connection's life.
func TestForgedDynamicAnswer(t *testing.T) {
	attacked, outside := netip.MustParseAddr("127.0.90.1"), netip.MustParseAddr("127.0.90.2")
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: attacked, Wire: true}}})
	closes(t, f, err)
	d, err := rdma.OpenOn(f, "soft0")
	closes(t, d, err)
	dci, mr, _, cq, _ := dynamicTarget(t, d, 4096)
	gid, err := d.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	attr := &ibv.AHAttr{IsGlobal: 1, PortNum: 1}
	*attr.GRH.DGID.Raw(), attr.GRH.SGIDIndex = outside.As16(), uint8(gid.GIDIndex)
	ah, err := dci.PD().CreateAH(attr)
	closes(t, ah, err)
	program, err := dci.NewWRProgram()
	require.NoError(t, err)
	mlx5.DC(program.Write(1, 1<<20, 7).Signaled().Add(mr.SGE(0, 5)), ah.Ptr(), 0x1234, hostileKey)
	require.NoError(t, dci.PostProgram(program))

	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(outside, 0)))
	closes(t, socket, err)
	from := packet.Endpoint{GID: outside.As16(), Port: socket.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
	to := packet.Endpoint{GID: attacked.As16(), Port: packet.Port}
	for _, life := range []uint64{0, 1, uint64(time.Now().UnixMicro()) << 12} {
		p := make([]byte, 12+8+4+4)
		p[0] = 0xc0 | ibv.OPCODE_ACKNOWLEDGE
		binary.BigEndian.PutUint16(p[2:], 0xffff)
		binary.BigEndian.PutUint32(p[4:], dci.Num())
		binary.BigEndian.PutUint64(p[12:], life)
		p[20] = 0x1f
		packet.Seal(p, &from, &to, 0)
		_, err = socket.WriteToUDPAddrPort(p, netip.AddrPortFrom(attacked, packet.Port))
		require.NoError(t, err)
	}
	for range 50 {
		n, err := cq.Poll(make([]ibv.WC, 1))
		require.NoError(t, err)
		require.Zero(t, n, "a stranger's answer completed the request")
		time.Sleep(time.Millisecond)
	}
}

// closes closes an object when the test ends.
func closes(t *testing.T, o interface{ Close() error }, err error) {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
}

// dynamicTarget creates an initiator and a target with receives, which are closed when the test ends.
func dynamicTarget(t *testing.T, d *rdma.Device, size int) (dci *rdma.QP, mr *rdma.MR, srq *rdma.SRQ, cq *rdma.CQ,
	dct *rdma.QP) {
	const access = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC
	pd, err := d.AllocPD()
	closes(t, pd, err)
	mr, err = pd.RegMR(make([]byte, size), access)
	closes(t, mr, err)
	cq, err = d.CreateCQ(4096, nil, 0)
	closes(t, cq, err)
	srq, err = pd.CreateSRQ(ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}, rdma.QueueOptions{})
	closes(t, srq, err)
	recvs, err := rdma.NewRecvBatch(64, 1)
	require.NoError(t, err)
	for i := range 64 {
		recvs.Recv(uint64(i)).Add(mr.SGE(uint64(size-1024), 1024))
	}
	_, err = srq.PostRecv(recvs)
	require.NoError(t, err)
	require.NoError(t, recvs.Close())
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	dv.DCInitAttr.DCType, *dv.DCInitAttr.DCTAccessKey() = mlx5dv.DCTYPE_DCT, hostileKey
	dct, err = mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{})
	closes(t, dct, err)
	require.NoError(t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: access},
		ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
	require.NoError(t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024, MinRNRTimer: 1},
		ibv.QP_STATE|ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU))
	attr.SRQ, attr.CompMask = 0, ibv.QP_INIT_ATTR_PD|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	attr.Cap, attr.SendOpsFlags = ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}, ibv.QP_EX_WITH_RDMA_WRITE
	dv.DCInitAttr.DCType = mlx5dv.DCTYPE_DCI
	dci, err = mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{})
	closes(t, dci, err)
	require.NoError(t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1},
		ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT))
	require.NoError(t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024}, ibv.QP_STATE|ibv.QP_PATH_MTU))
	require.NoError(t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTS, Timeout: 18, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4},
		ibv.QP_STATE|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|ibv.QP_SQ_PSN))
	return dci, mr, srq, cq, dct
}
