// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/runtime"
)

// TestWindows checks that windows of both types grant access only while they are bound.
func TestWindows(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	for _, kind := range []ibv.MWType{ibv.MW_TYPE_1, ibv.MW_TYPE_2} {
		t.Run(kind.String(), func(t *testing.T) {
			a, b := newSide(t, pd, ibv.QPT_RC), newSide(t, pd, ibv.QPT_RC)
			mr, err := pd.RegMR(make([]byte, 4096), all|ibv.ACCESS_MW_BIND)
			mr = keep(t, mr, err)
			connect(t, a, b)
			mw, err := pd.AllocMW(kind)
			mw = keep(t, mw, err) // closed before the queue pair
			info := ibv.MWBindInfo{MR: mr.Ptr(), Addr: mr.Address(), Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}
			if kind == ibv.MW_TYPE_1 {
				require.NoError(t, b.qp.BindMW(mw, &ibv.MWBind{WRID: 3, SendFlags: ibv.SEND_SIGNALED, BindInfo: info}))
			} else {
				assert.ErrorIs(t, b.qp.BindMW(mw, &ibv.MWBind{BindInfo: info}), syscall.EINVAL)
				key := mw.NextRKey()
				b.send(t, func(s *rdma.SendBatch) { s.BindMW(3, mw.Ptr(), key, info).Signaled() })
				mw.SetRKey(key)
			}
			wc := b.completion(t)
			require.NoError(t, rdma.CompletionErr(&wc))
			assert.EqualValues(t, 3, wc.WRID)
			copy(a.mr.Bytes(), "window")
			write := func(key uint32) ibv.WCStatus {
				a.send(t, func(s *rdma.SendBatch) { s.Write(4, mr.Address(), key).Add(a.mr.SGE(0, 6)).Signaled() })
				wc := a.completion(t)
				return wc.Status
			}
			require.Equal(t, ibv.WC_SUCCESS, write(mw.RKey()))
			assert.Equal(t, "window", string(mr.Bytes()[:6]))
			err = mr.Close()
			require.Error(t, err, "a region that a window is bound to")
			assert.ErrorContains(t, err, "a memory window may be bound to the region")
			key := mw.RKey()
			require.NoError(t, mw.Close())
			assert.Equal(t, ibv.WC_REM_ACCESS_ERR, write(key))
		})
	}
}

// join makes the network device join a group, so that datagrams to the group are looped back.
func join(t *testing.T, group netip.Addr) {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft { // the software device has no network device
		return
	}
	device, err := net.InterfaceByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	c, err := net.ListenMulticastUDP("udp4", device, &net.UDPAddr{IP: group.AsSlice(), Port: 9})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
}

// TestMulticast checks that attached queue pairs receive datagrams to a group, and that Close detaches them.
func TestMulticast(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	s := newSide(t, pd, ibv.QPT_UD)
	require.NoError(t, s.qp.Ready())
	var group ibv.GID
	address := netip.MustParseAddr("239.7.7.8")
	*group.Raw() = address.As16()
	join(t, address)
	require.NoError(t, s.qp.AttachMcast(group, 0))
	require.NoError(t, s.qp.AttachMcast(group, 0), "again")
	path, err := s.qp.Path(rdma.Endpoint{GID: group})
	require.NoError(t, err)
	ah, err := pd.CreateAH(&path)
	ah = keep(t, ah, err)
	end, err := s.qp.Endpoint()
	require.NoError(t, err)
	s.recv(t, 7, s.mr.SGE(0, 256))
	copy(s.mr.Bytes()[1024:], "to all")
	const multicastQPN = 0xffffff // destination queue pair number for multicast
	s.send(t, func(b *rdma.SendBatch) {
		b.Send(8).Add(s.mr.SGE(1024, 6)).UD(ah.Ptr(), multicastQPN, end.QKey).Signaled()
	})
	got := map[uint64]ibv.WC{}
	for range 2 {
		wc := s.completion(t)
		require.NoError(t, rdma.CompletionErr(&wc))
		got[wc.WRID] = wc
	}
	wc := got[7]
	payload, _, err := rdma.Datagram(&wc, s.mr.Bytes()[:256])
	require.NoError(t, err)
	assert.Equal(t, "to all", string(payload))
	assert.ErrorIs(t, s.qp.DetachMcast(ibv.GID{}, 0), syscall.EINVAL)
	require.NoError(t, s.qp.Close(), "the kernel does not destroy an attached queue pair")
}

// TestResizedSRQ checks that an enlarged shared receive queue accepts more requests, and that its completion queue
// accounts for them.
func TestResizedSRQ(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	srq = keep(t, srq, err)
	b, err := rdma.NewRecvBatch(4, 1)
	b = keep(t, b, err)
	for i := range uint64(4) {
		b.Recv(i).Add(mr.SGE(0, 64))
	}
	_, err = srq.PostRecv(b)
	require.NoError(t, err)
	assert.Zero(t, srq.Queue().Free())
	require.NoError(t, srq.Modify(&ibv.SRQAttr{MaxWR: 32}, ibv.SRQ_MAX_WR))
	assert.Equal(t, 28, srq.Queue().Free())
	for range 7 {
		_, err = srq.PostRecv(b)
		require.NoError(t, err)
	}
	_, err = srq.PostRecv(b)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorIs(t, srq.Modify(&ibv.SRQAttr{MaxWR: 8}, ibv.SRQ_MAX_WR), syscall.EINVAL)
}

// TestUnsupportedObjects checks that creating an object that Soft-RoCE does not support returns ErrNotSupported and
// leaves existing objects usable.
func TestUnsupportedObjects(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	s := newSide(t, pd, ibv.QPT_RC)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	srq = keep(t, srq, err)
	tags, err := rdma.NewTagBatch(1, 0)
	tags = keep(t, tags, err)
	tags.Sync(1, 0)
	eth := new(ibv.FlowSpec)
	*eth.Eth() = ibv.FlowSpecEth{Type: ibv.FLOW_SPEC_ETH}
	for name, try := range map[string]func() error{
		"device memory": func() error {
			m, err := d.AllocDM(&ibv.AllocDMAttr{Length: 4096})
			if err == nil {
				err = m.Close()
			}
			return err
		},
		"imported memory":     func() error { _, err := d.ImportDM(1); return err },
		"counters":            func() error { _, err := d.CreateCounters(nil); return err },
		"completion counter":  func() error { _, err := d.CreateCompCntr(&ibv.CompCntrInitAttr{}); return err },
		"completion counters": func() error { _, err := d.CompCntrCaps(); return err },
		"ESP":                 func() error { _, err := d.CreateFlowActionESP(&rdma.ESP{}); return err },
		"flow":                func() error { _, err := s.qp.CreateFlow(&ibv.FlowAttr{Port: 1}, eth); return err },
		"work queue": func() error {
			_, err := d.CreateWQ(&ibv.WQInitAttr{MaxWR: 4, MaxSGE: 1, PD: pd.Ptr(), CQ: s.cq.Ptr()},
				rdma.QueueOptions{})
			return err
		},
		"XRC domain": func() error {
			x, err := d.OpenXRCD(&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
				Oflags: syscall.O_CREAT})
			if err == nil {
				err = x.Close()
			}
			return err
		},
		"DMA handle": func() error {
			h, err := d.AllocDMAH(&ibv.DMAHInitAttr{})
			if err == nil {
				err = h.Close()
			}
			return err
		},
		"thread domain": func() error {
			d, err := d.AllocTD(&ibv.TDInitAttr{})
			if err == nil {
				err = d.Close()
			}
			return err
		},
		"dynamic connections": func() error {
			qp, err := mlx5.CreateQP(d, &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: s.cq.Ptr(), RecvCQ: s.cq.Ptr(),
				Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}, CompMask: ibv.QP_INIT_ATTR_PD, PD: pd.Ptr()},
				&mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC, DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCI}},
				rdma.QueueOptions{})
			if err == nil {
				err = qp.Close()
			}
			return err
		},
		"null region": func() error {
			mr, err := pd.AllocNullMR()
			if err == nil {
				err = mr.Close()
			}
			return err
		},
		"tags": func() error { _, err := srq.PostTags(tags); return err },
	} {
		t.Run(name, func(t *testing.T) {
			err := try()
			t.Log(err)
			// objects that it supports
			has := []string{"XRC domain", "thread domain", "device memory", "null region", "DMA handle",
				"dynamic connections"}
			if testbed.Kernel(t) == testbed.Soft && slices.Contains(has, name) {
				assert.NoError(t, err)
				return
			}
			// import is supported, but this memory does not exist
			if testbed.Kernel(t) == testbed.Soft && name == "imported memory" {
				assert.ErrorIs(t, err, syscall.ENOENT)
				return
			}
			if name == "tags" { // the validity table excludes tags on a basic queue
				assert.ErrorIs(t, err, syscall.EINVAL)
				return
			}
			assert.ErrorIs(t, err, runtime.ErrNotSupported)
		})
	}
	require.NoError(t, s.qp.Close())
}

// TestProviderBuffer checks that libraries from 65 on support provider buffers for every provider, and that older ones
// report ErrNotSupported.
func TestProviderBuffer(t *testing.T) {
	pd := domain(t)
	b, err := pd.AllocBuf(8192)
	if errors.Is(err, runtime.ErrNotSupported) {
		t.Log(err)
		return
	}
	keep(t, b, err)
	mr, err := pd.RegBufMR(b, 4096, 4096, all)
	keep(t, mr, err)
	assert.ErrorIs(t, b.Close(), rdma.ErrInUse)
	s := newSide(t, pd, ibv.QPT_RC)
	loop(t, s.qp)
	copy(s.mr.Bytes(), "into a buffer of the provider")
	s.send(t, func(b *rdma.SendBatch) {
		from := s.mr.SGE(0, 29)
		b.Write(1, mr.Address(), mr.RKey()).SGE(from.Addr, from.Length, from.LKey).Signaled()
	})
	assert.Equal(t, ibv.WC_SUCCESS, s.completion(t).Status)
	assert.Equal(t, "into a buffer of the provider", string(b.Bytes()[4096:][:29]))
}
