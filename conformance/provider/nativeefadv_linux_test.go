// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// efaObjects holds objects that libefa's functions query.
type efaObjects struct {
	*user
	ah *ibv.AH
	mr *ibv.MR
	qp *ibv.QP
}

func (u *user) efaObjects(memory []byte) *efaObjects {
	u.t.Helper()
	o := &efaObjects{user: u}
	var err error
	o.ah, err = verbs.CreateAH(u.pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1})
	require.NoError(u.t, err)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyAH(o.ah)) })
	o.mr, err = verbs.RegMR(u.pd, uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uint64(len(memory)), 0)
	require.NoError(u.t, err)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DeregMR(o.mr)) })
	o.qp, _, err = u.efaQP(ibv.QPT_DRIVER, room, efadv.QPInitAttr{})
	require.NoError(u.t, err)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyQP(o.qp)) })
	return o
}

// structure has room for a structure of any size.
type structure [128]byte

func as[T any](s *structure) *T { return (*T)(unsafe.Pointer(s)) }

// query calls a function with a structure of a given size, and returns the error and the structure.
func (o *efaObjects) query(which int, s, t *structure, size uint32) string {
	var err error
	var result int
	switch which {
	case 0:
		err = libefa.QueryDevice(o.context, as[efadv.DeviceAttr](s), size)
	case 1:
		err = libefa.QueryAH(o.ah, as[efadv.AHAttr](s), size)
		if err == nil && size > 9 {
			s[8], s[9] = 0, 0 // the number
		}
	case 2:
		err = libefa.QueryMR(o.mr, as[efadv.MRAttr](s), size)
	case 3:
		err = libefa.QueryCQ(o.cq, as[efadv.CQAttr](s), size)
		for i := uint32(8); err == nil && i < 32; i++ {
			if i < 16 || i >= 24 {
				s[i] = 0 // addresses
			}
		}
	case 4:
		err = libefa.QueryQPWQs(o.qp, as[efadv.WQAttr](s), as[efadv.WQAttr](t), size)
		for i := uint32(8); err == nil && i < 32; i++ {
			if i < 16 || i >= 24 {
				s[i], t[i] = 0, 0
			}
		}
	case 5:
		result, err = libefa.GetMaxSQDepth(o.context, as[efadv.SQDepthAttr](s), size)
	case 6:
		result, err = libefa.GetMaxRQDepth(o.context, as[efadv.RQDepthAttr](s), size)
	}
	return fmt.Sprintf("%d %d\n%x\n%x", code(err), result, *s, *t)
}

// TestNativeEFAFunctions compares functions of libefa with those of package native, for structures of several sizes.
func TestNativeEFAFunctions(t *testing.T) {
	users, inside := efaUsers(t, true)
	if !inside {
		return
	}
	memory := make([]byte, 4096)
	var objects [2]*efaObjects
	for i, u := range users {
		objects[i] = u.efaObjects(memory)
	}
	r := rand.New(rand.NewPCG(11, 12))
	for range 3000 {
		which, size := r.IntN(7), 8*r.Uint32N(8)
		var s, more structure
		switch r.IntN(4) {
		case 0:
			s[r.IntN(8)] = byte(r.IntN(3)) // comp_mask
		case 1:
			s[8+r.IntN(32)], more[8+r.IntN(32)] = byte(r.IntN(3)), byte(r.IntN(3))
		case 2:
			for i := 8; i < 24; i += 4 {
				s[i] = byte(r.IntN(4) * r.IntN(30))
			}
		}
		if which == 6 {
			s[8] = max(s[8], 1) // libefa divides by this value
		}
		var texts [2]string
		for i, o := range objects {
			s, more := s, more
			texts[i] = o.query(which, &s, &more, size)
		}
		require.Equal(t, texts[0], texts[1], "function %d, %d bytes of %x", which, size, s)
	}
}

// attempt is a random attempt to create a queue pair or a completion queue.
type attempt struct {
	cq    bool
	plain bool // without libefa's attributes
	qp    ibv.QPInitAttrEx
	own   efadv.QPInitAttr
	cqx   ibv.CQInitAttrEx
	cqOwn efadv.CQInitAttr
	size  uint32
}

func rarely[T any](r *rand.Rand, often T, others ...T) T {
	if r.IntN(6) == 0 {
		return others[r.IntN(len(others))]
	}
	return often
}

func newAttempt(r *rand.Rand) (a attempt) {
	a.cq, a.plain = r.IntN(2) == 0, r.IntN(3) == 0
	kind := ibv.QPT_DRIVER
	if r.IntN(2) == 0 {
		kind = ibv.QPT_UD
	}
	a.qp = ibv.QPInitAttrEx{QPType: rarely(r, kind, ibv.QPT_RC, ibv.QPT_DRIVER, 77),
		Cap: ibv.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
		CompMask: rarely(r, ibv.QP_INIT_ATTR_PD|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, 0, ibv.QP_INIT_ATTR_PD,
			ibv.QP_INIT_ATTR_PD|ibv.QP_INIT_ATTR_CREATE_FLAGS, ibv.QP_INIT_ATTR_PD|1<<20),
		SendOpsFlags: rarely(r, ibv.QP_EX_WITH_SEND, 0, ibv.QP_EX_WITH_RDMA_READ, ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM,
			ibv.QP_EX_WITH_BIND_MW, 1<<40)}
	a.own = efadv.QPInitAttr{CompMask: rarely[uint64](r, 0, 1), DriverQPType: rarely(r, efadv.QP_DRIVER_TYPE_SRD, 1),
		Flags: rarely[efadv.QPFlags](r, 0, 1, 2, 3, 4), SL: rarely[uint8](r, 0, 3), Reserved: rarely[uint8](r, 0, 1)}
	a.cqx = ibv.CQInitAttrEx{CQE: rarely(r, 8, []uint32{1, 1 << 14, 1<<14 + 1, 1 << 31}...),
		CompVector: rarely[uint32](r, 0, 1, 100), WCFlags: rarely[ibv.CreateCQWCFlags](r, 0, ibv.WC_STANDARD_FLAGS, 1<<9, 1<<20),
		CompMask: rarely[ibv.CQInitAttrMask](r, 0, ibv.CQ_INIT_ATTR_MASK_FLAGS, 4),
		Flags:    rarely[ibv.CreateCQAttrFlags](r, 0, ibv.CREATE_CQ_ATTR_SINGLE_THREADED, 2)}
	a.cqOwn = efadv.CQInitAttr{CompMask: rarely[uint64](r, 0, 1), WCFlags: rarely[efadv.CQWCFlags](r, 0, 1, 2, 3, 4)}
	a.size = uint32(unsafe.Sizeof(a.own))
	if a.cq {
		a.size = uint32(unsafe.Sizeof(a.cqOwn))
	}
	a.size = rarely(r, a.size, []uint32{0, 8, 16, 24}...)
	return a
}

// try returns the result of an attempt.
func (u *user) try(a attempt) string {
	u.t.Helper()
	if a.cq {
		var cq *ibv.CQEx
		var err error
		if a.plain {
			cq, err = verbs.CreateCQEx(u.context, &a.cqx)
		} else {
			cq, err = libefa.CreateCQ(u.context, &a.cqx, &a.cqOwn, a.size)
		}
		if err != nil {
			return "refused"
		}
		defer func() { require.NoError(u.t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) }()
		return fmt.Sprint(0, verbs.CQExToCQ(cq).CQE)
	}
	a.qp.SendCQ, a.qp.RecvCQ, a.qp.PD = ibv.PtrTo(u.cq), ibv.PtrTo(u.cq), ibv.PtrTo(u.pd)
	var qp *ibv.QP
	var err error
	if a.plain {
		qp, err = verbs.CreateQPEx(u.context, &a.qp)
	} else {
		qp, err = libefa.CreateQPEx(u.context, &a.qp, &a.own, a.size)
	}
	if err != nil {
		return "refused"
	}
	defer func() { require.NoError(u.t, verbs.DestroyQP(qp)) }()
	_, err = verbs.QPToQPEx(qp)
	return fmt.Sprint(0, err == nil)
}

// TestNativeEFARejected compares which attributes libefa and package native reject. The errors differ: package native
// returns EOPNOTSUPP for operations that the device lacks. libefa also accepts a completion queue without entries.
func TestNativeEFARejected(t *testing.T) {
	users, inside := efaUsers(t, true)
	if !inside {
		return
	}
	r := rand.New(rand.NewPCG(13, 14))
	for range 5000 {
		a := newAttempt(r)
		require.Equal(t, users[0].try(a), users[1].try(a), "%+v", a)
	}
}
