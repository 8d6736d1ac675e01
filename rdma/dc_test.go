package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/internal/wq"
	"github.com/goverbs/goverbs/runtime"
)

// TestDynamicConnections: an initiator's request says where it goes, and a target has its number when it can receive.
func TestDynamicConnections(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	key := uint64(0x123456789)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{Unchecked: true})
	srq = keep(t, srq, err)
	var ex *ibv.QPEx
	var calls []string
	note := func(name string) ibv.FuncPtr {
		f.do[name] = func(a []uintptr) uintptr { calls = append(calls, name); return 0 }
		return f.slot(name)
	}
	dvs := fakeObject[mlx5dv.QPEx](f)
	f.do["dc_addr"] = func(a []uintptr) uintptr {
		assert.Equal(t, []uintptr{address(dvs), 0x1000, 77, uintptr(key)}, a[:4])
		calls = append(calls, "dc_addr")
		return 0
	}
	dvs.WRSetDCAddr = f.slot("dc_addr")
	f.do["mlx5dv_create_qp"] = func(a []uintptr) uintptr {
		attr, dv := ibv.Ptr[ibv.QPInitAttrEx](a[1]).Deref(), ibv.Ptr[mlx5dv.QPInitAttr](a[2]).Deref()
		ex = fakeObject[ibv.QPEx](f)
		ex.QPBase.Context, ex.QPBase.QPType = ibv.PtrTo(&f.context.Context), attr.QPType
		if dv.DCInitAttr.DCType == mlx5dv.DCTYPE_DCI {
			ex.QPBase.QPNum, ex.QPBase.State = 0x30, ibv.QPS_RTS
		}
		ex.WRStart, ex.WRComplete, ex.WRSend, ex.WRSetSGE = note("start"), note("complete"), note("send"), note("sge")
		return address(ex)
	}
	f.do["ibv_qp_to_qp_ex"] = func(a []uintptr) uintptr { return a[0] }
	f.do["mlx5dv_qp_ex_from_ibv_qp_ex"] = func(a []uintptr) uintptr {
		assert.Equal(t, address(ex), a[0])
		return address(dvs)
	}
	attr := &ibv.QPInitAttrEx{
		QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}, PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: uint64(ibv.QP_EX_WITH_SEND),
	}
	dv := &mlx5dv.QPInitAttr{CompMask: uint64(mlx5dv.QP_INIT_ATTR_MASK_DC), DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCI}}
	dci, err := d.CreateMLX5QP(attr, dv, QueueOptions{})
	require.NoError(t, err)
	p, err := dci.NewWRProgram()
	require.NoError(t, err)
	DC(p.Send(1, ibv.SEND_SIGNALED).SGE(1, 2, 3), 0x1000, 77, key)
	require.NoError(t, dci.PostProgram(p))
	assert.Equal(t, []string{"start", "send", "sge", "dc_addr", "complete"}, calls)
	p.Reset()
	DCStream(p.Send(1, 0).SGE(1, 2, 3), 0x1000, 77, 1, 5)
	assert.ErrorIs(t, dci.PostProgram(p), runtime.ErrNotSupported, "it was created without streams")
	p.Reset()
	first := p.Send(1, 0)
	p.Send(2, 0)
	DC(first, 0x1000, 77, 1)
	assert.ErrorContains(t, p.Err(), "for a request that others follow")
	ex.QPBase.State = ibv.QPS_RESET
	require.NoError(t, dci.Close())

	attr = &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), PD: pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD}
	dct, err := d.CreateMLX5QP(attr, &mlx5dv.QPInitAttr{DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCT}}, QueueOptions{})
	require.NoError(t, err)
	f.do["ibv_modify_qp"] = func(a []uintptr) uintptr {
		ex.QPBase.QPNum, ex.QPBase.State = 0x44, ibv.QPS_RTR
		return 0
	}
	require.NoError(t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR}, ibv.QP_STATE))
	assert.EqualValues(t, 0x44, dct.Num())
	assert.Same(t, srq.queue, wq.Tracked(cq.queue, 0x44).Recv, "its completions bear that number")
	assert.Zero(t, wq.Tracked(cq.queue, 0))
	ex.QPBase.State = ibv.QPS_RESET
	require.NoError(t, dct.Close())

	f.fails["mlx5dv_create_qp"] = syscall.EOPNOTSUPP
	_, err = d.CreateMLX5QP(attr, dv, QueueOptions{})
	assert.ErrorIs(t, err, runtime.ErrNotSupported)
}

func TestScalableReliableDatagrams(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	create := func(attr, _, _ uintptr) uintptr {
		qp := fakeObject[ibv.QP](f)
		qp.Context, qp.QPNum, qp.QPType = ibv.PtrTo(&f.context.Context), 0x50, ibv.QPT_DRIVER
		return address(qp)
	}
	f.do["efadv_create_qp_ex"] = func(a []uintptr) uintptr {
		assert.EqualValues(t, 4, ibv.Ptr[efadv.QPInitAttr](a[2]).Deref().SL)
		assert.EqualValues(t, 24, a[3], "inlen")
		return create(a[1], a[2], a[3])
	}
	f.do["efadv_create_driver_qp"] = func(a []uintptr) uintptr {
		assert.Equal(t, address(pd.C()), a[0])
		assert.EqualValues(t, efadv.QP_DRIVER_TYPE_SRD, a[2])
		return create(a[1], 0, 0)
	}
	capacity := ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 4, MaxRecvSGE: 1}
	qp, err := d.CreateEFAQP(&ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: capacity, PD: pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD}, &efadv.QPInitAttr{DriverQPType: efadv.QP_DRIVER_TYPE_SRD, SL: 4}, QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, pd, qp.PD())
	qp.c.State = ibv.QPS_RTS
	var sent ibv.SendWR
	f.do["post_send"] = func(a []uintptr) uintptr { sent = *ibv.Ptr[ibv.SendWR](a[1]).Deref(); return 0 }
	b := sendBatch(t, 1, 1, 0)
	b.Send(1).SGE(1, 2, 3).UD(0x1000, 9, 8).Signaled()
	_, err = qp.PostSend(b)
	require.NoError(t, err)
	assert.Equal(t, ibv.SendUD{AH: 0x1000, RemoteQPN: 9, RemoteQKey: 8}, *sent.WR.UD())
	qp.c.State = ibv.QPS_RESET
	require.NoError(t, qp.Close())
	old, err := pd.CreateEFADriverQP(&ibv.QPInitAttr{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: capacity}, efadv.QP_DRIVER_TYPE_SRD, QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, old.Close())
}

// A queue pair of a provider's own kind need not have completion queues: then nothing can be posted to it, whatever its capacities are.
func TestDriverQueuePairWithoutCompletionQueues(t *testing.T) {
	f, d, pd := fakePD(t)
	f.do["mlx5dv_create_qp"] = func(a []uintptr) uintptr {
		qp := fakeObject[ibv.QP](f)
		qp.Context, qp.QPType = ibv.PtrTo(&f.context.Context), ibv.QPT_DRIVER
		return address(qp)
	}
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, PD: pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD, Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	qp, err := d.CreateMLX5QP(attr, &mlx5dv.QPInitAttr{}, QueueOptions{})
	require.NoError(t, err)
	_, err = qp.PostSend(sendBatch(t, 1, 1, 0))
	assert.ErrorIs(t, err, einval)
	_, err = qp.PostRecv(recvBatch(t, 1, 1))
	assert.ErrorIs(t, err, einval)
	require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	require.NoError(t, qp.Close())
}
