// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// TestSourceGID checks that EFA's completion queue identifies the sender by its GID until the receiver has an address
// handle for it, and afterwards by the number of the handle.
func TestSourceGID(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	device := openEFA(t)
	gid, err := device.FindGID(rdma.GIDQuery{})
	require.NoError(t, err)
	var pds [2]*rdma.PD
	for i := range pds {
		pds[i], err = device.AllocPD()
		keep(t, pds[i], err)
	}
	route := ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{DGID: gid.GID}}
	ah, err := pds[0].CreateAH(&route)
	keep(t, ah, err)
	mr, err := pds[1].RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)

	cqAttr := efadv.CQInitAttr{WCFlags: efadv.WC_EX_WITH_SGID}
	ex, err := libefa.CreateCQ(device.C(), &ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_EX_WITH_BYTE_LEN |
		ibv.WC_EX_WITH_SRC_QP | ibv.WC_EX_WITH_SLID}, &cqAttr, uint32(unsafe.Sizeof(cqAttr)))
	require.NoError(t, err)
	cq := verbs.CQExToCQ(ex)
	t.Cleanup(func() { assert.NoError(t, verbs.DestroyCQ(cq)) })
	of, err := libefa.CQFromIBVCQEx(ex)
	require.NoError(t, err)
	var qps [2]*ibv.QP
	for i := range qps {
		qps[i], err = verbs.CreateQP(pds[i].C(), &ibv.QPInitAttr{QPType: ibv.QPT_UD, SendCQ: ibv.PtrTo(cq),
			RecvCQ: ibv.PtrTo(cq), Cap: room})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, verbs.DestroyQP(qps[i])) })
		attr := ibv.QPAttr{PortNum: 1, QKey: key}
		for j, mask := range []ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY, 0, ibv.QP_SQ_PSN} {
			attr.QPState = ibv.QPS_INIT + ibv.QPState(j)
			require.NoError(t, verbs.ModifyQP(qps[i], &attr, ibv.QP_STATE|mask))
		}
	}
	// message sends a message and returns the source in the completion of its receive.
	message := func() (from ibv.GID, known bool) {
		var badRecv ibv.Ptr[ibv.RecvWR]
		var badSend ibv.Ptr[ibv.SendWR]
		list := make([]ibv.SGE, 1)
		list[0] = mr.SGE(0, size)
		r := ibv.RecvWR{WRID: 1, SGList: ibv.PtrTo(&list[0]), NumSGE: 1}
		require.NoError(t, verbs.PostRecv(qps[1], &r, &badRecv))
		wr := ibv.SendWR{WRID: 2, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
		*wr.WR.UD() = ibv.SendUD{AH: ah.Ptr(), RemoteQPN: qps[1].QPNum, RemoteQKey: key}
		require.NoError(t, verbs.PostSend(qps[0], &wr, &badSend))
		for n := 0; n < 2; n++ {
			ready := func() bool { return verbs.StartPoll(ex, new(ibv.PollCQAttr)) == nil }
			require.Eventually(t, ready, 30*time.Second, time.Millisecond)
			assert.Equal(t, ibv.WC_SUCCESS, ex.Status)
			if ex.WRID == 1 {
				source, err := verbs.WCReadSrcQP(ex)
				require.NoError(t, err)
				assert.Equal(t, qps[0].QPNum, source)
				length, err := verbs.WCReadByteLen(ex)
				require.NoError(t, err)
				assert.EqualValues(t, routeHeader, length)
				handle, err := verbs.WCReadSLID(ex)
				require.NoError(t, err)
				known = handle != 0xffff
				assert.Equal(t, known, libefa.WCReadSGID(of, &from) != nil)
			}
			require.NoError(t, verbs.EndPoll(ex))
		}
		return from, known
	}
	from, known := message()
	assert.False(t, known)
	assert.Equal(t, gid.GID, from)
	back, err := pds[1].CreateAH(&route)
	keep(t, back, err)
	_, known = message()
	assert.True(t, known)
}
