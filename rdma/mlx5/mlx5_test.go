// SPDX-License-Identifier: BSD-2-Clause

package mlx5_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/direct"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
	"github.com/goverbs/goverbs/rdma/internal/vendorrig"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// TestDynamicConnections: an initiator's request contains its destination, and a target has a number once it can
// receive.
func TestDynamicConnections(t *testing.T) {
	f, d, pd, cq := vendorrig.Open(t)
	key := uint64(0x123456789)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{Unchecked: true})
	srq = vendorrig.Keep(t, srq, err)
	var ex *ibv.QPEx
	var calls []string
	note := func(name string) ibv.FuncPtr {
		f.Do[name] = func(a []uintptr) uintptr { calls = append(calls, name); return 0 }
		return f.Slot(name)
	}
	dvs := fakedevice.Object[mlx5dv.QPEx](f)
	f.Do["dc_addr"] = func(a []uintptr) uintptr {
		assert.Equal(t, []uintptr{vendorrig.Address(dvs), 0x1000, 77, uintptr(key)}, a[:4])
		calls = append(calls, "dc_addr")
		return 0
	}
	dvs.WRSetDCAddr = f.Slot("dc_addr")
	f.Do["mlx5dv_create_qp"] = func(a []uintptr) uintptr {
		attr, dv := ibv.Ptr[ibv.QPInitAttrEx](a[1]).Deref(), ibv.Ptr[mlx5dv.QPInitAttr](a[2]).Deref()
		ex = fakedevice.Object[ibv.QPEx](f)
		ex.QPBase.Context, ex.QPBase.QPType = ibv.PtrTo(&f.Context.Context), attr.QPType
		if dv.DCInitAttr.DCType == mlx5dv.DCTYPE_DCI {
			ex.QPBase.QPNum, ex.QPBase.State = 0x30, ibv.QPS_RTS
		}
		ex.WRStart, ex.WRComplete, ex.WRSend, ex.WRSetSGE = note("start"), note("complete"), note("send"), note("sge")
		return vendorrig.Address(ex)
	}
	f.Do["ibv_qp_to_qp_ex"] = func(a []uintptr) uintptr { return a[0] }
	f.Do["mlx5dv_qp_ex_from_ibv_qp_ex"] = func(a []uintptr) uintptr {
		assert.Equal(t, vendorrig.Address(ex), a[0])
		return vendorrig.Address(dvs)
	}
	attr := &ibv.QPInitAttrEx{
		QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
		PD:       pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ibv.QP_EX_WITH_SEND,
	}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC,
		DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCI}}
	dci, err := mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{})
	require.NoError(t, err)
	p, err := dci.NewWRProgram()
	require.NoError(t, err)
	mlx5.DC(p.Send(1).Signaled().SGE(1, 2, 3), 0x1000, 77, key)
	require.NoError(t, dci.PostProgram(p))
	assert.Equal(t, []string{"start", "send", "sge", "dc_addr", "complete"}, calls)
	p.Reset()
	mlx5.DCStream(p.Send(1).SGE(1, 2, 3), 0x1000, 77, 1, 5)
	assert.ErrorIs(t, dci.PostProgram(p), rdma.ErrNotSupported, "created without streams")
	p.Reset()
	first := mlx5.DC(p.Send(1).SGE(1, 2, 3), 0x1000, 77, 1)
	p.Send(2)
	mlx5.DC(first, 0x1000, 77, 1)
	assert.ErrorContains(t, p.Err(), "must be set before the next request")
	p.Reset()
	p.Send(1).SGE(1, 2, 3)
	assert.ErrorContains(t, dci.PostProgram(p), "it has no address: set UD or mlx5.DC")
	ex.QPBase.State = ibv.QPS_RESET
	require.NoError(t, dci.Close())

	attr = &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	dct, err := mlx5.CreateQP(d, attr, &mlx5dv.QPInitAttr{DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCT}},
		rdma.QueueOptions{})
	require.NoError(t, err)
	f.Do["ibv_modify_qp"] = func(a []uintptr) uintptr {
		ex.QPBase.QPNum, ex.QPBase.State = 0x44, ibv.QPS_RTR
		return 0
	}
	require.NoError(t, dct.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR}, ibv.QP_STATE))
	assert.EqualValues(t, 0x44, dct.Num())
	ex.QPBase.State = ibv.QPS_RESET
	require.NoError(t, dct.Close())

	f.Fails["mlx5dv_create_qp"] = syscall.EOPNOTSUPP
	_, err = mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{})
	assert.ErrorIs(t, err, rdma.ErrNotSupported)
	dv = &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		CreateFlags: mlx5dv.QP_CREATE_OOO_DP}
	const reason = "the data path in Go requires that receives complete in order"
	native := direct.New(nil, os.LookupEnv, true)
	_, err = mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{Path: native})
	assert.ErrorContains(t, err, reason)
	d.UsePath(native)
	assert.Same(t, native, d.Path())
	_, err = mlx5.CreateQP(d, attr, dv, rdma.QueueOptions{})
	assert.ErrorContains(t, err, reason)
	d.UsePath(nil)
	assert.Nil(t, d.Path())
	_, err = mlx5.CreateQP(d, attr, nil, rdma.QueueOptions{})
	assert.EqualError(t, err, "mlx5dv_create_qp: fake: the attributes are nil: invalid argument")
}

// withoutCQs is a data path whose completion queues do nothing and need no libmlx5.
type withoutCQs struct{ *direct.Queues }

func (withoutCQs) CQ(*ibv.CQ) (datapath.Queue, error) { return idle{}, nil }

type idle struct{ datapath.Queue }

func (idle) Inspect() string                { return "" }
func (idle) Held(*lock.Lock)                {}
func (idle) End(destroy func() error) error { return destroy() }

// TestRefusedFlags: the data path rejects queue pairs whose requests have headers (IPoIB's). Without a Path, C creates
// them.
func TestRefusedFlags(t *testing.T) {
	f, d, pd, inC := vendorrig.Open(t)
	f.Do["ibv_create_qp_ex"] = f.Do["ibv_create_qp"]
	create := func(cq *rdma.CQ, flags ibv.QPCreateFlags, o rdma.QueueOptions) error {
		qp, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_UD, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
			Cap:         ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
			CompMask:    ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_CREATE_FLAGS,
			CreateFlags: flags, SourceQPN: 1}, o)
		if err == nil {
			assert.NoError(t, qp.Close())
		}
		return err
	}
	native := rdma.QueueOptions{Path: withoutCQs{direct.New(nil, os.LookupEnv, true)}}
	cq, err := d.CreateCQ(16, nil, 0, native)
	cq = vendorrig.Keep(t, cq, err)
	err = create(cq, ibv.QP_CREATE_SOURCE_QPN, native)
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	assert.ErrorContains(t, err, "the data path in Go does not support IBV_QP_CREATE_SOURCE_QPN")
	assert.NoError(t, create(inC, ibv.QP_CREATE_SOURCE_QPN, rdma.QueueOptions{}))
}
