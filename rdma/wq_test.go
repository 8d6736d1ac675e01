// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

func TestWorkQueuesAndTheirTable(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	capacity := cq.Free()
	number, result := uint32(0x20), uintptr(0)
	var posted []uint64
	f.Do["post_wq_recv"] = func(a []uintptr) uintptr {
		for w := ibv.Ptr[ibv.RecvWR](a[1]); w != 0; w = w.Deref().Next {
			if result != 0 && len(posted) == 1 {
				*ibv.Ptr[ibv.Ptr[ibv.RecvWR]](a[2]).Deref() = w
				return result
			}
			posted = append(posted, w.Deref().WRID)
		}
		return 0
	}
	f.Do["create_wq"] = func(a []uintptr) uintptr {
		attr := ibv.Ptr[ibv.WQInitAttr](a[1]).Deref()
		assert.Equal(t, ibv.PtrTo(pd.C()), attr.PD)
		w := fakedevice.Object[ibv.WQ](f)
		w.Context, w.WQNum, w.PostRecv = ibv.PtrTo(&f.Context.Context), number, f.Slot("post_wq_recv")
		number++
		return address(w)
	}
	attr := &ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 8, MaxSGE: 1, PD: pd.Ptr(), CQ: cq.Ptr()}
	_, err := d.CreateWQ(&ibv.WQInitAttr{MaxWR: 8, PD: pd.Ptr()}, QueueOptions{})
	assert.ErrorContains(t, err, "CQ must be set")
	a, err := d.CreateWQ(attr, QueueOptions{})
	require.NoError(t, err)
	b, err := d.CreateWQ(attr, QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, capacity-16, cq.Free())
	require.NoError(t, a.Modify(&ibv.WQAttr{AttrMask: ibv.WQ_ATTR_STATE, WQState: ibv.WQS_RDY}))
	assert.Equal(t, ibv.WQS_RDY, a.State())

	batch, err := NewRecvBatch(2, 1)
	batch = keep(t, batch, err)
	batch.Recv(1).SGE(1, 2, 3)
	batch.Recv(2).SGE(1, 2, 3)
	n, err := a.PostRecv(batch)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.Equal(t, []uint64{1, 2}, posted)
	posted, result = nil, uintptr(syscall.ENOMEM)
	n, err = a.PostRecv(batch)
	assert.Equal(t, 1, n)
	assert.EqualError(t, err, "ibv_post_wq_recv: WQ 0x20: WR 1 (id 0x2): cannot allocate memory")

	_, err = d.CreateRWQIndTable([]*WQ{a, b, a})
	assert.ErrorContains(t, err, "the table has 3 entries; the number must be a power of two")
	f.Do["create_rwq_ind_table"] = func(x []uintptr) uintptr {
		attr := ibv.Ptr[ibv.RWQIndTableInitAttr](x[1]).Deref()
		assert.EqualValues(t, 2, attr.LogIndTblSize)
		assert.Equal(t, []ibv.Ptr[ibv.WQ]{a.Ptr(), b.Ptr(), a.Ptr(), b.Ptr()}, unsafe.Slice(attr.IndTbl.Deref(), 4))
		table := fakedevice.Object[ibv.RWQIndTable](f)
		table.Context = ibv.PtrTo(&f.Context.Context)
		return address(table)
	}
	table, err := d.CreateRWQIndTable([]*WQ{a, b, a, b})
	require.NoError(t, err)
	assert.ErrorIs(t, a.Close(), ErrInUse)
	f.Do["create_qp_ex"] = func(x []uintptr) uintptr {
		assert.Equal(t, table.Ptr(), ibv.Ptr[ibv.QPInitAttrEx](x[1]).Deref().RWQIndTbl)
		qp := fakedevice.Object[ibv.QP](f)
		qp.Context, qp.QPNum, qp.QPType = ibv.PtrTo(&f.Context.Context), 0x13, ibv.QPT_RAW_PACKET
		return address(qp)
	}
	qp, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RAW_PACKET, CompMask: ibv.QP_INIT_ATTR_PD |
		ibv.QP_INIT_ATTR_IND_TABLE, PD: pd.Ptr(), RWQIndTbl: table.Ptr()}, QueueOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, table.Close(), "needed by QP 0x13")
	require.NoError(t, qp.Close())
	require.NoError(t, table.Close())
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	assert.Equal(t, capacity, cq.Free())
	_, err = a.PostRecv(batch)
	assert.ErrorIs(t, err, ErrClosed)
}
