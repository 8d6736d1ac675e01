// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

const all = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_ATOMIC

// end is one end of a connection.
type end struct {
	t      *testing.T
	device *rdma.Device
	pd     *rdma.PD
	cq     *rdma.CQ
	mr     *rdma.MR
	memory []byte
	qp     *rdma.QP
	batch  *rdma.SendBatch
	recv   *rdma.RecvBatch
}

// testbed is a fabric with a virtual clock and two unconnected ends on its devices. In a guest, both ends are on the
// Soft-RoCE device and fabric is nil.
type testbed struct {
	*testing.T
	fabric *soft.Fabric
	a, b   *end
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T { t.Helper(); require.NoError(t, err); return v }
}

func newTestbed(t *testing.T, kind ibv.QPType) *testbed {
	if guest() != "" {
		r := &testbed{T: t}
		infos := must(rdma.DevicesOf(runtime.Native))(t)
		r.a, r.b = r.end(kind, infos[0]), r.end(kind, infos[0])
		return r
	}
	r := &testbed{T: t, fabric: must(soft.New(soft.Options{Virtual: true}))(t)}
	infos := must(rdma.DevicesOf(r.fabric))(t)
	r.a, r.b = r.end(kind, infos[0]), r.end(kind, infos[1])
	return r
}

func (r *testbed) end(kind ibv.QPType, on rdma.DeviceInfo) *end {
	e := &end{t: r.T, device: must(on.Open())(r.T), memory: make([]byte, 4096)}
	e.pd = must(e.device.AllocPD())(r.T)
	e.cq = must(e.device.CreateCQ(64, nil, 0))(r.T)
	e.mr = must(e.pd.RegMR(e.memory, all))(r.T)
	e.qp = e.create(kind)
	e.batch, e.recv = must(rdma.NewSendBatch(4, 2, 64))(r.T), must(rdma.NewRecvBatch(4, 2))(r.T)
	return e
}

func (e *end) create(kind ibv.QPType) *rdma.QP {
	attr := &ibv.QPInitAttr{QPType: kind, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2}}
	return must(e.pd.CreateQP(attr, rdma.QueueOptions{Unchecked: true}))(e.t)
}

// connect connects both ends; change may modify the attributes.
func (r *testbed) connect(change func(a, b *ibv.QPAttr)) *testbed {
	a := must(r.a.qp.ConnectAttr(must(r.b.qp.Endpoint())(r.T)))(r.T)
	b := must(r.b.qp.ConnectAttr(must(r.a.qp.Endpoint())(r.T)))(r.T)
	a.Timeout, a.RetryCnt, a.RNRRetry = 8, 2, 2
	b.Timeout, b.RetryCnt, b.RNRRetry = 8, 2, 2
	if change != nil {
		change(a, b)
	}
	require.NoError(r, r.a.qp.ConnectWith(a))
	require.NoError(r, r.b.qp.ConnectWith(b))
	return r
}

// settle polls both ends until nothing more completes.
func (r *testbed) settle() {
	var wcs [8]ibv.WC
	for quiet := 0; quiet < 20; {
		quiet++
		for _, e := range []*end{r.a, r.b} {
			if n, err := e.cq.Poll(wcs[:]); err == nil && n > 0 {
				quiet = 0
			}
		}
		if r.fabric == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		r.fabric.Advance(10 * time.Millisecond)
	}
}

// post posts the batch of an end. It ignores errors, since a rejected post may be the fault.
func (e *end) post() { e.qp.PostSend(e.batch) }

// receive posts a receive of the given size.
func (e *end) receive(size uint32) {
	e.recv.Reset()
	e.recv.Recv(77).SGE(e.mr.Address(), size, e.mr.LKey())
	e.qp.PostRecv(e.recv)
}

// write posts an RDMA write of 8 bytes to the peer.
func (e *end) write(at uint64, key uint32) rdma.SendRequest {
	return e.batch.Write(1, at, key).SGE(e.mr.Address(), 8, e.mr.LKey()).Signaled()
}

// fault is a program with a fault and the expected cause.
type fault struct {
	name, cause string
	run         func(t *testing.T)
}

// rc is a fault between connected ends; change may modify the attributes.
func rc(name, cause string, change func(a, b *ibv.QPAttr), run func(r *testbed)) fault {
	return fault{name, cause, func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC).connect(change)
		run(r)
		r.settle()
	}}
}

// write is a fault in an RDMA write of the first end.
func write(name, cause string, run func(r *testbed) (at uint64, key uint32)) fault {
	return rc(name, cause, nil, func(r *testbed) {
		at, key := run(r)
		r.a.write(at, key)
		r.a.post()
	})
}

// local is a fault in the local memory of the first end.
func local(name, cause string, sge func(r *testbed) (at uint64, size, key uint32)) fault {
	return rc(name, cause, nil, func(r *testbed) {
		at, size, key := sge(r)
		r.a.batch.Write(1, r.b.mr.Address(), r.b.mr.RKey()).SGE(at, size, key).Signaled()
		r.a.post()
	})
}

// ud is a fault of a datagram, which no status reports.
func ud(name, cause string, run func(r *testbed, ah *rdma.AH)) fault {
	return fault{name, cause, func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_UD).connect(nil)
		path := must(r.a.qp.Path(must(r.b.qp.Endpoint())(t)))(t)
		run(r, must(r.a.pd.CreateAH(&path))(t))
		r.settle()
	}}
}

// with registers memory of an end with other access flags.
func (e *end) with(access ibv.AccessFlags) *rdma.MR {
	return must(e.pd.RegMR(make([]byte, 4096), access))(e.t)
}

func (r *testbed) atomic(at uint64, key uint32) {
	r.a.batch.FetchAdd(1, at, key, 1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
	r.a.post()
}

func (r *testbed) read(key uint32) {
	r.a.batch.Read(1, r.b.mr.Address(), key).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
	r.a.post()
}

func (r *testbed) send(size uint32) {
	r.a.batch.Send(1).SGE(r.a.mr.Address(), size, r.a.mr.LKey()).Signaled()
	r.a.post()
}

var faults = []fault{
	local("nonexistent local key", "lkey-unknown", func(r *testbed) (uint64, uint32, uint32) {
		return r.a.mr.Address(), 8, r.a.mr.LKey() ^ 0x5a5a00
	}),
	local("memory beyond the end of the region", "local-range", func(r *testbed) (uint64, uint32, uint32) {
		return r.a.mr.Address() + 4090, 8, r.a.mr.LKey()
	}),
	local("memory of another domain", "lkey-other-pd", func(r *testbed) (uint64, uint32, uint32) {
		m := must(must(r.a.device.AllocPD())(r.T).RegMR(make([]byte, 4096), all))(r.T)
		return m.Address(), 8, m.LKey()
	}),
	local("closed region", "lkey-deregistered", func(r *testbed) (uint64, uint32, uint32) {
		m := r.a.with(all)
		require.NoError(r, m.Close())
		return m.Address(), 8, m.LKey()
	}),
	rc("read into read-only memory", "local-write-missing", nil, func(r *testbed) {
		m := r.a.with(0)
		r.a.batch.Read(1, r.b.mr.Address(), r.b.mr.RKey()).SGE(m.Address(), 8, m.LKey()).Signaled()
		r.a.post()
	}),
	rc("receive into read-only memory", "local-write-missing", nil, func(r *testbed) {
		m := r.b.with(0)
		r.b.recv.Recv(77).SGE(m.Address(), 64, m.LKey())
		r.b.qp.PostRecv(r.b.recv)
		r.send(8)
	}),
	rc("receive with a nonexistent key", "lkey-unknown", nil, func(r *testbed) {
		r.b.recv.Recv(77).SGE(r.b.mr.Address(), 64, r.b.mr.LKey()^0x5a5a00)
		r.b.qp.PostRecv(r.b.recv)
		r.send(8)
	}),
	write("nonexistent remote key", "rkey-unknown", func(r *testbed) (uint64, uint32) {
		return r.b.mr.Address(), r.b.mr.RKey() ^ 0x5a5a00
	}),
	write("remote memory beyond the end", "remote-range", func(r *testbed) (uint64, uint32) {
		return r.b.mr.Address() + 4092, r.b.mr.RKey()
	}),
	write("remote memory before the region", "remote-range", func(r *testbed) (uint64, uint32) {
		return r.b.mr.Address() - 8, r.b.mr.RKey()
	}),
	write("closed remote region", "rkey-deregistered", func(r *testbed) (uint64, uint32) {
		m := r.b.with(all)
		require.NoError(r, m.Close())
		return m.Address(), m.RKey()
	}),
	write("remote region of another domain", "rkey-other-pd", func(r *testbed) (uint64, uint32) {
		m := must(must(r.b.device.AllocPD())(r.T).RegMR(make([]byte, 4096), all))(r.T)
		return m.Address(), m.RKey()
	}),
	write("a remote region without REMOTE_WRITE", "mr-lacks-remote-write", func(r *testbed) (uint64, uint32) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ)
		return m.Address(), m.RKey()
	}),
	rc("a remote region without REMOTE_READ", "mr-lacks-remote-read", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE)
		r.a.batch.Read(1, m.Address(), m.RKey()).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
		r.a.post()
	}),
	rc("a remote region without REMOTE_ATOMIC", "mr-lacks-remote-atomic", nil, func(r *testbed) {
		m := r.b.with(ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE)
		r.atomic(m.Address(), m.RKey())
	}),
	rc("a queue pair without REMOTE_WRITE", "qp-lacks-remote-write", func(a, b *ibv.QPAttr) {
		b.QPAccessFlags = ibv.ACCESS_REMOTE_READ
	}, func(r *testbed) {
		r.a.write(r.b.mr.Address(), r.b.mr.RKey())
		r.a.post()
	}),
	rc("a queue pair without REMOTE_READ", "qp-lacks-remote-read", func(a, b *ibv.QPAttr) {
		b.QPAccessFlags = ibv.ACCESS_REMOTE_WRITE
	}, func(r *testbed) { r.read(r.b.mr.RKey()) }),
	rc("a queue pair without REMOTE_ATOMIC", "qp-lacks-remote-atomic", func(a, b *ibv.QPAttr) {
		b.QPAccessFlags = ibv.ACCESS_REMOTE_WRITE
	}, func(r *testbed) { r.atomic(r.b.mr.Address(), r.b.mr.RKey()) }),
	rc("an atomic operation that is not aligned", "atomic-misaligned", nil, func(r *testbed) {
		r.atomic(r.b.mr.Address()+4, r.b.mr.RKey())
	}),
	rc("peer that accepts no reads", "peer-takes-no-reads", func(a, b *ibv.QPAttr) { b.MaxDestRdAtomic = 0 },
		func(r *testbed) { r.read(r.b.mr.RKey()) }),
	rc("message larger than the receive", "receive-too-small", nil, func(r *testbed) {
		r.b.receive(16)
		r.send(64)
	}),
	rc("no receive", "no-receive", nil, func(r *testbed) { r.send(8) }),
	rc("no receive for immediate data", "no-receive", nil, func(r *testbed) {
		r.a.batch.SendImm(1, 7).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
		r.a.post()
	}),
	rc("destroyed peer", "peer-destroyed", nil, func(r *testbed) {
		require.NoError(r, r.b.qp.Close())
		r.send(8)
	}),
	rc("a peer that is in ERR", "peer-in-error", nil, func(r *testbed) {
		require.NoError(r, r.b.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		r.send(8)
	}),
	rc("unconnected peer", "peer-not-ready", nil, func(r *testbed) {
		require.NoError(r, r.b.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		r.send(8)
	}),
	rc("wrong destination QPN", "peer-unknown", func(a, b *ibv.QPAttr) { a.DestQPNum ^= 0x3c00 },
		func(r *testbed) { r.send(8) }),
	rc("peer connected to another queue pair", "peer-connected-elsewhere", func(a, b *ibv.QPAttr) {
		b.DestQPNum ^= 0x3c00
	}, func(r *testbed) { r.send(8) }),
	rc("sequence numbers that differ", "psn-mismatch", func(a, b *ibv.QPAttr) { b.RQPSN = a.SQPSN + 1000 },
		func(r *testbed) {
			r.b.receive(64)
			r.send(8)
		}),
	{"a GID that does not exist", "wrong-gid", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		a := must(r.a.qp.ConnectAttr(must(r.b.qp.Endpoint())(t)))(t)
		a.AHAttr.GRH.DGID.Raw()[15] ^= 0x70
		require.Error(t, r.a.qp.ConnectWith(a))
	}},
	rc("link down", "path-lost", nil, func(r *testbed) {
		r.b.receive(64)
		require.NoError(r, r.fabric.SetFaults(soft.Faults{Drop: 1}))
		r.send(8)
	}),
	rc("a program that moves its queue pair to ERR", "moved-to-error", nil, func(r *testbed) {
		r.a.receive(64)
		require.NoError(r, r.a.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	}),
	rc("sends without completions", "never-signaled", nil, func(r *testbed) {
		r.b.receive(64)
		r.a.batch.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey())
		r.a.post()
	}),
	{"queue not polled", "not-polled", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC).connect(nil)
		r.b.receive(64)
		r.send(8)
	}},
	{"send before the connection", "wrong-state", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		r.send(8)
	}},
	{"receive before the connection", "wrong-state", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		r.a.receive(8)
	}},
	rc("full send queue", "queue-full", nil, func(r *testbed) {
		for range 7 {
			r.b.receive(64)
			r.a.batch.Reset()
			r.a.batch.Write(1, r.b.mr.Address(), r.b.mr.RKey()).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).Signaled()
			r.a.post()
		}
	}),
	ud("datagram with the wrong qkey", "qkey-mismatch", func(r *testbed, ah *rdma.AH) {
		r.b.receive(512)
		r.a.batch.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).UD(ah.Ptr(), r.b.qp.Num(), 0x1234).Signaled()
		r.a.post()
	}),
	ud("datagram to a wrong QPN", "peer-unknown", func(r *testbed, ah *rdma.AH) {
		r.b.receive(512)
		r.a.batch.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).UD(ah.Ptr(), r.b.qp.Num()^0x3c00,
			qkey(r.b)).Signaled()
		r.a.post()
	}),
	ud("datagram without a receive", "no-receive", func(r *testbed, ah *rdma.AH) {
		r.a.batch.Send(1).SGE(r.a.mr.Address(), 8, r.a.mr.LKey()).UD(ah.Ptr(), r.b.qp.Num(), qkey(r.b)).Signaled()
		r.a.post()
	}),
	ud("a receive without room for the GRH", "grh-room", func(r *testbed, ah *rdma.AH) {
		r.b.receive(16)
		r.a.batch.Send(1).SGE(r.a.mr.Address(), 16, r.a.mr.LKey()).UD(ah.Ptr(), r.b.qp.Num(), qkey(r.b)).Signaled()
		r.a.post()
	}),
	{"remote write without local write", "remote-without-local-write", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		_, err := r.a.pd.RegMR(make([]byte, 64), ibv.ACCESS_REMOTE_WRITE)
		require.Error(t, err)
	}},
	{"region of unmapped memory", "memory-not-mapped", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		_, err := r.a.pd.RegAddress(4096, 4096, 4096, all)
		require.Error(t, err)
	}},
	{"an invalid state transition", "transition-invalid", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		require.Error(t, r.a.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	}},
	{"connection without a listener", "rejected", func(t *testing.T) {
		config := stream.Config{Backend: must(soft.New(soft.Options{Virtual: true}))(t)}
		_, err := (&stream.Dialer{Config: config}).Dial(t.Context(), "127.0.0.1:4711")
		require.Error(t, err)
	}},
	{"connection to an unused address", "connect-timeout", func(t *testing.T) {
		wire := soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr("127.0.77.8"), Wire: true}}}
		config := stream.Config{Backend: must(soft.New(wire))(t), HandshakeTimeout: 500 * time.Millisecond}
		_, err := (&stream.Dialer{Config: config}).Dial(t.Context(), "127.0.77.9:4711")
		require.Error(t, err)
	}},
	{"modify without required attributes", "attributes-missing", func(t *testing.T) {
		r := newTestbed(t, ibv.QPT_RC)
		require.Error(t, r.a.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT}, ibv.QP_STATE))
	}},
}

// qkey is the Q_Key of the ends.
func qkey(e *end) uint32 {
	attr, _, err := e.qp.Query(ibv.QP_QKEY)
	require.NoError(e.t, err)
	return attr.QKey
}
