// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// TestIdentityPageFault: if the memory of a shared receive queue's receive was not present (on-demand paging), the
// receive completes with a special error. The library hides it from the program and reposts the receive. libmlx5 and
// this package have separate queues here, because they repost to different slots.
func TestIdentityPageFault(t *testing.T) {
	_, seed := settings(t)
	w := newTwin(t, ibv.QPT_RC, false, 8, rand.New(rand.NewPCG(seed, 0))) // provides the lists and data
	for _, path := range []string{"libmlx5", "Go"} {
		t.Run(path, func(t *testing.T) { pageFault(t, w, path == "Go") })
	}
}

func pageFault(t *testing.T, w *twin, native bool) {
	n := new(int32)
	list, err := libibverbs.GetDeviceList(n)
	require.NoError(t, err)
	defer libibverbs.FreeDeviceList(list)
	c, err := libibverbs.OpenDevice(list.Deref())
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.CloseDevice(c) })
	pd, err := libibverbs.AllocPD(c)
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DeallocPD(pd) })
	cq, err := libibverbs.CreateCQ(c, 15, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DestroyCQ(cq) })
	made := &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 7, MaxSGE: 3}}
	srq, err := libibverbs.CreateSRQ(pd, made)
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DestroySRQ(srq) })
	qp, err := libibverbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		SRQ: ibv.PtrTo(srq), Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DestroyQP(qp) })
	toCQ, toSRQ := new(mlx5dv.CQ), new(mlx5dv.SRQ)
	require.NoError(t, libmlx5.InitObj(&mlx5dv.Obj{CQ: mlx5dv.ObjCQ{In: ibv.PtrTo(cq), Out: ibv.PtrTo(toCQ)},
		SRQ: mlx5dv.ObjSRQ{In: ibv.PtrTo(srq), Out: ibv.PtrTo(toSRQ)}}, mlx5dv.OBJ_CQ|mlx5dv.OBJ_SRQ))

	d := New(nil, unset, true)
	of, in := newSharedQueue(d, srq, toSRQ, made.Attr.MaxSGE), newCompletionQueue(d, cq, toCQ)
	in.add(&queuePair{device: d, c: qp, srq: of, recvCQ: in, send: sendQueue{number: qp.QPNum << 8}})
	post := func(id uint64, e ...ibv.SGE) {
		r := &w.recvs.wrs[0]
		*r = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&w.recvs.sges[0][0]), NumSGE: int32(copy(w.recvs.sges[0][:], e))}
		if native {
			require.Zero(t, of.PostSRQRecv(srq, r, &w.recvs.bad[0]))
		} else {
			require.NoError(t, libibverbs.PostSRQRecv(srq, r, &w.recvs.bad[0]))
		}
	}
	poll := func() (polled int, id uint64) {
		wc := &w.list.wcs[0][0]
		if native {
			return int(in.Poll(cq, w.list.wcs[0][:1])), wc.WRID
		}
		polled, err := libibverbs.PollCQ(cq, 1, wc)
		require.NoError(t, err)
		return polled, wc.WRID
	}
	next := uint32(0)
	complete := func(place uint16, e mlx5dv.MLX5CQE64) {
		e.SOPDropQPN, e.WQECounter = be32(qp.QPNum), be16(place)
		e.OpOwn |= uint8(next >> in.round & 1)
		*in.at(next) = e
		next++
	}
	fault := mlx5dv.MLX5CQE64{OpOwn: mlx5dv.MLX5_CQE_RESP_ERR << 4}
	failure := (*mlx5dv.MLX5ErrCQE)(unsafe.Pointer(&fault))
	failure.Syndrome = mlx5dv.MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR
	failure.VendorErrSynd = mlx5dv.MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT

	at := uint16(of.head) // the next receive for the device
	take := func() uint16 {
		place := at
		at = host16(of.next(place).NextWQEIndex)
		return place
	}
	posted := map[uint64][]ibv.SGE{}
	var waiting []uint64 // receives in order
	enqueue := func(id uint64, e ...ibv.SGE) {
		post(id, e...)
		posted[id], waiting = e, append(waiting, id)
	}
	enqueue(10, ibv.SGE{Addr: 1 << 20, Length: 8, LKey: 3}, ibv.SGE{Addr: 2 << 20, Length: 9, LKey: 4})
	enqueue(11)
	for round := range 40 { // more than the number of slots
		id := uint64(12 + round)
		enqueue(id, ibv.SGE{Addr: id << 20, Length: uint32(id), LKey: 5})
		complete(take(), fault)
		polled, _ := poll()
		require.Zero(t, polled, "the failed receive is hidden")
		require.EqualValues(t, 4+2*round, host32(*toSRQ.DBRec.Deref()), "doorbell record")
		waiting = append(waiting[1:], waiting[0])

		place := take()
		for i, e := range posted[waiting[0]] {
			want := mlx5dv.MLX5WQEDataSeg{ByteCount: be32(e.Length), LKey: be32(e.LKey), Addr: be64(e.Addr)}
			require.Equal(t, want, *entry(of.data(place), int32(i)))
		}
		end := entry(of.data(place), int32(len(posted[waiting[0]])))
		require.EqualValues(t, mlx5dv.MLX5_INVALID_LKEY, host32(end.LKey))
		complete(place, mlx5dv.MLX5CQE64{OpOwn: mlx5dv.MLX5_CQE_RESP_SEND << 4})
		polled, id = poll()
		require.Equal(t, 1, polled)
		require.Equal(t, waiting[0], id)
		waiting = waiting[1:]
	}
}
