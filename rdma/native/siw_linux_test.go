// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// siwDevice returns the Soft-iWARP device of a guest.
func siwDevice(t *testing.T) string {
	name := os.Getenv("GOVERBS_DEVICE")
	if !strings.HasPrefix(name, "siw") {
		t.Skip("this is no guest with Soft-iWARP: go run ./conformance/vm/cmd/vmtest -driver siw -- ./rdma/native")
	}
	return name
}

// TestGuestSIW creates objects of Soft-iWARP, and posts without a connection: a send is rejected, and the receives of a
// queue pair that moves to ERR are flushed, which is an event.
func TestGuestSIW(t *testing.T) {
	name := siwDevice(t)
	b, err := Open()
	require.NoError(t, err)
	var n int32
	list, err := verbs.From{Backend: b}.GetDeviceList(&n)
	require.NoError(t, err)
	all := unsafe.Slice(list, n)
	i := slices.IndexFunc(all, func(d ibv.Ptr[ibv.Device]) bool {
		got, err := verbs.GetDeviceName(d.Deref())
		return err == nil && got == name
	})
	require.GreaterOrEqual(t, i, 0)
	assert.Equal(t, ibv.TRANSPORT_IWARP, all[i].Deref().TransportType)
	c, err := verbs.OpenDevice(all[i].Deref())
	verbs.FreeDeviceList(list)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.CloseDevice(c)) })
	require.NoError(t, verbs.QueryDeviceEx(c, nil, new(ibv.DeviceAttrEx)))
	require.NoError(t, verbs.QueryPort(c, 1, new(ibv.PortAttr)))
	pd, err := verbs.AllocPD(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(pd)) })
	memory := must(b.space.Alloc(4096))
	t.Cleanup(func() { b.space.Free(memory) })
	mr, err := verbs.RegMR(pd, uintptr(memory), 4096, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DeregMR(mr)) })
	assert.NotZero(t, mr.LKey)
	channel, err := verbs.CreateCompChannel(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCompChannel(channel)) })
	cq, err := verbs.CreateCQ(c, 16, 5, channel, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(cq)) })
	assert.ErrorIs(t, verbs.ResizeCQ(cq, 32), syscall.EOPNOTSUPP)
	_, err = verbs.CreateAH(pd, new(ibv.AHAttr))
	assert.Error(t, err)
	srq, err := verbs.CreateSRQ(pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	sge := &ibv.SGE{Addr: uint64(mr.Addr), Length: 64, LKey: mr.LKey}
	recv, badRecv := &ibv.RecvWR{WRID: 7, SGList: ibv.PtrTo(sge), NumSGE: 1}, ibv.Ptr[ibv.RecvWR](0)
	for range 4 {
		require.NoError(t, verbs.PostSRQRecv(srq, recv, &badRecv))
	}
	assert.ErrorIs(t, verbs.PostSRQRecv(srq, recv, &badRecv), syscall.ENOMEM)
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 1}, ibv.SRQ_LIMIT))

	_, err = verbs.CreateQP(pd, &ibv.QPInitAttr{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), QPType: ibv.QPT_UD,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	assert.Error(t, err, "UD")
	for _, shared := range []*ibv.SRQ{srq, nil} {
		qp, err := verbs.CreateQP(pd, &ibv.QPInitAttr{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), SRQ: ibv.PtrTo(shared),
			QPType: ibv.QPT_RC, Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		require.NoError(t, err)
		require.NoError(t, verbs.QueryQP(qp, new(ibv.QPAttr), ibv.QP_CAP, new(ibv.QPInitAttr)))
		if shared != nil {
			require.NoError(t, verbs.DestroyQP(qp))
			continue
		}
		t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(qp)) })
		require.NoError(t, verbs.PostRecv(qp, recv, &badRecv))
		require.NoError(t, verbs.PostRecv(qp, recv, &badRecv))
		send, badSend := &ibv.SendWR{WRID: 8, SGList: ibv.PtrTo(sge), NumSGE: 1, Opcode: ibv.WR_SEND}, ibv.Ptr[ibv.SendWR](0)
		assert.ErrorIs(t, verbs.PostSend(qp, send, &badSend), syscall.ENOTCONN)
		require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
		require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		var wcs [8]ibv.WC
		got := 0
		for end := time.Now().Add(10 * time.Second); got < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			n, err := verbs.PollCQ(cq, len(wcs)-got, &wcs[got])
			require.NoError(t, err)
			got += n
		}
		require.GreaterOrEqual(t, got, 2)
		for _, wc := range wcs[:2] {
			assert.EqualValues(t, 7, wc.WRID)
			assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
			assert.Equal(t, qp.QPNum, wc.QPNum)
		}
		var of ibv.Ptr[ibv.CQ]
		var ctx uintptr
		require.NoError(t, verbs.GetCQEvent(channel, &of, &ctx))
		assert.Equal(t, ibv.PtrTo(cq), of)
		require.NoError(t, verbs.AckCQEvents(cq, 1))
	}
}
