// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// closer is implemented by every object.
type closer interface{ Close() error }

// keep closes an object when the test ends.
func keep[T closer](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

// open opens the guest's device.
func open(t testing.TB) *rdma.Device {
	t.Helper()
	testbed.Kernel(t)
	before := goleak.IgnoreCurrent()
	cleanups := goleak.IgnoreAnyFunction("runtime.runCleanups") // the runtime's goroutine that runs cleanups
	t.Cleanup(func() { assert.NoError(t, goleak.Find(before, cleanups), "goroutines left by the test") })
	d, err := rdma.Open(os.Getenv(wire.EnvDevice))
	keep(t, d, err)
	if os.Getenv(wire.EnvPath) == "mlx5" {
		path, err := mlx5.NewPath(d)
		require.NoError(t, err)
		d.UsePath(path)
	}
	return d
}

const all = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC

// side is one end of a connection, with its objects.
type side struct {
	channel *rdma.CompChannel
	cq      *rdma.CQ
	qp      *rdma.QP
	mr      *rdma.MR
	wcs     []ibv.WC
}

func newSide(t testing.TB, pd *rdma.PD, kind ibv.QPType) *side {
	t.Helper()
	d := pd.Device()
	s := &side{wcs: make([]ibv.WC, 16)}
	channel, err := d.CreateCompChannel()
	s.channel = keep(t, channel, err)
	cq, err := d.CreateCQ(64, s.channel, 0)
	s.cq = keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: kind, SendCQ: s.cq.Ptr(), RecvCQ: s.cq.Ptr(), Cap: testbed.Caps},
		rdma.QueueOptions{})
	s.qp = keep(t, qp, err)
	mr, err := pd.RegMR(make([]byte, 4096), all)
	s.mr = keep(t, mr, err)
	return s
}

// connect connects two ends to each other.
func connect(t testing.TB, a, b *side) {
	t.Helper()
	for _, ends := range [][2]*side{{a, b}, {b, a}} {
		peer, err := ends[1].qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, ends[0].qp.Connect(peer))
	}
}

func (s *side) recv(t testing.TB, id uint64, sge ibv.SGE) {
	t.Helper()
	b, err := rdma.NewRecvBatch(1, 1)
	require.NoError(t, err)
	defer b.Close()
	b.Recv(id).SGE(sge.Addr, sge.Length, sge.LKey)
	_, err = s.qp.PostRecv(b)
	require.NoError(t, err)
}

func (s *side) send(t testing.TB, fill func(b *rdma.SendBatch)) {
	t.Helper()
	b, err := rdma.NewSendBatch(8, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	fill(b)
	_, err = s.qp.PostSend(b)
	require.NoError(t, err)
}

// completion waits for one completion.
func (s *side) completion(t testing.TB) ibv.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n, err := s.cq.Wait(ctx, s.wcs[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return s.wcs[0]
}

func TestSendAndReceive(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	a, b := newSide(t, pd, ibv.QPT_RC), newSide(t, pd, ibv.QPT_RC)
	connect(t, a, b)
	copy(a.mr.Bytes(), "hello")
	b.recv(t, 7, b.mr.SGE(0, 64))
	a.send(t, func(s *rdma.SendBatch) {
		sge := a.mr.SGE(0, 5)
		s.Send(9).SGE(sge.Addr, sge.Length, sge.LKey).Signaled()
	})
	got := b.completion(t)
	require.NoError(t, rdma.CompletionErr(&got))
	assert.EqualValues(t, 7, got.WRID)
	assert.EqualValues(t, 5, got.ByteLen)
	assert.Equal(t, "hello", string(b.mr.Bytes()[:5]))
	sent := a.completion(t)
	require.NoError(t, rdma.CompletionErr(&sent))
	assert.EqualValues(t, 9, sent.WRID)
}

// TestConnectAgain checks that a queue pair can connect after a failed attempt.
func TestConnectAgain(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	a, b := newSide(t, pd, ibv.QPT_RC), newSide(t, pd, ibv.QPT_RC)
	zero, err := b.qp.Endpoint()
	require.NoError(t, err)
	zero.GID = ibv.GID{}
	require.ErrorContains(t, a.qp.Connect(zero), "the zero GID")
	connect(t, a, b)
	b.recv(t, 7, b.mr.SGE(0, 64))
	a.send(t, func(s *rdma.SendBatch) { s.Send(9).Add(a.mr.SGE(0, 5)).Signaled() })
	wc := b.completion(t)
	assert.NoError(t, rdma.CompletionErr(&wc))
}

func TestDrainReleasesMemory(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD} {
		t.Run(kind.String(), func(t *testing.T) {
			d := open(t)
			pd, err := d.AllocPD()
			keep(t, pd, err)
			a := newSide(t, pd, kind)
			b := newSide(t, pd, kind)
			if kind == ibv.QPT_UD {
				require.NoError(t, a.qp.Ready())
			} else {
				connect(t, a, b)
			}
			for id := range uint64(16) {
				a.recv(t, id, a.mr.SGE(0, 64))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			start := time.Now()
			require.NoError(t, a.qp.Drain(ctx))
			t.Log("drained in", time.Since(start))
			for id := range uint64(16) {
				wc := a.completion(t)
				assert.Equal(t, id, wc.WRID)
				assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
			}
			n, err := a.cq.Poll(a.wcs)
			require.NoError(t, err)
			assert.Zero(t, n, "markers are not reported")
			require.NoError(t, a.qp.Drain(ctx), "again")
		})
	}
}
