// SPDX-License-Identifier: BSD-2-Clause

package efa_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/efa"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
	"github.com/goverbs/goverbs/rdma/internal/vendorrig"
)

func second(_ *rdma.QP, err error) error { return err }

// Requests of scalable reliable datagrams say where they go, by either function that makes their queue pair.
func TestScalableReliableDatagrams(t *testing.T) {
	f, d, pd, cq := vendorrig.Open(t)
	var c *ibv.QP
	create := func() uintptr {
		qp := fakedevice.Object[ibv.QP](f)
		qp.Context, qp.QPNum, qp.QPType = ibv.PtrTo(&f.Context.Context), 0x50, ibv.QPT_DRIVER
		c = qp
		return vendorrig.Address(qp)
	}
	f.Do["efadv_create_qp_ex"] = func(a []uintptr) uintptr {
		assert.EqualValues(t, 4, ibv.Ptr[efadv.QPInitAttr](a[2]).Deref().SL)
		assert.EqualValues(t, 24, a[3], "inlen")
		return create()
	}
	f.Do["efadv_create_driver_qp"] = func(a []uintptr) uintptr {
		assert.Equal(t, vendorrig.Address(pd.C()), a[0])
		assert.EqualValues(t, efadv.QP_DRIVER_TYPE_SRD, a[2])
		return create()
	}
	capacity := ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 4, MaxRecvSGE: 1}
	qp, err := efa.CreateQP(d, &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: capacity, PD: pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD},
		&efadv.QPInitAttr{DriverQPType: efadv.QP_DRIVER_TYPE_SRD, SL: 4}, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, pd, qp.PD())
	c.State = ibv.QPS_RTS
	var sent ibv.SendWR
	f.Do["post_send"] = func(a []uintptr) uintptr { sent = *ibv.Ptr[ibv.SendWR](a[1]).Deref(); return 0 }
	b, err := rdma.NewSendBatch(1, 1, 0)
	b = vendorrig.Keep(t, b, err)
	b.Send(1).SGE(1, 2, 3).UD(0x1000, 9, 8).Signaled()
	_, err = qp.PostSend(b)
	require.NoError(t, err)
	assert.Equal(t, ibv.SendUD{AH: 0x1000, RemoteQPN: 9, RemoteQKey: 8}, *sent.WR.UD())
	c.State = ibv.QPS_RESET
	require.NoError(t, qp.Close())
	old, err := efa.CreateDriverQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: capacity}, efadv.QP_DRIVER_TYPE_SRD, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, old.Close())
	for verb, err := range map[string]error{
		"efadv_create_qp_ex":     second(efa.CreateQP(d, new(ibv.QPInitAttrEx), nil, rdma.QueueOptions{})),
		"efadv_create_driver_qp": second(efa.CreateDriverQP(pd, nil, 0, rdma.QueueOptions{})),
	} {
		assert.EqualError(t, err, verb+": fake: the attributes are nil: invalid argument")
	}
}
