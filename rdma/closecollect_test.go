// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

// inDevice removes the completions from the device's queue and returns their number.
func inDevice(t *testing.T, cq *CQ) int {
	t.Helper()
	wcs := make([]ibv.WC, 8)
	n, err := libibverbs.PollCQ(cq.C(), len(wcs), &wcs[0])
	require.NoError(t, err)
	return n
}

// TestCloseOfXRCQueueCollects: closing a shared receive queue moves its completions out of the device's queue. They can
// still be polled.
func TestCloseOfXRCQueueCollects(t *testing.T) {
	pd := softPD(t)
	d := pd.Device()
	x, err := d.OpenXRCD(&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
		Oflags: syscall.O_CREAT})
	x = keep(t, x, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	sent, err := d.CreateCQ(4, nil, 0)
	sent = keep(t, sent, err)
	cq, err := d.CreateCQ(2, nil, 0)
	cq = keep(t, cq, err)
	to, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD, XRCD: x.Ptr()},
		QueueOptions{})
	to = keep(t, to, err)
	from, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_SEND, CompMask: ibv.QP_INIT_ATTR_PD, PD: pd.Ptr(),
		SendCQ: sent.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{})
	from = keep(t, from, err)
	connectSoft(t, from, to)
	b := sendBatch(t, 2, 1, 0)
	for range 2 {
		srq, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 2, MaxSGE: 1}, SRQType: ibv.SRQT_XRC,
			PD: pd.Ptr(), XRCD: x.Ptr(), CQ: cq.Ptr(), CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD |
				ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ}, QueueOptions{})
		require.NoError(t, err)
		number, err := srq.Num()
		require.NoError(t, err)
		_, err = srq.PostRecv(recvs(t, mr, 2))
		require.NoError(t, err)
		b.Reset()
		b.Send(5).Add(mr.SGE(0, 4)).XRC(number).Signaled()
		b.Send(6).Add(mr.SGE(0, 4)).XRC(number).Signaled()
		_, err = from.PostSend(b)
		require.NoError(t, err)
		for range 2 {
			wc := softCompletion(t, sent)
			require.NoError(t, CompletionErr(&wc))
		}
		require.NoError(t, srq.Close())
		assert.Zero(t, inDevice(t, cq))
		assert.Equal(t, cq.Len(), cq.Free())
	}
	n, err := cq.Poll(make([]ibv.WC, 8))
	require.NoError(t, err)
	assert.Equal(t, 4, n)
}

// TestCloseOfWorkQueueCollects is TestCloseOfXRCQueueCollects for a work queue.
func TestCloseOfWorkQueueCollects(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	f.Do["create_wq"] = func([]uintptr) uintptr {
		w := fakedevice.Object[ibv.WQ](f)
		w.Context, w.WQNum, w.PostRecv = ibv.PtrTo(&f.Context.Context), 0x20, f.Slot("post_wq_recv")
		return address(w)
	}
	remaining := 3
	f.Do["poll_cq"] = func(a []uintptr) uintptr {
		wcs := unsafe.Slice(ibv.Ptr[ibv.WC](a[2]).Deref(), int(a[1]))
		n := min(remaining, len(wcs))
		for i := range n {
			wcs[i] = ibv.WC{WRID: uint64(remaining - i), Opcode: ibv.WC_RECV, QPNum: 0x20}
		}
		remaining -= n
		return uintptr(n)
	}
	w, err := d.CreateWQ(&ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 8, MaxSGE: 1, PD: pd.Ptr(), CQ: cq.Ptr()},
		QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	assert.Zero(t, remaining, "completions in the device's queue")
	n, err := cq.Poll(make([]ibv.WC, 8))
	require.NoError(t, err)
	assert.Equal(t, 3, n)
}

// TestResetOfWorkQueueCollects: a move to RESET keeps completions, although providers discard those of a work queue in
// RESET.
func TestResetOfWorkQueueCollects(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	f.Do["create_wq"] = func([]uintptr) uintptr {
		w := fakedevice.Object[ibv.WQ](f)
		w.Context, w.WQNum, w.PostRecv = ibv.PtrTo(&f.Context.Context), 0x20, f.Slot("post_wq_recv")
		return address(w)
	}
	remaining := 3
	f.Do["poll_cq"] = func(a []uintptr) uintptr {
		wcs := unsafe.Slice(ibv.Ptr[ibv.WC](a[2]).Deref(), int(a[1]))
		n := min(remaining, len(wcs))
		for i := range n {
			wcs[i] = ibv.WC{WRID: uint64(remaining - i), Opcode: ibv.WC_RECV, QPNum: 0x20}
		}
		remaining -= n
		return uintptr(n)
	}
	f.Do["modify_wq"] = func([]uintptr) uintptr {
		remaining = 0
		return 0
	}
	w, err := d.CreateWQ(&ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 8, MaxSGE: 1, PD: pd.Ptr(), CQ: cq.Ptr()},
		QueueOptions{})
	w = keep(t, w, err)
	require.NoError(t, w.Modify(&ibv.WQAttr{AttrMask: ibv.WQ_ATTR_STATE, WQState: ibv.WQS_RESET}))
	n, err := cq.Poll(make([]ibv.WC, 8))
	require.NoError(t, err)
	assert.Equal(t, 3, n)
}
