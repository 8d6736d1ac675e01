// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// end is one end of a pair.
type end struct {
	t      *testing.T
	kernel bool // Soft-RoCE
	q      *rdma.QP
	mr     *rdma.MR
	ah     *rdma.AH // for UD: the address of the other end
	to     rdma.Endpoint
}

// memory is the size of each end's memory: the largest message and a margin on both sides.
const memory = 1<<20 + 2*margin

// margin is the size of the memory on each side of a message, which no message may change.
const margin = 4096

// caps are sufficient for these tests.
var caps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}

// forBothRequesters runs a test with each end as the requester, over IPv4 and IPv6.
func forBothRequesters(t *testing.T, test func(t *testing.T, pair func(t *testing.T, o options) (a, b *end))) {
	t.Helper()
	hosts := testbed.OpenAcross(t)
	fabric := hosts.Soft(t)
	for _, v := range []struct {
		name         string
		soft, kernel netip.Addr
	}{{"IPv4", hosts.Soft4, hosts.Kernel4}, {"IPv6", hosts.Soft6, hosts.Kernel6}} {
		for _, role := range []string{"soft is active", "kernel is active"} {
			t.Run(v.name+"/"+role, func(t *testing.T) {
				test(t, func(t *testing.T, o options) (a, b *end) {
					t.Helper()
					d, err := rdma.OpenOn(fabric, "soft0")
					require.NoError(t, err)
					t.Cleanup(func() { assert.NoError(t, d.Close()) })
					k, err := rdma.Open(hosts.Device)
					require.NoError(t, err)
					t.Cleanup(func() { assert.NoError(t, k.Close()) })
					softEnd, kernelEnd := newEnd(t, d, o), newEnd(t, k, o)
					kernelEnd.kernel = true
					connect(t, softEnd, kernelEnd, v.soft, v.kernel, o)
					if role == "kernel is active" {
						return kernelEnd, softEnd
					}
					return softEnd, kernelEnd
				})
			})
		}
	}
}

// options configures a pair.
type options struct {
	kind   ibv.QPType
	change func(*ibv.QPAttr)        // modifies the attributes for connecting
	ops    ibv.QPCreateSendOpsFlags // for RC: operations of programs
}

func newEnd(t *testing.T, d *rdma.Device, o options) *end {
	t.Helper()
	e := &end{t: t}
	var err error
	parts := rdma.QPParts{Cap: caps}
	switch {
	case o.ops != 0:
		e.q = newExtended(t, d, o.ops)
	case o.kind == ibv.QPT_RC:
		e.q, err = d.NewRC(parts)
	case o.kind == ibv.QPT_UC:
		e.q, err = d.NewUC(parts)
	default:
		e.q, err = d.NewUD(parts)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.q.Close()) })
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
		ibv.ACCESS_MW_BIND
	if o.ops != 0 {
		access |= ibv.ACCESS_FLUSH_GLOBAL
	}
	e.mr, err = e.q.RegMR(make([]byte, memory), access)
	require.NoError(t, err)
	return e
}

// newExtended returns an RC queue pair whose programs support these operations.
func newExtended(t *testing.T, d *rdma.Device, ops ibv.QPCreateSendOpsFlags) *rdma.QP {
	t.Helper()
	pd, err := d.AllocPD()
	keep(t, pd, err)
	channel, err := d.CreateCompChannel()
	keep(t, channel, err)
	cq, err := d.CreateCQ(int(caps.MaxSendWR+caps.MaxRecvWR), channel, 0)
	keep(t, cq, err)
	q, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap: caps, SendOpsFlags: ops, CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS},
		rdma.QueueOptions{})
	require.NoError(t, err)
	return q
}

// keep closes an object when the test ends.
func keep(t *testing.T, o interface{ Close() error }, err error) {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
}

func connect(t *testing.T, a, b *end, atA, atB netip.Addr, o options) {
	t.Helper()
	var err error
	b.to, err = a.q.EndpointOn(rdma.GIDQuery{Address: atA})
	require.NoError(t, err)
	a.to, err = b.q.EndpointOn(rdma.GIDQuery{Address: atB})
	require.NoError(t, err)
	for _, e := range []*end{a, b} {
		if o.kind != ibv.QPT_UD {
			attr, err := e.q.ConnectAttr(e.to)
			require.NoError(t, err)
			if o.ops != 0 {
				attr.QPAccessFlags |= ibv.ACCESS_FLUSH_GLOBAL
			}
			if o.change != nil {
				o.change(attr)
			}
			require.NoError(t, e.q.ConnectWith(attr))
		} else {
			path, err := e.q.Path(e.to)
			require.NoError(t, err)
			e.ah, err = e.q.PD().CreateAH(&path)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, e.ah.Close()) })
		}
	}
}

// fill overwrites all memory of the end.
func (e *end) fill(seed byte) {
	rand.NewChaCha8([32]byte{seed}).Read(e.mr.Bytes())
}

// post posts one request.
func (e *end) post(add func(*rdma.SendBatch) rdma.SendRequest) {
	e.t.Helper()
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(e.t, err)
	defer b.Close()
	r := add(b).Signaled()
	if e.ah != nil {
		r.UD(e.ah.Ptr(), e.to.QPNum, e.to.QKey)
	}
	_, err = e.q.PostSend(b)
	require.NoError(e.t, err)
}

// allow changes the access that the queue pair grants to the peer.
func (e *end) allow(rights ibv.AccessFlags) {
	e.t.Helper()
	require.NoError(e.t, e.q.Modify(&ibv.QPAttr{QPAccessFlags: rights}, ibv.QP_ACCESS_FLAGS))
}

// run posts a program.
func (e *end) run(build func(*rdma.WRProgram)) {
	e.t.Helper()
	p, err := e.q.NewWRProgram()
	require.NoError(e.t, err)
	build(p)
	require.NoError(e.t, e.q.PostProgram(p))
}

// recv posts one receive.
func (e *end) recv(offset, length int) {
	e.t.Helper()
	e.recvAt(e.mr.SGE(uint64(offset), 1).Addr, length, e.mr.LKey())
}

func (e *end) recvAt(address uint64, length int, lkey uint32) {
	e.t.Helper()
	b, err := rdma.NewRecvBatch(1, 1)
	require.NoError(e.t, err)
	defer b.Close()
	b.Recv(1).SGE(address, uint32(length), lkey)
	_, err = e.q.PostRecv(b)
	require.NoError(e.t, err)
}

// opTimeout is the timeout for operations that should be fast.
const opTimeout = time.Minute

// losses limits how many unreliable pairs may lose a message. In a message of 1 MiB, a packet is easily lost if the
// receiving kernel is not scheduled for a while.
const losses = 20

// transfer sends a message from the other end and waits for it. If an unreliable queue pair loses the message, it is
// sent again; if that is lost too, ok is false and the caller needs a new pair: Soft-RoCE, at least of Linux 6.1, waits
// for the rest of a partially received write and drops everything else.
func (e *end) transfer(kind ibv.QPType, send func()) (wc ibv.WC, ok bool) {
	e.t.Helper()
	if kind == ibv.QPT_RC {
		send()
		return e.done(), true
	}
	for range 2 {
		send()
		if wc, err := e.within(5 * time.Second); err == nil {
			require.NoError(e.t, rdma.CompletionErr(&wc))
			return wc, true
		}
	}
	return wc, false
}

// completion waits for a completion.
func (e *end) completion() ibv.WC {
	e.t.Helper()
	wc, err := e.within(opTimeout)
	require.NoError(e.t, err)
	return wc
}

// within waits for a completion until a timeout.
func (e *end) within(d time.Duration) (ibv.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wcs [1]ibv.WC
	_, err := e.q.SendCQ().Wait(ctx, wcs[:])
	return wcs[0], err
}

// done waits for a successful completion.
func (e *end) done() ibv.WC {
	e.t.Helper()
	wc := e.completion()
	require.NoError(e.t, rdma.CompletionErr(&wc))
	return wc
}
