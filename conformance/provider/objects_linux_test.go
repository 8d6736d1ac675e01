// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// deviceName returns the name of the emulated device.
func deviceName() string {
	switch os.Getenv(envInside) {
	case pathMLX4:
		return MLX4.Device
	case pathERDMA:
		return ERDMA.Device
	case pathNative:
		if os.Getenv("GOVERBS_EMULATED") == EFA.Name {
			return EFA.Device
		}
	}
	return Device
}

func openDevice(t *testing.T) *rdma.Device {
	t.Helper()
	var device *rdma.Device
	var err error
	if kind := os.Getenv(envInside); kind == pathNative || kind == pathNativeGo {
		device, err = rdma.OpenOn(backend(t), deviceName())
	} else {
		device, err = rdma.Open(deviceName())
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, device.Close()) })
	if kind := os.Getenv(envInside); kind == pathGo || kind == pathNativeGo {
		path, err := mlx5.NewPath(device)
		require.NoError(t, err)
		device.UsePath(path)
	}
	return device
}

// toItself creates a queue pair that is connected to itself.
func toItself(t *testing.T, device *rdma.Device) *rdma.QP {
	qp, err := device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	keep(t, qp, err)
	connectToItself(t, qp)
	return qp
}

func connectToItself(t *testing.T, qp *rdma.QP) {
	t.Helper()
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
}

// pair creates two connected queue pairs, each with memory: one half for sends, the other half for receives.
func pair(t *testing.T, device *rdma.Device, create func(rdma.QPParts) (*rdma.QP, error), parts rdma.QPParts) (
	qps [2]*rdma.QP, mrs [2]*rdma.MR) {
	t.Helper()
	for i := range qps {
		qp, err := create(parts)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, qp.Close()) })
		mr, err := qp.RegMR(make([]byte, 2*size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
			ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_ATOMIC)
		require.NoError(t, err)
		qps[i], mrs[i] = qp, mr
		provider := map[string]string{pathC: "mlx5", pathGo: "software", pathMLX4: "mlx4",
			pathERDMA: "erdma", pathNative: "software", pathNativeGo: "software"}[os.Getenv(envInside)]
		assert.Equal(t, provider, qp.SendQueue().Provider(), "driver")
	}
	for i := range qps {
		peer, err := qps[1-i].Endpoint()
		require.NoError(t, err)
		require.NoError(t, qps[i].Connect(peer))
	}
	return qps, mrs
}

const (
	size        = 1000
	routeHeader = 40 // size of the space before a datagram
)

// next returns the next completion of a queue, which must be successful.
func next(t *testing.T, cq *rdma.CQ) ibv.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	wcs := make([]ibv.WC, 1)
	n, err := cq.Wait(ctx, wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return wcs[0]
}

func send(t *testing.T, qp *rdma.QP, fill func(*rdma.SendBatch)) {
	t.Helper()
	b, err := rdma.NewSendBatch(8, 2, 64)
	require.NoError(t, err)
	defer b.Close()
	fill(b)
	_, err = qp.PostSend(b)
	require.NoError(t, err)
}

func receive(t *testing.T, post func(*rdma.RecvBatch) (int, error), at ...ibv.SGE) {
	t.Helper()
	b, err := rdma.NewRecvBatch(len(at), 1)
	require.NoError(t, err)
	defer b.Close()
	for i, sge := range at {
		b.Recv(uint64(100 + i)).Add(sge)
	}
	_, err = post(b)
	require.NoError(t, err)
}

// TestObjects tests the objects of package rdma over libibverbs with libmlx5, libmlx4 and liberdma.
func TestObjects(t *testing.T) {
	if !insideAll(t) {
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1,
		MaxRecvSGE: 1, MaxInlineData: 16}})
	for round := range 40 {
		from, to := round%2, 1-round%2
		text := bytes.Repeat([]byte{byte(round + 1)}, round*25+1)
		copy(mrs[from].Bytes(), text)
		receive(t, qps[to].PostRecv, mrs[to].SGE(size, size))
		send(t, qps[from], func(b *rdma.SendBatch) {
			b.Send(1).Add(mrs[from].SGE(0, uint32(len(text)))).Signaled()
		})
		wc := next(t, qps[to].RecvCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
		assert.EqualValues(t, len(text), wc.ByteLen)
		assert.Equal(t, text, mrs[to].Bytes()[size:][:len(text)])
		wc = next(t, qps[from].SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	local, peer := mrs[0], mrs[1]
	clear(peer.Bytes())
	copy(peer.Bytes(), "remote memory")
	send(t, qps[0], func(b *rdma.SendBatch) {
		b.Write(1, peer.SGE(size, 6).Addr, peer.RKey()).Inline([]byte("inline")).Signaled()
		b.Read(2, peer.SGE(0, 13).Addr, peer.RKey()).Add(local.SGE(size, 13)).Signaled()
		b.FetchAdd(3, peer.SGE(size+8, 8).Addr, peer.RKey(), 7).Add(local.SGE(0, 8)).Signaled()
	})
	for i := range 3 {
		wc := next(t, qps[0].SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
		assert.EqualValues(t, i+1, wc.WRID)
	}
	assert.Equal(t, "inline", string(peer.Bytes()[size:][:6]))
	assert.Equal(t, "remote memory", string(local.Bytes()[size:][:13]))
	assert.EqualValues(t, 7, peer.Bytes()[size+8])

	require.NoError(t, qps[0].Drain(t.Context()))
}

// TestDatagrams checks that a datagram arrives after the space for a GRH, and that the completion identifies the
// sender.
func TestDatagrams(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	device := openDevice(t)
	var qps [2]*rdma.QP
	var mrs [2]*rdma.MR
	for i := range qps {
		qp, err := device.NewUD(rdma.QPParts{})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, qp.Close()) })
		mrs[i], err = qp.RegMR(make([]byte, 2*size), ibv.ACCESS_LOCAL_WRITE)
		require.NoError(t, err)
		qps[i] = qp
	}
	peer, err := qps[1].Endpoint()
	require.NoError(t, err)
	path, err := qps[0].Path(peer)
	require.NoError(t, err)
	ah, err := qps[0].PD().CreateAH(&path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ah.Close()) })
	copy(mrs[0].Bytes(), "a datagram")
	receive(t, qps[1].PostRecv, mrs[1].SGE(0, size), mrs[1].SGE(size, size))
	send(t, qps[0], func(b *rdma.SendBatch) {
		// not received, because of its Q_Key
		b.Send(1).Add(mrs[0].SGE(500, 10)).UD(ah.Ptr(), qps[1].Num(), peer.QKey+1).Signaled()
		b.Send(2).Add(mrs[0].SGE(0, 10)).UD(ah.Ptr(), qps[1].Num(), peer.QKey).Signaled()
	})
	wc := next(t, qps[1].RecvCQ())
	assert.EqualValues(t, routeHeader+10, wc.ByteLen)
	assert.EqualValues(t, qps[0].Num(), wc.SrcQP)
	assert.Equal(t, "a datagram", string(mrs[1].Bytes()[routeHeader:][:10]))
	for range 2 {
		wc = next(t, qps[0].SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}

// TestSharedReceives checks that two queue pairs share one receive queue, and that its limit event is raised once.
func TestSharedReceives(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pd.Close()) })
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srq.Close()) })
	mr, err := pd.RegMR(make([]byte, 16*size), ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, mr.Close()) })
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{PD: pd, SRQ: srq})
	require.NoError(t, srq.Modify(&ibv.SRQAttr{SRQLimit: 2}, ibv.SRQ_LIMIT))
	var at []ibv.SGE
	for i := range 4 {
		at = append(at, mr.SGE(uint64(i)*size, size))
	}
	for round := range 10 { // often enough that slots are reused in a different order
		receive(t, srq.PostRecv, at...)
		for i := range 4 {
			from, to := i%2, 1-i%2
			mrs[from].Bytes()[0] = byte(10*round + i)
			send(t, qps[from], func(b *rdma.SendBatch) { b.Send(1).Add(mrs[from].SGE(0, 1)).Signaled() })
			wc := next(t, qps[to].RecvCQ())
			require.NoError(t, rdma.CompletionErr(&wc))
			assert.EqualValues(t, 10*round+i, mr.Bytes()[(wc.WRID-100)*size])
			wc = next(t, qps[from].SendCQ())
			require.NoError(t, rdma.CompletionErr(&wc))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for limits := 0; limits == 0; {
		event, err := device.Event(ctx)
		require.NoError(t, err)
		if event.Type == ibv.EVENT_SRQ_LIMIT_REACHED {
			limits++
		}
	}
}

// TestExtended posts a program to an extended queue pair, and checks that an extended completion queue has the
// requested fields, even after it was resized with unpolled completions.
func TestExtended(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pd.Close()) })
	channel, err := device.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, channel.Close()) })
	cq, err := device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 64, Channel: channel.Ptr(),
		WCFlags: ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_IMM})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cq.Close()) })
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, mr.Close()) })
	qp, err := device.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap:          ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16},
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM}, rdma.QueueOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, qp.Close()) })
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local)) // connected to itself
	program, err := qp.NewWRProgram()
	require.NoError(t, err)
	const n = 8
	for i := range n {
		program.WriteImm(uint64(i), mr.SGE(uint64(8*i), 8).Addr, mr.RKey(), ibv.ToBE32(uint32(70+i))).
			Inline([]byte{byte(i + 1), 2, 3}).Signaled()
	}
	at := make([]ibv.SGE, n)
	for i := range at {
		at[i] = mr.SGE(500, 1)
	}
	receive(t, qp.PostRecv, at...)
	require.NoError(t, qp.PostProgram(program))
	require.Eventually(t, func() bool { return mr.Bytes()[8*(n-1)] == n }, 30*time.Second, time.Millisecond)
	if os.Getenv(envInside) == pathC {
		require.NoError(t, cq.Resize(200)) // 16 completions are not polled yet
	} else {
		require.ErrorIs(t, cq.Resize(200), syscall.EOPNOTSUPP)
	}
	var sends, receives int
	for range 2 * n {
		wc := next(t, cq)
		require.NoError(t, rdma.CompletionErr(&wc))
		assert.Equal(t, qp.Num(), wc.QPNum)
		if wc.Opcode == ibv.WC_RECV_RDMA_WITH_IMM {
			assert.EqualValues(t, 70+receives, wc.ImmData().Host())
			assert.EqualValues(t, 3, wc.ByteLen)
			receives++
		} else {
			assert.EqualValues(t, sends, wc.WRID)
			sends++
		}
	}
	assert.Equal(t, n, sends)
	receive(t, qp.PostRecv, at...)
	require.NoError(t, qp.PostProgram(program))
	for range 2 * n {
		wc := next(t, cq)
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}
