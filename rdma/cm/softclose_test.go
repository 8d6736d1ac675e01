// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// full returns a synchronous ID on soft0 with every object that an ID can create, connected to s.peer.
func full(s *testbed) *ID {
	s.t.Helper()
	s.listen(1)
	id := newSoftID(s.t, s.f, rdmacm.PS_TCP)
	require.NoError(s.t, id.ResolveAddr(timeout(s.t), s.local, s.remote, time.Second))
	require.NoError(s.t, id.ResolveRoute(timeout(s.t), time.Second))
	_, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(s.t, err)
	s.withQP(id)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { assert.NoError(s.t, id.Connect(timeout(s.t), nil, nil)) })
	s.peer = s.request()
	require.NoError(s.t, s.peer.Accept(timeout(s.t), nil, nil))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
	return id
}

// TestSoftCloseInUse: if an object of the ID is in use, Close names the user and changes nothing: goroutines keep
// waiting, and messages arrive. Otherwise it closes everything.
func TestSoftCloseInUse(t *testing.T) {
	own := func(id *ID) *ibv.QPInitAttr {
		a := softAttr
		a.SendCQ, a.RecvCQ = id.QP().SendCQ().Ptr(), id.QP().RecvCQ().Ptr()
		return &a
	}
	unlike := rdma.QueueOptions{Overcommit: true}
	kinds := map[string]struct {
		make  func(id *ID, d *rdma.Device, pd *rdma.PD) (closer, error)
		names string // in the error
	}{
		"a region": {func(id *ID, _ *rdma.Device, _ *rdma.PD) (closer, error) { return id.RegMsgs(make([]byte, 8)) },
			"needed by MR"},
		"a window": {func(_ *ID, _ *rdma.Device, pd *rdma.PD) (closer, error) { return pd.AllocMW(ibv.MW_TYPE_2) },
			"needed by MW"},
		"a shared queue": {func(_ *ID, _ *rdma.Device, pd *rdma.PD) (closer, error) {
			return pd.CreateSRQ(ibv.SRQAttr{MaxWR: 1, MaxSGE: 1}, unlike)
		}, "needed by SRQ"},
		"a domain": {func(_ *ID, d *rdma.Device, _ *rdma.PD) (closer, error) { return d.AllocPD() }, "needed by PD"},
		"a completion queue": {func(_ *ID, d *rdma.Device, _ *rdma.PD) (closer,
			error) {
			return d.CreateCQ(1, nil, 0)
		}, "needed by CQ"},
		"a completion channel": {func(_ *ID, d *rdma.Device, _ *rdma.PD) (closer,
			error) {
			return d.CreateCompChannel()
		}, "needed by completion channel"},
		"a queue pair at its completion queues": {func(id *ID, d *rdma.Device, _ *rdma.PD) (closer, error) {
			other, err := d.AllocPD()
			if err != nil {
				return nil, err
			}
			qp, err := other.CreateQP(own(id), unlike)
			return closers{qp, other}, err
		}, "needed by QP"},
		"a queue pair at its shared queue": {func(id *ID, _ *rdma.Device, pd *rdma.PD) (closer, error) {
			attr := own(id)
			attr.SRQ = id.SRQ().Ptr()
			return pd.CreateQP(attr, unlike)
		}, "needed by QP"},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
			id := full(s)
			d, err := id.Device()
			require.NoError(t, err)
			pd, err := id.PD()
			require.NoError(t, err)
			require.NoError(t, id.PostRecvv(5, nil), "an empty receive")
			child, err := kind.make(id, d, pd)
			require.NoError(t, err)
			var waits sync.WaitGroup
			waits.Go(func() {
				e, err := id.Event(timeout(t))
				assert.NoError(t, err)
				assert.EqualValues(t, 7, e.Arg)
			})
			waits.Go(func() {
				wc, err := id.GetRecvComp(timeout(t))
				assert.NoError(t, err)
				assert.EqualValues(t, 5, wc.WRID)
			})
			time.Sleep(10 * time.Millisecond) // until both goroutines wait
			qp, srq := id.QP(), id.SRQ()
			err = id.Close()
			require.ErrorIs(t, err, rdma.ErrInUse)
			assert.ErrorIs(t, err, syscall.EBUSY)
			assert.ErrorContains(t, err, kind.names)
			require.NoError(t, id.WriteEvent(0, 7))
			require.NoError(t, s.peer.PostSend(1, nil, nil, ibv.SEND_INLINE))
			waits.Wait()
			assert.Same(t, qp, id.QP())
			assert.Same(t, srq, id.SRQ())
			assert.Equal(t, ibv.QPS_RTS, qp.State())

			require.NoError(t, child.Close())
			require.NoError(t, id.Close())
			for _, removed := range []any{qp.C(), srq.C(), qp.SendCQ().C(), pd.C(), d.C()} {
				assert.Nil(t, removed)
			}
			s.event(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
		})
	}
}

type closer interface{ Close() error }

// closers closes its elements in order.
type closers []closer

func (all closers) Close() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

// TestSoftCloseKeepsRequests: a listener that cannot be closed keeps its undelivered requests.
func TestSoftCloseKeepsRequests(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	l, err := CreateIDOn(f, rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.2:0")))
	require.NoError(t, l.Listen(0))
	from := requesting(t, f, ch, l.LocalAddr())
	require.NoError(t, l.ResolveAddrInfo(timeout(t), "127.0.0.1", "7471", Hints{}), "the request is queued first")
	mr, err := l.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.ErrorIs(t, l.Close(), rdma.ErrInUse)
	request, _, err := l.GetRequest(timeout(t))
	keep(t, request, err)
	assert.Equal(t, from.LocalAddr(), request.PeerAddr())
	require.NoError(t, mr.Close())
	require.NoError(t, l.Close())
}

// TestSoftCloseKeepsGroups: an ID that cannot be closed stays in its multicast groups.
func TestSoftCloseKeepsGroups(t *testing.T) {
	f := newFabric(t, soft.Options{})
	group := netip.MustParseAddrPort("239.1.1.1:0")
	var ids [2]*ID
	for i := range ids {
		id, err := CreateIDOn(f, rdmacm.PS_UDP)
		ids[i] = keep(t, id, err)
		require.NoError(t, id.Bind(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}), 0)))
		attr := softAttr
		attr.QPType = ibv.QPT_UD
		_, err = id.CreateQP(nil, &attr, rdma.QueueOptions{})
		require.NoError(t, err)
		_, _, err = id.Join(timeout(t), group)
		require.NoError(t, err)
	}
	mr, err := ids[0].RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.ErrorIs(t, ids[0].Close(), rdma.ErrInUse)
	require.NoError(t, ids[0].Leave(group), "the ID is still in the group")
	require.NoError(t, mr.Close())
}

// TestSoftCloseLastTwo: if two IDs are closed concurrently while a region uses their domain, one of them keeps the
// domain and all of its objects.
func TestSoftCloseLastTwo(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 200 {
		var ids [2]*ID
		var qps [2]*rdma.QP
		for i := range ids {
			id, err := CreateIDOn(f, rdmacm.PS_TCP)
			require.NoError(t, err)
			ids[i] = id
			require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
			qps[i], err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
			require.NoError(t, err)
		}
		mr, err := ids[0].RegMsgs(make([]byte, 8))
		require.NoError(t, err)
		var errs [2]error
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() { errs[i] = id.Close() })
		}
		wg.Wait()
		failed := 0
		if errs[0] == nil {
			failed = 1
		}
		require.NoError(t, errs[1-failed])
		require.ErrorIs(t, errs[failed], rdma.ErrInUse)
		require.Same(t, qps[failed], ids[failed].QP())
		require.NotNil(t, qps[failed].C())
		require.NoError(t, mr.Close())
		require.NoError(t, ids[failed].Close())
	}
}

// TestSoftCloseDuringCreation: Close is atomic while other goroutines create objects in the ID's domain: it closes
// everything or nothing.
func TestSoftCloseDuringCreation(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 500 {
		id, err := CreateIDOn(f, rdmacm.PS_TCP)
		require.NoError(t, err)
		require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
		qp, err := id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
		require.NoError(t, err)
		pd, err := id.PD()
		require.NoError(t, err)
		var mr *rdma.MR
		var of, closing error
		var wg sync.WaitGroup
		wg.Go(func() { mr, of = pd.RegMR(make([]byte, 8), 0) })
		wg.Go(func() { closing = id.Close() })
		wg.Wait()
		if closing == nil {
			require.ErrorIs(t, of, rdma.ErrClosed)
			continue
		}
		require.ErrorIs(t, closing, rdma.ErrInUse)
		require.NoError(t, of)
		require.NotNil(t, qp.C(), "the ID is unchanged")
		require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		require.NoError(t, mr.Close())
		require.NoError(t, id.Close())
	}
}

// TestSoftDeviceListCloses: Close closes all devices or none.
func TestSoftDeviceListCloses(t *testing.T) {
	l, err := GetDevicesOn(newFabric(t, soft.Options{}))
	require.NoError(t, err)
	devices := l.Devices
	require.GreaterOrEqual(t, len(devices), 2)
	pd, err := devices[len(devices)-1].AllocPD()
	require.NoError(t, err)
	require.ErrorIs(t, l.Close(), rdma.ErrInUse)
	for _, d := range devices {
		assert.NotNil(t, d.C(), d.Name())
	}
	assert.Equal(t, devices, l.Devices)
	require.NoError(t, pd.Close())
	require.NoError(t, l.Close())
	for _, d := range devices {
		assert.Nil(t, d.C(), d.Name())
	}
}

// TestSoftCloseWhileOthersCreate: an ID can be closed while other IDs create objects on the same device.
func TestSoftCloseWhileOthersCreate(t *testing.T) {
	f := newFabric(t, soft.Options{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				id, err := CreateIDOn(f, rdmacm.PS_TCP)
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
				mr, err := id.RegMsgs(make([]byte, 8))
				assert.NoError(t, err)
				assert.NoError(t, mr.Close())
				if !assert.NoError(t, id.Close()) {
					return
				}
			}
		})
	}
	all.Wait()
}
