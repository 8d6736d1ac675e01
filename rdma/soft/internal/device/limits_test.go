// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestObjectLimits: a device holds as many objects of each kind as it reports and no more, destroying one makes room
// for another, and devices do not share their limits.
func TestObjectLimits(t *testing.T) {
	s := newStage(t, ibv.QPT_UD, Options{})
	d := s.fabric.devices[0]
	assert.Less(t, d.limits.mr+d.limits.mw, 1<<24, "each has a place of its own in the keys")
	d.limits, d.mostGroups = d.has, d.groups
	for _, n := range []*int{&d.limits.pd, &d.limits.mr, &d.limits.mw, &d.limits.cq, &d.limits.qp, &d.limits.srq,
		&d.limits.ah, &d.mostGroups} {
		*n += 2
	}
	attr := new(ibv.DeviceAttr)
	require.NoError(t, verbs.QueryDevice(s.context[0], attr))
	assert.Equal(t, d.limits, limits{pd: int(attr.MaxPD), mr: int(attr.MaxMR), mw: int(attr.MaxMW), cq: int(attr.MaxCQ),
		qp:  int(attr.MaxQP),
		srq: int(attr.MaxSRQ), ah: int(attr.MaxAH)}, "they are announced")
	assert.EqualValues(t, d.mostGroups, attr.MaxMcastGrp)
	memory, group := pointerTo(&s.here.bytes[0]), byte(0)
	for name, make := range map[string]func(device int) (func() error, error){
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
				u, err := make(0)
				require.NoError(t, err, "%d", i)
				undo = append(undo, u)
			}
			_, err := make(0)
			assert.ErrorIs(t, err, syscall.ENOMEM)
			u, err := make(1)
			require.NoError(t, err, "another device has room")
			require.NoError(t, u())
			require.NoError(t, undo[0]())
			undo[0], err = make(0)
			require.NoError(t, err, "one went")
			for _, u := range undo {
				require.NoError(t, u())
			}
		})
	}
}

// TestLimitOfAGroup: so many queue pairs of a device can be in one group.
func TestLimitOfAGroup(t *testing.T) {
	s := newStage(t, ibv.QPT_UD, Options{})
	gid := new(ibv.GID)
	*gid.Raw() = [16]byte{0: 0xff, 15: 1}
	attach := func(qp *ibv.QP) error {
		err := verbs.AttachMcast(qp, gid, 0)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, verbs.DetachMcast(qp, gid, 0)) })
		}
		return err
	}
	for range maxGroupQPs {
		require.NoError(t, attach(s.qp(0, ibv.QPT_UD, testCaps, s.p.aSend, s.p.aRecv)))
	}
	assert.ErrorIs(t, attach(s.p.a), syscall.ENOMEM)
	assert.NoError(t, attach(s.p.b), "of another device")
}
