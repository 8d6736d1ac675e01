// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestObjectLimits: a device supports exactly as many objects of each kind as it reports, destroying one allows
// another, and each device has its own limits.
func TestObjectLimits(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{})
	d := s.fabric.devices[0]
	assert.Less(t, d.Limits.MR+d.Limits.MW, 1<<24, "each has a unique index in its key")
	d.Limits, d.MostGroups = d.Has, d.Groups
	for _, n := range []*int{&d.Limits.PD, &d.Limits.MR, &d.Limits.MW, &d.Limits.CQ, &d.Limits.QP, &d.Limits.SRQ,
		&d.Limits.AH, &d.MostGroups} {
		*n += 2
	}
	attr := new(ibv.DeviceAttr)
	require.NoError(t, verbs.QueryDevice(s.context[0], attr))
	assert.Equal(t, d.Limits, impl.Limits{PD: int(attr.MaxPD), MR: int(attr.MaxMR), MW: int(attr.MaxMW),
		CQ:  int(attr.MaxCQ),
		QP:  int(attr.MaxQP),
		SRQ: int(attr.MaxSRQ), AH: int(attr.MaxAH)}, "ibv_query_device reports the limits")
	assert.EqualValues(t, d.MostGroups, attr.MaxMcastGrp)
	memory, group := pointerTo(&s.bufA.bytes[0]), byte(0)
	for name, create := range map[string]func(device int) (func() error, error){
		"pd": func(i int) (func() error, error) {
			pd, err := verbs.AllocPD(s.context[i])
			return func() error { return verbs.DeallocPD(pd) }, err
		},
		"mr": func(i int) (func() error, error) {
			mr, err := verbs.RegMR(s.pd[i], memory, 64, 0)
			return func() error { return verbs.DeregMR(mr) }, err
		},
		"mw": func(i int) (func() error, error) {
			mw, err := verbs.AllocMW(s.pd[i], ibv.MW_TYPE_2)
			return func() error { return verbs.DeallocMW(mw) }, err
		},
		"cq": func(i int) (func() error, error) {
			cq, err := verbs.CreateCQ(s.context[i], 1, 0, nil, 0)
			return func() error { return verbs.DestroyCQ(cq) }, err
		},
		"qp": func(i int) (func() error, error) {
			cq := ibv.PtrTo([]*ibv.CQ{s.p.aSend, s.p.bSend}[i])
			qp, err := verbs.CreateQP(s.pd[i],
				&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq, RecvCQ: cq, Cap: ibv.QPCap{MaxSendWR: 1}})
			return func() error { return verbs.DestroyQP(qp) }, err
		},
		"srq": func(i int) (func() error, error) {
			srq, err := verbs.CreateSRQ(s.pd[i], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 1, MaxSGE: 1}})
			return func() error { return verbs.DestroySRQ(srq) }, err
		},
		"ah": func(i int) (func() error, error) {
			av := s.av(1)
			ah, err := verbs.CreateAH(s.pd[i], &av)
			return func() error { return verbs.DestroyAH(ah) }, err
		},
		"group": func(i int) (func() error, error) {
			group++
			gid := new(ibv.GID)
			*gid.Raw() = [16]byte{0: 0xff, 15: group}
			qp := []*ibv.QP{s.p.a, s.p.b}[i]
			err := verbs.AttachMcast(qp, gid, 0)
			return func() error { return verbs.DetachMcast(qp, gid, 0) }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var undo []func() error
			for i := range 2 {
				u, err := create(0)
				require.NoError(t, err, "%d", i)
				undo = append(undo, u)
			}
			_, err := create(0)
			assert.ErrorIs(t, err, syscall.ENOMEM)
			u, err := create(1)
			require.NoError(t, err, "another device is below its limit")
			require.NoError(t, u())
			require.NoError(t, undo[0]())
			undo[0], err = create(0)
			require.NoError(t, err, "an object was destroyed")
			for _, u := range undo {
				require.NoError(t, u())
			}
		})
	}
}

// TestMulticastGroupLimit: the number of queue pairs of a device in one group is limited.
func TestMulticastGroupLimit(t *testing.T) {
	s := newTestPair(t, ibv.QPT_UD, Options{})
	gid := new(ibv.GID)
	*gid.Raw() = [16]byte{0: 0xff, 15: 1}
	attach := func(qp *ibv.QP) error {
		err := verbs.AttachMcast(qp, gid, 0)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, verbs.DetachMcast(qp, gid, 0)) })
		}
		return err
	}
	for range engine.MaxGroupQPs {
		require.NoError(t, attach(s.qp(0, ibv.QPT_UD, testCaps, s.p.aSend, s.p.aRecv)))
	}
	assert.ErrorIs(t, attach(s.p.a), syscall.ENOMEM)
	assert.NoError(t, attach(s.p.b), "another device")
}
