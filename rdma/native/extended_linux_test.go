// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// extendedPair returns an extended completion queue, and a queue pair in RTS whose requests are built.
func extendedPair(t *testing.T, c *ibv.Context, pd *ibv.PD, ops ibv.QPCreateSendOpsFlags) (*ibv.CQEx, *ibv.QPEx) {
	t.Helper()
	cq, err := verbs.CreateCQEx(c, &ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_BYTE_LEN})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) })
	of := ibv.PtrTo(verbs.CQExToCQ(cq))
	qp, err := verbs.CreateQPEx(c, &ibv.QPInitAttrEx{SendCQ: of, RecvCQ: of, QPType: ibv.QPT_RC, PD: ibv.PtrTo(pd),
		Cap:      ibv.QPCap{MaxSendWR: 3, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 16},
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ops})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(qp)) })
	x, err := verbs.QPToQPEx(qp)
	require.NoError(t, err)
	require.NotNil(t, x)
	return cq, x
}

// TestBuilders: requests that are built go to the kernel together, or not at all after an error, and are completed in
// order on an extended queue, which has the fields that were requested.
func TestBuilders(t *testing.T) {
	_, k, c, pd := opened(t)
	cq, x := extendedPair(t, c, pd, ibv.QP_EX_WITH_SEND|ibv.QP_EX_WITH_RDMA_WRITE)
	require.NotZero(t, x.WRSend)
	assert.Zero(t, x.WRRDMARead, "it was not requested")
	assert.Zero(t, x.WRSetUDAddr, "not for this type")
	assert.ErrorIs(t, verbs.StartPoll(cq, new(ibv.PollCQAttr)), syscall.ENOENT)

	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRSend(x))
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "in RESET")
	require.NoError(t, verbs.ModifyQP(&x.QPBase, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))

	post := func(n int) error {
		require.NoError(t, verbs.WRStart(x))
		for i := range n {
			x.WRID, x.WRFlags = uint64(i), ibv.SEND_SIGNALED
			require.NoError(t, verbs.WRRDMAWrite(x, 7, 8))
			require.NoError(t, verbs.WRSetSGE(x, 1, 2, 3))
		}
		return verbs.WRComplete(x)
	}
	assert.ErrorIs(t, post(4), syscall.ENOMEM, "a ring of four elements holds three")
	assert.ErrorIs(t, verbs.StartPoll(cq, new(ibv.PollCQAttr)), syscall.ENOENT, "nothing was posted")
	require.NoError(t, post(3))
	require.NoError(t, verbs.StartPoll(cq, new(ibv.PollCQAttr)))
	for i := range 3 {
		if i > 0 {
			require.NoError(t, verbs.NextPoll(cq))
		}
		assert.EqualValues(t, i, cq.WRID)
		_, err := verbs.WCReadQPNum(cq)
		assert.NoError(t, err)
		_, err = verbs.WCReadSrcQP(cq)
		assert.ErrorIs(t, err, runtime.ErrNotSupported, "it was not requested")
	}
	assert.ErrorIs(t, verbs.NextPoll(cq), syscall.ENOENT)
	require.NoError(t, verbs.EndPoll(cq))

	data := []byte("sixteen bytes ok more")
	inline := func(n uint64) error {
		require.NoError(t, verbs.WRStart(x))
		require.NoError(t, verbs.WRSend(x))
		require.NoError(t, verbs.WRSetInlineData(x, uintptr(unsafe.Pointer(&data[0])), n))
		return verbs.WRComplete(x)
	}
	x.WRFlags = 0
	require.NoError(t, inline(16))
	assert.EqualValues(t, ibv.SEND_INLINE, k.last.WR.SendFlags)
	assert.Equal(t, data[:16], k.last.DMA.InlineData(16))
	assert.EqualValues(t, 16, k.last.DMA.Length)
	assert.ErrorIs(t, inline(17), syscall.ENOSPC)
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRAbort(x))
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "nothing was started")
}

// TestBuildersOfKernel: operations that the device or its driver lacks are not supported, and a plain queue pair builds
// nothing.
func TestBuildersOfKernel(t *testing.T) {
	_, k, c, pd := opened(t)
	cq, err := verbs.CreateCQ(c, 8, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(cq)) })
	create := func(ops ibv.QPCreateSendOpsFlags) error {
		qp, err := verbs.CreateQPEx(c, &ibv.QPInitAttrEx{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), QPType: ibv.QPT_RC,
			PD: ibv.PtrTo(pd), Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
			CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ops})
		if err != nil {
			return err
		}
		_, err = verbs.QPToQPEx(qp)
		require.NoError(t, verbs.DestroyQP(qp))
		return err
	}
	assert.NoError(t, create(ibv.QP_EX_WITH_SEND))
	assert.ErrorIs(t, create(ibv.QP_EX_WITH_TSO), syscall.EOPNOTSUPP)
	for op, has := range map[ibv.QPCreateSendOpsFlags]uapi.IBUverbsDeviceCapFlags{
		ibv.QP_EX_WITH_FLUSH:        uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL,
		ibv.QP_EX_WITH_ATOMIC_WRITE: uapi.IB_UVERBS_DEVICE_ATOMIC_WRITE,
	} {
		k.caps = 0
		assert.ErrorIs(t, create(op), syscall.EOPNOTSUPP)
		k.caps = has
		assert.NoError(t, create(op))
	}
}
