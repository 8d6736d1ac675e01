// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// documented are programs with one fault each, for Soft-RoCE: the errors of ibv_poll_cq(3), ibv_post_send(3),
// ibv_post_recv(3), ibv_reg_mr(3), ibv_get_async_event(3) and rdma_get_cm_event(3) that Soft-RoCE can produce. The name
// of a fault begins with that of the error in the man page, if any.
var documented = []fault{
	rc("LOC_LEN_ERR: a receive that is too short", "receive-too-small", nil, func(r *testbed) {
		r.b.receive(16)
		r.send(512)
	}),
	rc("LOC_PROT_ERR: no such local key", "lkey-unknown", nil, func(r *testbed) {
		r.from(r.a.mr.Address(), r.a.mr.LKey()^0x7700)
	}),
	rc("LOC_PROT_ERR: out of bounds", "local-range", nil, func(r *testbed) {
		r.from(r.a.mr.Address()+4093, r.a.mr.LKey())
	}),
	rc("LOC_PROT_ERR: deregistered", "lkey-deregistered", nil, func(r *testbed) {
		m := r.a.with(all)
		require.NoError(r, m.Close())
		r.from(m.Address(), m.LKey())
	}),
	rc("LOC_PROT_ERR: another protection domain", "lkey-other-pd", nil, func(r *testbed) {
		m := must(must(r.a.device.AllocPD())(r.T).RegMR(make([]byte, 4096), all))(r.T)
		r.from(m.Address(), m.LKey())
	}),
	rc("LOC_PROT_ERR: a receive without LOCAL_WRITE", "local-write-missing", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_REMOTE_READ)
		r.b.recv.Recv(77).SGE(m.Address(), 64, m.LKey())
		r.b.qp.PostRecv(r.b.recv)
		r.send(8)
	}),
	rc("WR_FLUSH_ERR: moved to ERR", "moved-to-error", nil, func(r *testbed) {
		r.a.receive(64)
		r.a.receive(64)
		require.NoError(r, r.a.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	}),
	rc("WR_FLUSH_ERR: behind a request that failed", "rkey-unknown", nil, func(r *testbed) {
		r.a.write(r.b.mr.Address(), r.b.mr.RKey()^0x7700)
		r.a.write(r.b.mr.Address(), r.b.mr.RKey())
		r.a.write(r.b.mr.Address(), r.b.mr.RKey())
		r.a.post()
	}),
	rc("MW_BIND_ERR: a region without MW_BIND", "window-refused", nil, func(r *testbed) {
		w := must(r.a.pd.AllocMW(ibv.MW_TYPE_2))(r.T)
		r.a.batch.BindMW(1, w.Ptr(), w.NextRKey(), ibv.MWBindInfo{MR: r.a.mr.Ptr(), Addr: r.a.mr.Address(), Length: 64,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}).Signaled()
		r.a.post()
	}),
	rc("REM_INV_REQ_ERR: an atomic that is not aligned", "atomic-misaligned", nil, func(r *testbed) {
		r.atomic(r.b.mr.Address()+3, r.b.mr.RKey())
	}),
	rc("REM_INV_REQ_ERR: reads that the peer does not take", "peer-takes-no-reads",
		func(a, b *ibv.QPAttr) { b.MaxDestRdAtomic = 0 }, func(r *testbed) { r.read(r.b.mr.RKey()) }),
	rc("REM_ACCESS_ERR: no such remote key", "rkey-unknown", nil, func(r *testbed) { r.read(r.b.mr.RKey() ^ 0x7700) }),
	rc("REM_ACCESS_ERR: out of bounds", "remote-range", nil, func(r *testbed) {
		r.a.write(r.b.mr.Address()+4089, r.b.mr.RKey())
		r.a.post()
	}),
	rc("REM_ACCESS_ERR: a region without REMOTE_WRITE", "mr-lacks-remote-write", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ)
		r.a.write(m.Address(), m.RKey())
		r.a.post()
	}),
	rc("REM_ACCESS_ERR: a region without REMOTE_READ", "mr-lacks-remote-read", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE)
		r.a.batch.Read(1, m.Address(), m.RKey()).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
		r.a.post()
	}),
	rc("REM_ACCESS_ERR: a region without REMOTE_ATOMIC", "mr-lacks-remote-atomic", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ)
		r.atomic(m.Address(), m.RKey())
	}),
	rc("REM_ACCESS_ERR: a region that is gone", "rkey-deregistered", nil, func(r *testbed) {
		m := r.b.with(all)
		require.NoError(r, m.Close())
		r.a.write(m.Address(), m.RKey())
		r.a.post()
	}),
	rc("REM_ACCESS_ERR: a queue pair without REMOTE_WRITE", "qp-lacks-remote-write", func(a, b *ibv.QPAttr) {
		b.QPAccessFlags = ibv.ACCESS_REMOTE_READ
	}, func(r *testbed) {
		r.a.write(r.b.mr.Address(), r.b.mr.RKey())
		r.a.post()
	}),
	rc("REM_OP_ERR: the peer's receive has no such key", "lkey-unknown", nil, func(r *testbed) {
		r.b.recv.Recv(77).SGE(r.b.mr.Address(), 64, r.b.mr.LKey()^0x7700)
		r.b.qp.PostRecv(r.b.recv)
		r.send(8)
	}),
	rc("RETRY_EXC_ERR: the peer is destroyed", "peer-destroyed", nil, func(r *testbed) {
		require.NoError(r, r.b.qp.Close())
		r.send(8)
	}),
	rc("RETRY_EXC_ERR: the peer is reset", "peer-not-ready", nil, func(r *testbed) {
		require.NoError(r, r.b.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		r.send(8)
	}),
	rc("RETRY_EXC_ERR: a wrong number", "peer-unknown", func(a, b *ibv.QPAttr) { a.DestQPNum ^= 0x3c00 },
		func(r *testbed) { r.send(8) }),
	rc("RETRY_EXC_ERR: sequence numbers that differ", "psn-mismatch", func(a, b *ibv.QPAttr) {
		b.RQPSN = (a.SQPSN + 1000) & 0xffffff
	}, func(r *testbed) {
		r.b.receive(64)
		r.send(8)
	}),
	rc("RETRY_EXC_ERR: an address where no host is", "wrong-gid", func(a, b *ibv.QPAttr) {
		a.AHAttr.GRH.DGID.Raw()[15] = 99
	}, func(r *testbed) {
		r.b.receive(64)
		r.send(8)
	}),
	rc("RNR_RETRY_EXC_ERR: no receive", "no-receive", nil, func(r *testbed) { r.send(8) }),
	{"EINVAL: a send in INIT", "wrong-state", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		require.NoError(t, r.a.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: all},
			ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
		r.send(8)
	}},
	{"EINVAL: a receive in RESET", "wrong-state", func(t *testing.T) { newTestbed(t, ibv.QPT_RC).a.receive(8) }},
	rc("ENOMEM: a full send queue", "queue-full", nil, func(r *testbed) {
		many := must(rdma.NewSendBatch(48, 1, 0))(r.T) // more than Soft-RoCE makes of 4
		for i := range uint64(48) {
			many.Write(i, r.b.mr.Address(), r.b.mr.RKey()).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
		}
		_, err := r.a.qp.PostSend(many)
		require.Error(r, err)
	}),
	ud("no status: a datagram with another qkey", "qkey-mismatch", func(r *testbed, ah *rdma.AH) {
		r.b.receive(512)
		r.datagram(ah, r.b.qp.Num(), 0x4321, 8)
	}),
	ud("no status: a datagram for a number that does not exist", "peer-unknown", func(r *testbed, ah *rdma.AH) {
		r.b.receive(512)
		r.datagram(ah, r.b.qp.Num()^0x3c00, qkey(r.b), 8)
	}),
	ud("no status: a datagram without a receive", "no-receive", func(r *testbed, ah *rdma.AH) {
		r.datagram(ah, r.b.qp.Num(), qkey(r.b), 8)
	}),
	ud("no status: a receive without room for the GRH", "grh-room", func(r *testbed, ah *rdma.AH) {
		r.b.receive(64)
		r.datagram(ah, r.b.qp.Num(), qkey(r.b), 64)
	}),
	{"EFAULT: memory that is not mapped", "memory-not-mapped", func(t *testing.T) {
		_, err := newTestbed(t, ibv.QPT_RC).a.pd.RegAddress(4096, 4096, 4096, all)
		require.Error(t, err)
	}},
	{"CQ_ERR: a completion queue without room", "cq-overrun", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC).connect(nil)
		ctx, end := context.WithTimeout(t.Context(), 3*time.Second)
		defer end()
		reported := make(chan struct{})
		go func() {
			defer close(reported)
			_, _ = r.a.device.Event(ctx)
		}()
		for range 400 {
			r.a.batch.Reset()
			r.a.write(r.b.mr.Address(), r.b.mr.RKey())
			r.a.post()
			time.Sleep(time.Millisecond)
		}
		<-reported
	}},
	{"ADDR_ERROR: no route to the address", "address-unresolved", connectTo("192.0.2.1:4711")},
	{"no event: an address that no host has", "connect-timeout", connectTo("10.77.0.99:4711")},
	{"REJECTED: no listener", "rejected", connectTo("")},
	{"REJECTED: by the program", "rejected", func(t *testing.T) {
		require.Error(t, connectHere(t, func(server *cm.ID) { require.NoError(t, server.Reject(nil)) }, nil))
	}},
	{"DISCONNECTED: the other end has ended the connection", "disconnected", func(t *testing.T) {
		require.NoError(t, connectHere(t, func(server *cm.ID) {
			must(server.CreateQP(nil, managedQueues(), rdma.QueueOptions{}))(t)
			require.NoError(t, server.Accept(t.Context(), &rdmacm.ConnParam{}, nil))
			require.NoError(t, server.Disconnect(t.Context()))
		}, func(client *cm.ID, qp *rdma.QP) {
			for {
				e := must(client.Event(t.Context()))(t)
				if e.Type == rdmacm.CM_EVENT_DISCONNECTED {
					break
				}
			}
			require.NoError(t, client.Disconnect(t.Context()))
			ctx, end := context.WithTimeout(t.Context(), 2*time.Second)
			defer end()
			_, err := qp.RecvCQ().Wait(ctx, make([]ibv.WC, 1))
			require.NoError(t, err)
		}))
	}},
}

func managedQueues() *ibv.QPInitAttr {
	return &ibv.QPInitAttr{Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

// connectHere connects to a listener in this process, which answers with answer, and then calls then. Both may be nil.
// A receive is posted on the client. It returns the error of the connect.
func connectHere(t *testing.T, answer func(server *cm.ID), then func(client *cm.ID, qp *rdma.QP)) error {
	at := netip.AddrPortFrom(netip.MustParseAddr(os.Getenv("GOVERBS_ADDRESS")), 4712)
	l := must(cm.CreateID(rdmacm.PS_TCP))(t)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(1))
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() {
		server, _, err := l.GetRequest(t.Context())
		if assert.NoError(t, err) {
			answer(server)
		}
	})
	client := must(cm.CreateID(rdmacm.PS_TCP))(t)
	require.NoError(t, client.ResolveAddr(t.Context(), netip.AddrPort{}, at, 2*time.Second))
	require.NoError(t, client.ResolveRoute(t.Context(), 2*time.Second))
	qp := must(client.CreateQP(nil, managedQueues(), rdma.QueueOptions{}))(t)
	m := must(qp.PD().RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE))(t)
	receive := must(rdma.NewRecvBatch(1, 1))(t)
	receive.Recv(1).SGE(m.Address(), 64, m.LKey())
	must(qp.PostRecv(receive))(t)
	if err := client.Connect(t.Context(), &rdmacm.ConnParam{}, nil); err != nil {
		return err
	}
	if then != nil {
		then(client, qp)
	}
	return nil
}

// connectTo is a program that connects, by default to a local port without a listener.
func connectTo(at string) func(t *testing.T) {
	return func(t *testing.T) {
		if at == "" {
			at = net.JoinHostPort(os.Getenv("GOVERBS_ADDRESS"), "4711")
		}
		_, err := (&stream.Dialer{Config: stream.Config{HandshakeTimeout: 3 * time.Second}}).Dial(t.Context(), at)
		require.Error(t, err)
	}
}

// from writes 8 bytes to the peer.
func (r *testbed) from(at uint64, key uint32) {
	r.a.batch.Write(1, r.b.mr.Address(), r.b.mr.RKey()).SGE(at, 8, key).Signaled()
	r.a.post()
}

func (r *testbed) datagram(ah *rdma.AH, to, qkey, size uint32) {
	r.a.batch.Send(1).SGE(r.a.mr.Address(), size, r.a.mr.LKey()).UD(ah.Ptr(), to, qkey).Signaled()
	r.a.post()
}
