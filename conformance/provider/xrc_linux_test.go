// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// extended is an XRC connection: a queue pair that sends, and a queue pair that receives into the shared receive queues
// of its domain. libmlx5 and libmlx4 support it.
type extended struct {
	send, recv *rdma.QP
	srqs       [2]*rdma.SRQ
	own, peer  *rdma.MR
	cqs        [3]*rdma.CQ // for the sender and the shared receive queues
}

// keep closes an object when the test ends.
func keep(t *testing.T, object io.Closer, err error) {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, object.Close()) })
}

func newExtended(t *testing.T) *extended {
	t.Helper()
	d, err := rdma.Open(deviceName())
	keep(t, d, err)
	var o rdma.QueueOptions // for the sender
	if path := os.Getenv(envInside); path == pathGo || path == pathNativeGo {
		o.Path, err = mlx5.NewPath(d)
		require.NoError(t, err)
	}
	x := &extended{}
	pds := [2]*rdma.PD{}
	for i := range pds {
		pds[i], err = d.AllocPD()
		keep(t, pds[i], err)
	}
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC
	x.own, err = pds[0].RegMR(make([]byte, 2*size), access)
	keep(t, x.own, err)
	x.peer, err = pds[1].RegMR(make([]byte, 2*size), access)
	keep(t, x.peer, err)
	channel, err := d.CreateCompChannel()
	keep(t, channel, err)
	for i := range x.cqs {
		options := rdma.QueueOptions{}
		if i == 0 {
			options = o
		}
		x.cqs[i], err = d.CreateCQ(64, channel, 0, options)
		keep(t, x.cqs[i], err)
	}
	domain, err := d.OpenXRCD(&ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
	keep(t, domain, err)
	for i := range x.srqs {
		x.srqs[i], err = d.CreateSRQEx(&ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, PD: pds[1].Ptr(),
			CQ: x.cqs[1+i].Ptr(), SRQType: ibv.SRQT_XRC, XRCD: domain.Ptr(), CompMask: ibv.SRQ_INIT_ATTR_TYPE |
				ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_XRCD}, rdma.QueueOptions{})
		keep(t, x.srqs[i], err)
	}
	x.send, err = d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_SEND, CompMask: ibv.QP_INIT_ATTR_PD,
		PD: pds[0].Ptr(), SendCQ: x.cqs[0].Ptr(), Cap: ibv.QPCap{MaxSendWR: 16, MaxSendSGE: 1, MaxInlineData: 64}}, o)
	keep(t, x.send, err)
	x.recv, err = d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD,
		XRCD: domain.Ptr()}, rdma.QueueOptions{})
	keep(t, x.recv, err)
	for from, to := range map[*rdma.QP]*rdma.QP{x.send: x.recv, x.recv: x.send} {
		end, err := to.Endpoint()
		require.NoError(t, err)
		require.NoError(t, from.Connect(end))
	}
	return x
}

// post posts one request to a shared receive queue.
func (x *extended) post(t *testing.T, number uint32, fill func(*rdma.SendBatch)) {
	t.Helper()
	send(t, x.send, func(b *rdma.SendBatch) {
		fill(b)
		b.WR(0).QPType.XRC().RemoteSRQN = number
	})
}

// TestXRC checks that requests of an XRC connection arrive in the shared receive queue that each of them names, and
// access memory in the protection domain of that queue.
func TestXRC(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	x := newExtended(t)
	var numbers [2]uint32
	for i, srq := range x.srqs {
		var err error
		numbers[i], err = srq.Num()
		require.NoError(t, err)
	}
	for round := range 40 {
		i := round % 2
		receive(t, x.srqs[i].PostRecv, x.peer.SGE(uint64(i)*size, size))
		text := []byte("to the one or the other")[:1+round/2]
		x.post(t, numbers[i], func(b *rdma.SendBatch) {
			b.SendImm(uint64(round), ibv.ToBE32(uint32(round))).Inline(text).Signaled()
		})
		wc := next(t, x.cqs[1+i])
		require.NoError(t, rdma.CompletionErr(&wc))
		assert.Equal(t, []any{x.recv.Num(), uint64(100), uint32(len(text)), uint32(round)},
			[]any{wc.QPNum, wc.WRID, wc.ByteLen, wc.ImmData().Host()})
		assert.Equal(t, text, x.peer.Bytes()[i*size:][:len(text)])
		wc = next(t, x.cqs[0])
		require.NoError(t, rdma.CompletionErr(&wc))
		assert.EqualValues(t, round, wc.WRID)
	}
	copy(x.own.Bytes(), "written")
	clear(x.peer.Bytes())
	to, key := x.peer.Address(), x.peer.RKey()
	for _, fill := range []func(*rdma.SendBatch){
		func(b *rdma.SendBatch) { b.Write(1, to, key).Add(x.own.SGE(0, 7)).Signaled() },
		func(b *rdma.SendBatch) { b.Read(2, to, key).Add(x.own.SGE(size, 7)).Signaled() },
		func(b *rdma.SendBatch) { b.FetchAdd(3, to+8, key, 7).Add(x.own.SGE(0, 8)).Signaled() },
	} {
		x.post(t, numbers[0], fill)
		wc := next(t, x.cqs[0])
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	assert.Equal(t, "written", string(x.own.Bytes()[size:][:7]))
	assert.EqualValues(t, 7, x.peer.Bytes()[8])
	x.post(t, 1<<20, func(b *rdma.SendBatch) { b.Send(4).Inline([]byte("to none")).Signaled() })
	wc := next(t, x.cqs[0])
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, wc.Status, "unknown shared receive queue number")
}

// TestXRCClosed checks that completions of a closed XRC shared receive queue can be polled, like those of another queue
// in the same domain.
func TestXRCClosed(t *testing.T) {
	if !insideMLX(t) {
		return
	}
	x := newExtended(t)
	for i, srq := range x.srqs {
		number, err := srq.Num()
		require.NoError(t, err)
		receive(t, srq.PostRecv, x.peer.SGE(uint64(i)*size, size))
		x.post(t, number, func(b *rdma.SendBatch) { b.Send(uint64(i)).Inline([]byte("closed")).Signaled() })
		wc := next(t, x.cqs[0])
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	require.NoError(t, x.srqs[0].Close())
	for _, cq := range x.cqs[1:] {
		wc := next(t, cq)
		assert.NoError(t, rdma.CompletionErr(&wc))
		assert.EqualValues(t, 100, wc.WRID)
	}
}
