// SPDX-License-Identifier: BSD-2-Clause

package mlx5_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/vendorrig"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/rdma/soft"
)

// dcEnd is a device with the objects for initiators and targets.
type dcEnd struct {
	t      *testing.T
	device *rdma.Device
	pd     *rdma.PD
	cq     *rdma.CQ
	mr     *rdma.MR
	gid    ibv.GIDEntry

	timeout uint8 // of initiators
}

const dcAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC

func newDCEnd(t *testing.T, f *soft.Fabric, name string, size int) *dcEnd {
	device, err := rdma.OpenOn(f, name)
	return newDCEndOn(t, device, err, size)
}

func newDCEndOn(t *testing.T, device *rdma.Device, err error, size int) *dcEnd {
	e := &dcEnd{t: t, device: vendorrig.Keep(t, device, err), timeout: 10}
	pd, err := e.device.AllocPD()
	e.pd = vendorrig.Keep(t, pd, err)
	cq, err := e.device.CreateCQ(4096, nil, 0)
	e.cq = vendorrig.Keep(t, cq, err)
	mr, err := e.pd.RegMR(make([]byte, size), dcAccess)
	e.mr = vendorrig.Keep(t, mr, err)
	e.gid, err = e.device.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	return e
}

func (e *dcEnd) ah(to *dcEnd) *rdma.AH { return e.ahTo(to.gid.GID) }

func (e *dcEnd) ahTo(gid ibv.GID) *rdma.AH {
	attr := &ibv.AHAttr{IsGlobal: 1, PortNum: 1}
	attr.GRH.DGID, attr.GRH.SGIDIndex, attr.GRH.HopLimit = gid, uint8(e.gid.GIDIndex), 64
	ah, err := e.pd.CreateAH(attr)
	return vendorrig.Keep(e.t, ah, err)
}

// target creates a target with a shared receive queue.
func (e *dcEnd) target(key uint64) (dct *rdma.QP, srq *rdma.SRQ) {
	srq, err := e.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}, rdma.QueueOptions{})
	srq = vendorrig.Keep(e.t, srq, err)
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	dv.DCInitAttr.DCType, *dv.DCInitAttr.DCTAccessKey() = mlx5dv.DCTYPE_DCT, key
	qp, err := mlx5.CreateQP(e.device, &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
		SRQ: srq.Ptr(), PD: e.pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD}, dv, rdma.QueueOptions{})
	dct = vendorrig.Keep(e.t, qp, err)
	assert.Zero(e.t, dct.Num())
	require.NoError(e.t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: dcAccess},
		ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
	attr := &ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024, MinRNRTimer: 1}
	attr.AHAttr.IsGlobal, attr.AHAttr.PortNum = 1, 1
	attr.AHAttr.GRH.SGIDIndex, attr.AHAttr.GRH.HopLimit = uint8(e.gid.GIDIndex), 4
	require.NoError(e.t, dct.Modify(attr, ibv.QP_STATE|ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU))
	assert.NotZero(e.t, dct.Num())
	return dct, srq
}

const dcOps = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_WRITE |
	ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD

func (e *dcEnd) initiator() *rdma.QP { return e.initiatorOf(ibv.QPCap{MaxSendWR: 64, MaxSendSGE: 1}) }

func (e *dcEnd) initiatorOf(capacity ibv.QPCap) *rdma.QP {
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	dv.DCInitAttr.DCType = mlx5dv.DCTYPE_DCI
	qp, err := mlx5.CreateQP(e.device, &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
		Cap: capacity, PD: e.pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: dcOps}, dv, rdma.QueueOptions{})
	dci := vendorrig.Keep(e.t, qp, err)
	e.connect(dci)
	return dci
}

// connect moves an initiator from RESET to RTS.
func (e *dcEnd) connect(dci *rdma.QP) {
	require.NoError(e.t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1},
		ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT))
	require.NoError(e.t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024},
		ibv.QP_STATE|ibv.QP_PATH_MTU))
	require.NoError(e.t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTS, Timeout: e.timeout, RetryCnt: 7, RNRRetry: 7,
		MaxRdAtomic: 4}, ibv.QP_STATE|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|
		ibv.QP_SQ_PSN))
}

// post posts a program of requests, each with its own target.
func (e *dcEnd) post(dci *rdma.QP, build func(p *rdma.WRProgram)) {
	p, err := dci.NewWRProgram()
	require.NoError(e.t, err)
	build(p)
	require.NoError(e.t, dci.PostProgram(p))
}

// wait returns the next n completions.
func (e *dcEnd) wait(n int) (all []ibv.WC) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 20*time.Second)
	defer cancel()
	wcs := make([]ibv.WC, n)
	for len(all) < n && ctx.Err() == nil {
		got, err := e.cq.Poll(wcs[:n-len(all)])
		require.NoError(e.t, err)
		all = append(all, wcs[:got]...)
	}
	require.Len(e.t, all, n, "completions")
	return all
}

func (e *dcEnd) recv(srq *rdma.SRQ, n, size int) {
	b, err := rdma.NewRecvBatch(n, 1)
	require.NoError(e.t, err)
	defer b.Close()
	for i := range n {
		b.Recv(uint64(i)).Add(e.mr.SGE(uint64(i*size), uint32(size)))
	}
	_, err = srq.PostRecv(b)
	require.NoError(e.t, err)
}

// onWires runs a test with two devices in one process, and with two fabrics that exchange packets.
func onWires(t *testing.T, f func(t *testing.T, a, b *dcEnd)) {
	t.Run("memory", func(t *testing.T) {
		fabric, err := soft.New(soft.Options{})
		fabric = vendorrig.Keep(t, fabric, err)
		f(t, newDCEnd(t, fabric, "soft0", 1<<20), newDCEnd(t, fabric, "soft1", 1<<20))
	})
	t.Run("packets", func(t *testing.T) {
		var ends []*dcEnd
		for i := range 2 {
			fabric, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Wire: true,
				Address: netip.MustParseAddr(fmt.Sprintf("127.0.88.%d", i+1))}}})
			fabric = vendorrig.Keep(t, fabric, err)
			ends = append(ends, newDCEnd(t, fabric, "soft0", 1<<20))
		}
		f(t, ends[0], ends[1])
	})
}

const dcKey = 0x1122334455667788

// TestDynamicTraffic: an initiator sends to several targets in turn, with every operation.
func TestDynamicTraffic(t *testing.T) {
	onWires(t, func(t *testing.T, a, b *dcEnd) {
		dci, ah := a.initiator(), a.ah(b)
		var targets []*rdma.QP
		for range 3 {
			dct, srq := b.target(dcKey)
			b.recv(srq, 2, 8192)
			targets = append(targets, dct)
		}
		copy(a.mr.Bytes(), bytes.Repeat([]byte("goverbs!"), 8192))
		sge := func(r rdma.WRRequest, offset uint64, n uint32) rdma.WRRequest {
			return r.Add(a.mr.SGE(offset, n))
		}
		base, rkey := b.mr.Address()+512<<10, b.mr.RKey()
		for _, dct := range targets {
			a.post(dci, func(p *rdma.WRProgram) {
				mlx5.DC(sge(p.Send(1).Signaled(), 0, 5000), ah.Ptr(), dct.Num(), dcKey)
				mlx5.DC(sge(p.WriteImm(2, base, rkey, ibv.ToBE32(7)).Signaled(), 0, 60000), ah.Ptr(), dct.Num(), dcKey)
				mlx5.DC(sge(p.Read(3, base+8, rkey).Signaled(), 256<<10, 50000), ah.Ptr(), dct.Num(), dcKey)
				mlx5.DC(sge(p.FetchAdd(4, base+128<<10, rkey, 5).Signaled(), 512<<10, 8), ah.Ptr(), dct.Num(), dcKey)
			})
		}
		for i, wc := range a.wait(4 * len(targets)) {
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
			assert.EqualValues(t, i%4+1, wc.WRID)
			assert.Equal(t, dci.Num(), wc.QPNum)
		}
		for i, wc := range b.wait(2 * len(targets)) {
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
			assert.Equal(t, targets[i/2].Num(), wc.QPNum)
			if i%2 == 1 {
				assert.EqualValues(t, 7, wc.ImmData().Host())
			} else {
				assert.EqualValues(t, 5000, wc.ByteLen)
			}
		}
		assert.Equal(t, a.mr.Bytes()[:5000], b.mr.Bytes()[:5000])
		assert.Equal(t, a.mr.Bytes()[:60000], b.mr.Bytes()[512<<10:][:60000])
		assert.Equal(t, a.mr.Bytes()[8:50008], a.mr.Bytes()[256<<10:][:50000])
		assert.EqualValues(t, 15, binary.NativeEndian.Uint64(b.mr.Bytes()[640<<10:]))
		assert.EqualValues(t, 10, binary.NativeEndian.Uint64(a.mr.Bytes()[512<<10:]))
	})
}

// TestDynamicManyInitiators: several initiators share a target. Receives complete in order for each initiator.
func TestDynamicManyInitiators(t *testing.T) {
	onWires(t, func(t *testing.T, a, b *dcEnd) {
		const initiators, messages = 16, 4
		dct, srq := b.target(dcKey)
		b.recv(srq, initiators*messages, 4096)
		ah := a.ah(b)
		var all []*rdma.QP
		for range initiators {
			all = append(all, a.initiator())
		}
		for m := range messages {
			for i, dci := range all {
				a.post(dci, func(p *rdma.WRProgram) {
					mlx5.DC(p.SendImm(1, ibv.ToBE32(uint32(i*messages+m))).Signaled().Add(a.mr.SGE(0, 3000)),
						ah.Ptr(), dct.Num(), dcKey)
				})
			}
		}
		for _, wc := range a.wait(initiators * messages) {
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		}
		next := map[uint32]uint32{}
		for _, wc := range b.wait(initiators * messages) {
			assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
			i, m := wc.ImmData().Host()/messages, wc.ImmData().Host()%messages
			assert.Equal(t, next[i], m)
			next[i]++
		}
	})
}

// TestDynamicIdleInitiators: a target serves more initiators than it keeps connections for.
func TestDynamicIdleInitiators(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	fabric = vendorrig.Keep(t, fabric, err)
	a, b := newDCEnd(t, fabric, "soft0", 4096), newDCEnd(t, fabric, "soft1", 4096)
	dct, _ := b.target(dcKey)
	ah := a.ah(b)
	var all []*rdma.QP
	for range 1030 {
		all = append(all, a.initiatorOf(ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}))
	}
	for range 2 {
		for _, dci := range all {
			a.post(dci, func(p *rdma.WRProgram) {
				mlx5.DC(p.FetchAdd(1, b.mr.Address(), b.mr.RKey(), 1).Signaled().Add(a.mr.SGE(0, 8)), ah.Ptr(), dct.Num(),
					dcKey)
			})
			assert.Equal(t, ibv.WC_SUCCESS, a.wait(1)[0].Status)
		}
	}
	assert.EqualValues(t, 2*len(all), binary.NativeEndian.Uint64(b.mr.Bytes()))
}

// TestDynamicErrors: a wrong access key or remote key moves only that initiator to the error state and flushes its
// later requests.
func TestDynamicErrors(t *testing.T) {
	onWires(t, func(t *testing.T, a, b *dcEnd) {
		dct, srq := b.target(dcKey)
		b.recv(srq, 8, 4096)
		ah, good := a.ah(b), a.initiator()
		ok := func() {
			t.Helper()
			a.post(good, func(p *rdma.WRProgram) {
				mlx5.DC(p.Send(9).Signaled().Add(a.mr.SGE(0, 8)), ah.Ptr(), dct.Num(), dcKey)
			})
			assert.Equal(t, ibv.WC_SUCCESS, a.wait(1)[0].Status)
			assert.Equal(t, ibv.WC_SUCCESS, b.wait(1)[0].Status)
		}
		ok()
		bad := a.initiator()
		for name, c := range map[string]struct {
			key    uint64
			rkey   uint32
			number uint32
			want   ibv.WCStatus
		}{
			"access key": {dcKey + 1, b.mr.RKey(), dct.Num(), ibv.WC_REM_ACCESS_ERR},
			"remote key": {dcKey, b.mr.RKey() + 1, dct.Num(), ibv.WC_REM_ACCESS_ERR},
			"number":     {dcKey, b.mr.RKey(), dct.Num() ^ 0x400, ibv.WC_RETRY_EXC_ERR},
		} {
			a.post(bad, func(p *rdma.WRProgram) {
				mlx5.DC(p.Write(1, b.mr.Address(), c.rkey).Add(a.mr.SGE(0, 8)), ah.Ptr(), c.number, c.key)
				mlx5.DC(p.Write(2, b.mr.Address(), b.mr.RKey()).Add(a.mr.SGE(0, 8)), ah.Ptr(), dct.Num(),
					dcKey)
			})
			wcs := a.wait(2)
			assert.Equal(t, c.want, wcs[0].Status, name)
			assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wcs[1].Status, name)
			ok()
			require.NoError(t, bad.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			a.connect(bad)
		}
		a.post(bad, func(p *rdma.WRProgram) {
			mlx5.DC(p.Write(1, b.mr.Address(), b.mr.RKey()).Signaled().Add(a.mr.SGE(0, 8)), ah.Ptr(),
				dct.Num(), dcKey)
		})
		assert.Equal(t, ibv.WC_SUCCESS, a.wait(1)[0].Status)
	})
}

// TestDynamicNotReady: an initiator waits while its target has no receives.
func TestDynamicNotReady(t *testing.T) {
	onWires(t, func(t *testing.T, a, b *dcEnd) {
		dct, srq := b.target(dcKey)
		ah, dci := a.ah(b), a.initiator()
		a.post(dci, func(p *rdma.WRProgram) {
			mlx5.DC(p.Send(1).Signaled().Add(a.mr.SGE(0, 5000)), ah.Ptr(), dct.Num(), dcKey)
		})
		time.Sleep(10 * time.Millisecond)
		n, err := a.cq.Poll(make([]ibv.WC, 1))
		require.NoError(t, err)
		assert.Zero(t, n)
		b.recv(srq, 1, 8192)
		assert.Equal(t, ibv.WC_SUCCESS, a.wait(1)[0].Status)
		assert.Equal(t, ibv.WC_SUCCESS, b.wait(1)[0].Status)
	})
}

// TestDynamicInvalid: attributes and requests that dynamic connections do not support fail.
func TestDynamicInvalid(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	fabric = vendorrig.Keep(t, fabric, err)
	e := newDCEnd(t, fabric, "soft0", 4096)
	dci := e.initiator()
	p, err := dci.NewWRProgram()
	require.NoError(t, err)
	p.Send(1)
	assert.Error(t, dci.PostProgram(p), "a request without a target")
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	b.Send(1)
	_, err = dci.PostSend(b)
	assert.Error(t, err, "ibv_post_send has no target")
	dct, _ := e.target(1)
	assert.Error(t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(), PD: e.pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	dv.DCInitAttr.DCType = mlx5dv.DCTYPE_DCT
	_, err = mlx5.CreateQP(e.device, attr, dv, rdma.QueueOptions{})
	assert.Error(t, err, "a target without a shared receive queue")
	assert.Equal(t, 2, fabric.Resources()["qp"])
}
