// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// runner is a queue pair with memory and completions that can post any request.
type runner struct {
	t      *testing.T
	device *rdma.Device
	pd     *rdma.PD
	cq     *rdma.CQ
	qp     *rdma.QP
	mr     *rdma.MR
	end    rdma.Endpoint
	id     uint64
}

const runnerMemory = 1 << 16

func newRunner(t *testing.T, f *soft.Fabric, name string, kind ibv.QPType) *runner {
	r := &runner{t: t}
	closed := func(o rdma.Object) { t.Cleanup(func() { assert.NoError(t, o.Close()) }) }
	var err error
	r.device, err = rdma.OpenOn(f, name)
	require.NoError(t, err)
	closed(r.device)
	r.pd, err = r.device.AllocPD()
	require.NoError(t, err)
	closed(r.pd)
	r.cq, err = r.device.CreateCQ(16, nil, 0)
	require.NoError(t, err)
	closed(r.cq)
	operations := ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_WRITE |
		ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM
	if kind == ibv.QPT_RC {
		operations |= ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD | ibv.QP_EX_WITH_SEND_WITH_INV | ibv.QP_EX_WITH_FLUSH |
			ibv.QP_EX_WITH_ATOMIC_WRITE | ibv.QP_EX_WITH_BIND_MW
	}
	r.qp, err = r.device.CreateQPEx(&ibv.QPInitAttrEx{QPType: kind, SendCQ: r.cq.Ptr(), RecvCQ: r.cq.Ptr(),
		PD: r.pd.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
		SendOpsFlags: operations, CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS},
		rdma.QueueOptions{})
	require.NoError(t, err)
	closed(r.qp)
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
		ibv.ACCESS_MW_BIND | ibv.ACCESS_FLUSH_GLOBAL
	r.mr, err = r.pd.RegMR(make([]byte, runnerMemory), access)
	require.NoError(t, err)
	closed(r.mr)
	// content that tshark does not mistake for another protocol
	copy(r.mr.Bytes(), bytes.Repeat([]byte{0xe1, 0xe2, 0xe3, 0xe4, 0xe5}, runnerMemory/5))
	r.end, err = r.qp.Endpoint()
	require.NoError(t, err)
	return r
}

func (r *runner) connect(to *runner, mtu ibv.MTU) {
	attr, err := r.qp.ConnectAttr(to.end)
	require.NoError(r.t, err)
	if attr.PathMTU = mtu; r.qp.Type() == ibv.QPT_RC {
		attr.QPAccessFlags |= ibv.ACCESS_FLUSH_GLOBAL
	}
	attr.Timeout = 17 // half a second per try, for busy machines
	require.NoError(r.t, r.qp.ConnectWith(attr))
}

// do posts a request, waits until it completes, and discards the peer's receive completions.
func (r *runner) do(peer *runner, request func(p *rdma.WRProgram) rdma.WRRequest) {
	r.t.Helper()
	p, err := r.qp.NewWRProgram()
	require.NoError(r.t, err)
	request(p).Signaled()
	require.NoError(r.t, r.qp.PostProgram(p))
	ctx, cancel := context.WithTimeout(r.t.Context(), bound)
	defer cancel()
	wcs := make([]ibv.WC, 1)
	_, err = r.cq.WaitBusy(ctx, wcs)
	require.NoError(r.t, err)
	require.NoError(r.t, rdma.CompletionErr(&wcs[0]))
	for range 2 {
		if n, err := peer.cq.Poll(wcs); err == nil && n > 0 {
			require.NoError(r.t, rdma.CompletionErr(&wcs[0]))
		}
	}
}

func (r *runner) receive() {
	b, err := rdma.NewRecvBatch(1, 1)
	require.NoError(r.t, err)
	defer b.Close()
	b.Recv(100).Add(r.mr.SGE(0, runnerMemory))
	_, err = r.qp.PostRecv(b)
	require.NoError(r.t, err)
}

// everyRequest executes every operation with several sizes from one runner on the memory of another.
func everyRequest(a, b *runner, sizes []uint32) {
	remote, rkey, reliable := b.mr.Address(), b.mr.RKey(), a.qp.Type() == ibv.QPT_RC
	for _, n := range sizes {
		s := a.mr.SGE(0, n)
		if n == 0 {
			s = ibv.SGE{}
		}
		b.receive()
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.Send(1).Add(s) })
		b.receive()
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.SendImm(2, ibv.ToBE32(0x12345678)).Add(s) })
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.Write(3, remote, rkey).Add(s) })
		b.receive()
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.WriteImm(4, remote, rkey, ibv.ToBE32(0x12345678)).Add(s)
		})
		if !reliable {
			continue
		}
		window, err := b.pd.AllocMW(ibv.MW_TYPE_2)
		require.NoError(a.t, err)
		key := window.RKey()&^0xff | (window.RKey()+1)&0xff
		b.do(a, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.BindMW(5, window.Ptr(), key, ibv.MWBindInfo{MR: b.mr.Ptr(), Addr: remote, Length: 8,
				MWAccessFlags: ibv.ACCESS_REMOTE_READ})
		})
		b.receive()
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.SendInv(6, key).Add(s) })
		require.NoError(a.t, window.Close())
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.Read(7, remote, rkey).Add(s) })
	}
	if !reliable {
		return
	}
	word := a.mr.SGE(0, 8)
	a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.CompareSwap(8, remote, rkey, 1, 2).Add(word) })
	a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.FetchAdd(9, remote, rkey, 1).Add(word) })
	a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.AtomicWrite(10, remote, rkey, [8]byte{1}) })
	a.do(b, func(p *rdma.WRProgram) rdma.WRRequest {
		return p.Flush(11, remote, rkey, 64, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE))
	})
}

// everyRequestMTU is the path MTU, and everySize are the sizes of requests.
const everyRequestMTU = ibv.MTU_1024

var everySize = []uint32{0, 1, 1024, 1025, 5001, runnerMemory}
