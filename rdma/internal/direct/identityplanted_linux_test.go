// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// These tests check that the comparison covers each field: they give libmlx5 and this package different values and
// expect a difference.

// TestIdentityPlantedRequests: a wrong value in any field of a request is detected, for each way of posting.
func TestIdentityPlantedRequests(t *testing.T) {
	_, seed := settings(t)
	const rc, uc, ud, xrc = ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND
	flag := func(f ibv.SendFlags) func(*twin, *ibv.SendWR) {
		return func(_ *twin, r *ibv.SendWR) { r.SendFlags ^= f }
	}
	entry := func(change func(*ibv.SGE)) func(*twin, *ibv.SendWR) {
		return func(w *twin, _ *ibv.SendWR) { change(&w.list.sges[0][0]) }
	}
	for _, planted := range []struct {
		field  string
		kind   ibv.QPType
		opcode ibv.WROpcode
		plant  func(*twin, *ibv.SendWR)
	}{
		{"identifier", rc, ibv.WR_SEND, func(_ *twin, r *ibv.SendWR) { r.WRID ^= 1 << 63 }},
		{"next", uc, ibv.WR_SEND, func(w *twin, r *ibv.SendWR) { r.Next = ibv.PtrTo(w.plain(1, ibv.WR_SEND)) }},
		{"operation", rc, ibv.WR_RDMA_WRITE, func(_ *twin, r *ibv.SendWR) { r.Opcode = ibv.WR_RDMA_READ }},
		{"fence", rc, ibv.WR_SEND, flag(ibv.SEND_FENCE)},
		{"signaled", uc, ibv.WR_SEND, flag(ibv.SEND_SIGNALED)},
		{"solicited", ud, ibv.WR_SEND, flag(ibv.SEND_SOLICITED)},
		{"inline", rc, ibv.WR_SEND, flag(ibv.SEND_INLINE)},
		{"number of entries", rc, ibv.WR_SEND, func(_ *twin, r *ibv.SendWR) { r.NumSGE++ }},
		{"entry's address", rc, ibv.WR_SEND, entry(func(e *ibv.SGE) { e.Addr ^= 1 << 63 })},
		{"entry's length", rc, ibv.WR_SEND, entry(func(e *ibv.SGE) { e.Length++ })},
		{"entry's key", rc, ibv.WR_SEND, entry(func(e *ibv.SGE) { e.LKey ^= 1 })},
		{"immediate", rc, ibv.WR_SEND_WITH_IMM, func(_ *twin, r *ibv.SendWR) { *r.ImmData() ^= 1 }},
		{"key of an invalidation", rc, ibv.WR_SEND_WITH_INV, func(_ *twin, r *ibv.SendWR) { *r.InvalidateRKey() ^= 1 }},
		{"remote address", rc, ibv.WR_RDMA_WRITE, func(_ *twin, r *ibv.SendWR) { r.WR.RDMA().RemoteAddr ^= 1 << 63 }},
		{"remote key", rc, ibv.WR_RDMA_READ, func(_ *twin, r *ibv.SendWR) { r.WR.RDMA().RKey ^= 1 }},
		{"atomic address", rc, ibv.WR_ATOMIC_CMP_AND_SWP,
			func(_ *twin, r *ibv.SendWR) { r.WR.Atomic().RemoteAddr ^= 1 }},
		{"atomic key", rc, ibv.WR_ATOMIC_CMP_AND_SWP, func(_ *twin, r *ibv.SendWR) { r.WR.Atomic().RKey ^= 1 }},
		{"compared", rc, ibv.WR_ATOMIC_CMP_AND_SWP, func(_ *twin, r *ibv.SendWR) { r.WR.Atomic().CompareAdd ^= 1 }},
		{"swapped", rc, ibv.WR_ATOMIC_CMP_AND_SWP, func(_ *twin, r *ibv.SendWR) { r.WR.Atomic().Swap ^= 1 << 63 }},
		{"added", rc, ibv.WR_ATOMIC_FETCH_AND_ADD, func(_ *twin, r *ibv.SendWR) { r.WR.Atomic().CompareAdd ^= 1 }},
		{"address handle", ud, ibv.WR_SEND, func(w *twin, r *ibv.SendWR) { r.WR.UD().AH = ibv.PtrTo(w.otherAH) }},
		{"number of the peer", ud, ibv.WR_SEND, func(_ *twin, r *ibv.SendWR) { r.WR.UD().RemoteQPN ^= 1 }},
		{"key of the peer", ud, ibv.WR_SEND, func(_ *twin, r *ibv.SendWR) { r.WR.UD().RemoteQKey ^= 1 << 31 }},
		{"shared receive queue", xrc, ibv.WR_SEND, func(_ *twin, r *ibv.SendWR) { r.QPType.XRC().RemoteSRQN ^= 1 }},
		{"window", rc, ibv.WR_BIND_MW, func(w *twin, _ *ibv.SendWR) { w.list.mws[0].RKey ^= 1 << 31 }},
		{"type of the window", rc, ibv.WR_BIND_MW, func(w *twin, _ *ibv.SendWR) { w.list.mws[0].Type ^= 3 }},
		{"window's next key", rc, ibv.WR_BIND_MW, func(_ *twin, r *ibv.SendWR) { r.BindMW().RKey ^= 1 }},
		{"window's region", rc, ibv.WR_BIND_MW, func(w *twin, _ *ibv.SendWR) { w.list.mr.LKey ^= 1 }},
		{"window's address", rc, ibv.WR_BIND_MW, func(_ *twin, r *ibv.SendWR) { r.BindMW().BindInfo.Addr ^= 1 }},
		{"window's length", rc, ibv.WR_BIND_MW, func(_ *twin, r *ibv.SendWR) { r.BindMW().BindInfo.Length ^= 1 }},
		{"window's rights", rc, ibv.WR_BIND_MW, func(_ *twin, r *ibv.SendWR) {
			r.BindMW().BindInfo.MWAccessFlags ^= ibv.ACCESS_REMOTE_READ
		}},
		{"window that is invalidated", rc, ibv.WR_LOCAL_INV, func(_ *twin, r *ibv.SendWR) { *r.InvalidateRKey() ^= 1 }},
	} {
		for _, one := range []bool{false, true} {
			w := newTwin(t, planted.kind, false, 40, rand.New(rand.NewPCG(seed, 0)))
			var at uint32 // the request's slot
			post := func(plant func(*twin, *ibv.SendWR)) (posted bool) {
				r := w.plain(0, planted.opcode)
				at = w.of.send.next
				require.NoError(t, libibverbs.PostSend(w.qp, r, &w.list.bad[0]), "%s", planted.field)
				plant(w, r)
				if one {
					return r.Next == 0 && w.of.PostOne(r)
				}
				return w.of.PostSend(w.qp, r, &w.list.bad[1]) == 0
			}
			if !post(func(*twin, *ibv.SendWR) {}) {
				assert.True(t, one, "%s", planted.field)
				continue // the fast path supports only common requests
			}
			assert.False(t, w.differ(at, mlx5dv.MLX5_CQE_REQ), "%s: equal without a wrong value", planted.field)
			if post(planted.plant) {
				assert.True(t, w.differ(at, mlx5dv.MLX5_CQE_REQ), "%s: nobody noticed", planted.field)
			}
		}
	}
}

// TestIdentityPlantedReceives: a wrong value in any field of a receive is detected.
func TestIdentityPlantedReceives(t *testing.T) {
	_, seed := settings(t)
	for field, plant := range map[string]func(*ibv.RecvWR, *ibv.SGE){
		"identifier":        func(r *ibv.RecvWR, _ *ibv.SGE) { r.WRID ^= 1 << 63 },
		"number of entries": func(r *ibv.RecvWR, _ *ibv.SGE) { r.NumSGE++ },
		"entry's address":   func(_ *ibv.RecvWR, e *ibv.SGE) { e.Addr ^= 1 << 63 },
		"entry's length":    func(_ *ibv.RecvWR, e *ibv.SGE) { e.Length++ },
		"entry's key":       func(_ *ibv.RecvWR, e *ibv.SGE) { e.LKey ^= 1 },
	} {
		w := newTwin(t, ibv.QPT_RC, false, 40, rand.New(rand.NewPCG(seed, 0)))
		for _, plant := range []func(*ibv.RecvWR, *ibv.SGE){func(*ibv.RecvWR, *ibv.SGE) {}, plant} {
			r, e := &w.recvs.wrs[0], &w.recvs.sges[0]
			*r = ibv.RecvWR{WRID: 7, SGList: ibv.PtrTo(&e[0]), NumSGE: 1}
			e[0], e[1] = ibv.SGE{Addr: 1 << 20, Length: 8, LKey: 3}, ibv.SGE{Addr: 2 << 20, Length: 8, LKey: 4}
			require.NoError(t, libibverbs.PostRecv(w.qp, r, &w.recvs.bad[0]))
			plant(r, &e[0])
			require.Zero(t, w.of.PostRecv(w.qp, r, &w.recvs.bad[1]))
			planted := w.of.recv.posted == 2
			assert.Equal(t, planted, w.differ(w.of.recv.posted-1, mlx5dv.MLX5_CQE_RESP_SEND), "%s", field)
		}
	}
}

// plain returns a request with a non-zero value in each field of its operation.
func (w *twin) plain(i int, op ibv.WROpcode) *ibv.SendWR {
	r, e := &w.list.wrs[i], &w.list.sges[i]
	*r = ibv.SendWR{WRID: 5, Opcode: op, SGList: ibv.PtrTo(&e[0]), NumSGE: 1}
	at := uint64(addressOf(w.data))
	e[0], e[1] = ibv.SGE{Addr: at, Length: 20, LKey: 3}, ibv.SGE{Addr: at, Length: 30, LKey: 4}
	*r.ImmData() = 6
	switch {
	case op == ibv.WR_BIND_MW || op == ibv.WR_LOCAL_INV:
		r.NumSGE = 0
		w.list.mws[i] = ibv.MW{RKey: 0x700, Type: ibv.MW_TYPE_2}
		w.list.mr.LKey = 0x800
		if op == ibv.WR_BIND_MW {
			*r.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(&w.list.mws[i]), RKey: 0x701, BindInfo: ibv.MWBindInfo{
				MR: ibv.PtrTo(&w.list.mr), Addr: 9, Length: 10, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
		}
	case op == ibv.WR_ATOMIC_CMP_AND_SWP || op == ibv.WR_ATOMIC_FETCH_AND_ADD:
		*r.WR.Atomic() = ibv.SendAtomic{RemoteAddr: 11, CompareAdd: 12, Swap: 13, RKey: 14}
	case w.qp.QPType == ibv.QPT_UD:
		*r.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(w.ah), RemoteQPN: 15, RemoteQKey: 16}
	default:
		r.WR.RDMA().RemoteAddr, r.WR.RDMA().RKey = 17, 18
	}
	r.QPType.XRC().RemoteSRQN = 19
	return r
}

// differ completes the request or receive in a slot and reports whether the two sides wrote different bytes or read
// different values from the completion.
func (w *twin) differ(at uint32, opcode uint8) bool {
	if where, _ := w.compare(); where != "" {
		return true
	}
	e := mlx5dv.MLX5CQE64{SRQNUIdx: ibv.ToBE32(w.user), OpOwn: opcode << 4, WQECounter: ibv.ToBE16(uint16(at)),
		SOPDropQPN: ibv.ToBE32(mlx5dv.MLX5_OPCODE_SEND<<24 | w.qp.QPNum)}
	w.write(e)
	return w.readDifferently()
}

// readDifferently reports whether the two sides read different values from the same completion.
func (w *twin) readDifferently() bool {
	w.clear()
	c, _ := libibverbs.PollCQ(w.cq, 1, &w.list.wcs[0][0])
	g := w.in.Poll(w.cq, w.list.wcs[1][:1])
	return c != int(g) || bytesOf(&w.list.wcs[0][0]) != bytesOf(&w.list.wcs[1][0])
}

// TestIdentityPlanted: a wrong value in any field of a completion is detected.
func TestIdentityPlanted(t *testing.T) {
	_, seed := settings(t)
	var e mlx5dv.MLX5CQE64
	at := func(field unsafe.Pointer, more uintptr) uintptr {
		return uintptr(field) - uintptr(unsafe.Pointer(&e)) + more
	}
	failure := (*mlx5dv.MLX5ErrCQE)(unsafe.Pointer(&e))
	for name, planted := range map[string]struct {
		opcode uint8
		at     uintptr
		bit    uint8
	}{
		"immediate":        {mlx5dv.MLX5_CQE_RESP_SEND_IMM, at(unsafe.Pointer(&e.ImmInvalPKey), 0), 1},
		"invalidated key":  {mlx5dv.MLX5_CQE_RESP_SEND_INV, at(unsafe.Pointer(&e.ImmInvalPKey), 1), 1},
		"partition":        {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(&e.ImmInvalPKey), 3), 1},
		"length":           {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(&e.ByteCnt), 3), 1},
		"source LID":       {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(e.SLID()), 0), 1},
		"path bits":        {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(e.MLPath()), 0), 1},
		"routing header":   {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(e.FlagsRQPN()), 0), 0x30},
		"service level":    {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(e.FlagsRQPN()), 0), 1},
		"sender":           {mlx5dv.MLX5_CQE_RESP_WR_IMM, at(unsafe.Pointer(e.FlagsRQPN()), 3), 1},
		"operation":        {mlx5dv.MLX5_CQE_REQ, at(unsafe.Pointer(&e.SOPDropQPN), 0), 0x18},
		"queue pair":       {mlx5dv.MLX5_CQE_REQ, at(unsafe.Pointer(&e.SOPDropQPN), 3), 1},
		"request":          {mlx5dv.MLX5_CQE_REQ, at(unsafe.Pointer(&e.WQECounter), 1), 1},
		"request, failed":  {mlx5dv.MLX5_CQE_REQ_ERR, at(unsafe.Pointer(&e.WQECounter), 1), 1},
		"receive":          {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(&e.WQECounter), 1), 1},
		"receive, failed":  {mlx5dv.MLX5_CQE_RESP_ERR, at(unsafe.Pointer(&e.WQECounter), 1), 1},
		"kind":             {mlx5dv.MLX5_CQE_RESP_SEND, at(unsafe.Pointer(&e.OpOwn), 0), 0x10},
		"owner":            {mlx5dv.MLX5_CQE_REQ, at(unsafe.Pointer(&e.OpOwn), 0), 1},
		"syndrome":         {mlx5dv.MLX5_CQE_REQ_ERR, at(unsafe.Pointer(&failure.Syndrome), 0), 1},
		"vendor's failure": {mlx5dv.MLX5_CQE_RESP_ERR, at(unsafe.Pointer(&failure.VendorErrSynd), 0), 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwin(t, ibv.QPT_RC, true, 40, rand.New(rand.NewPCG(seed, 0)))
			for len(w.sent) < 2 || len(w.received) < 2 {
				w.post(t)
				w.receive(t)
			}
			own := mlx5dv.MLX5CQE64{SRQNUIdx: ibv.ToBE32(w.user), OpOwn: planted.opcode << 4,
				SOPDropQPN: ibv.ToBE32(mlx5dv.MLX5_OPCODE_RDMA_READ<<24 | w.qp.QPNum)}
			(*mlx5dv.MLX5ErrCQE)(unsafe.Pointer(&own)).Syndrome = mlx5dv.MLX5_CQE_SYNDROME_LOCAL_PROT_ERR
			w.write(own)
			slot := w.cqes[1][w.in.size-cqe:]
			slot[planted.at] ^= planted.bit
			assert.True(t, w.readDifferently(), "nobody noticed")
		})
	}
}
