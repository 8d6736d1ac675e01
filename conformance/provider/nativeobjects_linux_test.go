// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/runtime"
)

// user creates queues by libmlx5 or by package native.
type user struct {
	t       *testing.T
	backend runtime.Backend
	context *ibv.Context
	pd      *ibv.PD
	cq      *ibv.CQ
}

func newUser(t *testing.T, b runtime.Backend) *user {
	t.Helper()
	var n int32
	list, err := verbs.From{Backend: b}.GetDeviceList(&n)
	require.NoError(t, err)
	u := &user{t: t, backend: b}
	u.context, err = verbs.OpenDevice(list.Deref())
	require.NoError(t, err)
	verbs.FreeDeviceList(list)
	t.Cleanup(func() { assert.NoError(t, verbs.CloseDevice(u.context)) })
	u.pd, err = verbs.AllocPD(u.context)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DeallocPD(u.pd)) })
	u.cq, err = verbs.CreateCQ(u.context, 15, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DestroyCQ(u.cq)) })
	return u
}

// numbers describe a queue without its addresses.
type numbers struct {
	failed        bool
	cap           ibv.QPCap
	sq, rq        [2]uint32
	apart         uintptr // from the receive queue to the send queue
	register, cqn uint32
}

func (u *user) init(obj *mlx5dv.Obj, kind mlx5dv.ObjType) {
	u.t.Helper()
	require.NoError(u.t, libmlx5.From{Backend: u.backend}.InitObj(obj, kind))
}

func (u *user) qp(kind ibv.QPType, cap ibv.QPCap) (n numbers) {
	u.t.Helper()
	a := ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap}
	qp, err := verbs.CreateQP(u.pd, &a)
	if err != nil {
		return numbers{failed: true}
	}
	var out mlx5dv.QP
	u.init(&mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(qp), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_QP)
	n = numbers{cap: a.Cap, sq: [2]uint32{out.SQ.WQECnt, out.SQ.Stride}, rq: [2]uint32{out.RQ.WQECnt, out.RQ.Stride},
		apart: out.SQ.Buf - out.RQ.Buf, register: out.BF.Size}
	if n.sq[0] == 0 {
		n.sq[1] = 0 // libmlx5 has 1
	}
	if n.rq[0] == 0 {
		n.rq[1] = 0
	}
	require.NoError(u.t, verbs.DestroyQP(qp))
	return n
}

// TestNativeSizes compares capacities and sizes of queues that package native and libmlx5 create.
func TestNativeSizes(t *testing.T) {
	if !insideReleases(t, pathNative) {
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		kind := []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}[r.IntN(3)]
		cap := ibv.QPCap{MaxSendWR: r.Uint32N(1 << r.IntN(13)), MaxRecvWR: r.Uint32N(1 << r.IntN(13)),
			MaxSendSGE: r.Uint32N(1 << r.IntN(6)), MaxRecvSGE: r.Uint32N(1 << r.IntN(6)),
			MaxInlineData: r.Uint32N(1 << r.IntN(11))}
		c, own := users[0].qp(kind, cap), users[1].qp(kind, cap)
		if !assert.Equal(t, c, own, "%v %+v", kind, cap) {
			t.FailNow()
		}
	}
}

// av returns the address of a handle in requests, or nil if there is no handle.
func (u *user) av(attr ibv.AHAttr) *mlx5dv.MLX5WQEAV {
	u.t.Helper()
	ah, err := verbs.CreateAH(u.pd, &attr)
	if err != nil {
		return nil
	}
	var out mlx5dv.AH
	u.init(&mlx5dv.Obj{AH: mlx5dv.ObjAH{In: ibv.PtrTo(ah), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_AH)
	av := *out.AV.Deref()
	require.NoError(u.t, verbs.DestroyAH(ah))
	return &av
}

// TestNativeAddresses compares address handles that package native and libmlx5 create, on Ethernet and InfiniBand.
func TestNativeAddresses(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		again(t, emulated(t), pathNative, envInfiniBand)
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	r := rand.New(rand.NewPCG(3, 4))
	some := 0
	for range 500 {
		attr := ibv.AHAttr{PortNum: uint8(1 + r.IntN(20)/19), IsGlobal: uint8(r.IntN(2)), DLID: uint16(r.Uint32()),
			SL: uint8(r.IntN(16)), SrcPathBits: uint8(r.IntN(256)), StaticRate: ibv.Rate(r.IntN(26)),
			GRH: ibv.GlobalRoute{SGIDIndex: uint8(r.IntN(2)), FlowLabel: 1 + r.Uint32N(1<<20-1), HopLimit: uint8(r.Uint32()),
				TrafficClass: uint8(r.Uint32())}}
		*attr.GRH.DGID.Raw() = [16]uint8{0xfe, 0x80, 15: uint8(r.Uint32())}
		c, own := users[0].av(attr), users[1].av(attr)
		require.Equal(t, c, own, "%+v", attr)
		if c != nil {
			some++
		}
	}
	assert.Greater(t, some, 100)
}
