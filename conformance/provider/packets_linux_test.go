// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// packetEnd is a raw packet queue pair.
type packetEnd struct {
	t      *testing.T
	device *rdma.Device
	qp     *rdma.QP
	cq     *rdma.CQ
	mr     *rdma.MR
}

func newPacketEnd(t *testing.T, device *rdma.Device, header uint16) *packetEnd {
	t.Helper()
	e := &packetEnd{t: t, device: device}
	pd, err := device.AllocPD()
	keep(t, pd, err)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	e.cq, err = device.CreateCQ(64, channel, 0)
	keep(t, e.cq, err)
	e.mr, err = pd.RegMR(make([]byte, 1<<15), ibv.ACCESS_LOCAL_WRITE)
	keep(t, e.mr, err)
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_RAW_PACKET, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(), PD: pd.Ptr(),
		Cap:      ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInlineData: 64},
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ibv.QP_EX_WITH_SEND}
	if header > 0 {
		attr.MaxTSOHeader = header
		attr.CompMask |= ibv.QP_INIT_ATTR_MAX_TSO_HEADER
		attr.SendOpsFlags |= ibv.QP_EX_WITH_TSO
	}
	e.qp, err = device.CreateQPEx(attr, rdma.QueueOptions{})
	keep(t, e.qp, err)
	return e
}

func (e *packetEnd) to(state ibv.QPState, mask ibv.QPAttrMask) {
	e.t.Helper()
	require.NoError(e.t, e.qp.Modify(&ibv.QPAttr{QPState: state, PortNum: 1}, ibv.QP_STATE|mask))
}

// receives posts n receives of 1 KiB.
func (e *packetEnd) receives(n int) {
	e.t.Helper()
	b, err := rdma.NewRecvBatch(n, 1)
	keep(e.t, b, err)
	for i := range n {
		b.Recv(uint64(100 + i)).Add(e.mr.SGE(uint64(i)<<10, 1<<10))
	}
	_, err = e.qp.PostRecv(b)
	require.NoError(e.t, err)
}

// received returns the packet of the next completion, which is that of a receive.
func (e *packetEnd) received(id uint64) []byte {
	e.t.Helper()
	wc := next(e.t, e.cq)
	assert.Equal(e.t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(e.t, ibv.WC_RECV, wc.Opcode)
	assert.Equal(e.t, id, wc.WRID)
	assert.Equal(e.t, e.qp.Num(), wc.QPNum)
	assert.NotZero(e.t, wc.WCFlags&ibv.WC_IP_CSUM_OK, "checksums")
	return e.mr.Bytes()[(id-100)<<10:][:wc.ByteLen]
}

func (e *packetEnd) sent(id uint64, op ibv.WCOpcode) {
	e.t.Helper()
	wc := next(e.t, e.cq)
	assert.Equal(e.t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(e.t, op, wc.Opcode)
	assert.Equal(e.t, id, wc.WRID)
}

// TestPackets sends packets through libmlx5, package native, and mlx5.NewPath on its devices: in parts, inline, with
// computed checksums and segmented. Packets reach queue pairs with a rule of flow steering.
func TestPackets(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, e := range releases(t) {
			for _, path := range []string{pathC, pathNative, pathNativeGo} {
				again(t, e, path)
				again(t, e, path, "GOVERBS_EMULATED_NO_INLINE=1")
			}
		}
		return
	}
	device := openDevice(t)
	const header = 54
	from, to := newPacketEnd(t, device, header), newPacketEnd(t, device, 0)
	for _, e := range []*packetEnd{from, to} {
		e.to(ibv.QPS_INIT, ibv.QP_PORT)
		if e == to {
			e.receives(6) // before the queue pair can receive
		}
		e.to(ibv.QPS_RTR, 0)
		e.to(ibv.QPS_RTS, 0)
	}
	flow, err := to.qp.CreateFlow(&ibv.FlowAttr{Type: ibv.FLOW_ATTR_ALL_DEFAULT, Port: 1})
	keep(t, flow, err)
	data := from.mr.Bytes()
	for i := range data {
		data[i] = byte(i * 7)
	}
	b, err := rdma.NewSendBatch(1, 3, 64)
	keep(t, b, err)
	post := func(add func() rdma.SendRequest) {
		t.Helper()
		b.Reset()
		add().Signaled()
		_, err := from.qp.PostSend(b)
		require.NoError(t, err)
	}
	post(func() rdma.SendRequest {
		return b.Send(1).Add(from.mr.SGE(0, 10)).Add(from.mr.SGE(10, 8)).Add(from.mr.SGE(18, 500)).Flags(ibv.SEND_IP_CSUM)
	})
	from.sent(1, ibv.WC_SEND)
	assert.Equal(t, data[:518], to.received(100))
	post(func() rdma.SendRequest { return b.Send(2).Inline(data[100:160]) })
	from.sent(2, ibv.WC_SEND)
	assert.Equal(t, data[100:160], to.received(101))
	post(func() rdma.SendRequest { return b.TSO(3, data[:header], 400).Add(from.mr.SGE(1000, 900)) })
	from.sent(3, ibv.WC_TSO)
	for i, n := range []int{400, 400, 100} {
		want := append(bytes.Clone(data[:header]), data[1000+400*i:][:n]...)
		assert.Equal(t, want, to.received(uint64(102+i)))
	}
	// The same with ibv_wr_*.
	p, err := from.qp.NewWRProgram()
	require.NoError(t, err)
	p.Send(4).Add(from.mr.SGE(30, 40)).Signaled()
	require.NoError(t, from.qp.PostProgram(p))
	from.sent(4, ibv.WC_SEND)
	assert.Equal(t, data[30:70], to.received(105))

	// Without a receive, or for one that is too small, a packet is lost.
	post(func() rdma.SendRequest { return b.Send(5).Add(from.mr.SGE(0, 100)) })
	from.sent(5, ibv.WC_SEND)
	to.receives(1)
	post(func() rdma.SendRequest { return b.Send(6).Add(from.mr.SGE(0, 2000)) })
	from.sent(6, ibv.WC_SEND)
	post(func() rdma.SendRequest { return b.Send(7).Add(from.mr.SGE(0, 100)) })
	from.sent(7, ibv.WC_SEND)
	assert.Equal(t, data[:100], to.received(100))

	// Requests that the device could not execute are not posted.
	refused := func(what string, add func() rdma.SendRequest) {
		t.Helper()
		b.Reset()
		add().Signaled()
		_, err := from.qp.PostSend(b)
		var posted *rdma.PostError
		require.True(t, errors.As(err, &posted), "%s: %v", what, err)
		assert.Equal(t, syscall.EINVAL, posted.Errno, what)
		t.Log(err)
	}
	if os.Getenv("GOVERBS_EMULATED_NO_INLINE") == "" {
		refused("short", func() rdma.SendRequest { return b.Send(8).Add(from.mr.SGE(0, 17)) })
	}
	refused("header", func() rdma.SendRequest { return b.TSO(8, data[:header+1], 400).Add(from.mr.SGE(0, 10)) })
	refused("little header", func() rdma.SendRequest { return b.TSO(8, data[:13], 400).Add(from.mr.SGE(0, 10)) })
	refused("segments", func() rdma.SendRequest { return b.TSO(8, data[:20], 400).Add(from.mr.SGE(0, 1<<14+1)) })
	post(func() rdma.SendRequest { return b.Send(9).Add(from.mr.SGE(0, 20)) })
	from.sent(9, ibv.WC_SEND)

	// In ERR, everything is flushed. After RESET, the queue pair works again.
	to.receives(2)
	to.to(ibv.QPS_ERR, 0)
	for range 2 {
		assert.Equal(t, ibv.WC_WR_FLUSH_ERR, next(t, to.cq).Status)
	}
	to.to(ibv.QPS_RESET, 0)
	to.to(ibv.QPS_INIT, ibv.QP_PORT)
	to.receives(2)
	to.to(ibv.QPS_RTR, 0)
	post(func() rdma.SendRequest { return b.Send(10).Add(from.mr.SGE(0, 300)) })
	from.sent(10, ibv.WC_SEND)
	assert.Equal(t, data[:300], to.received(100))
	time.Sleep(time.Millisecond)
	n, err := to.cq.Poll(make([]ibv.WC, 1))
	require.NoError(t, err)
	assert.Zero(t, n)
}
