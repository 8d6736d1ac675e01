// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestRejectedBindings checks that the data path in Go rejects the windows that ibv_bind_mw of libmlx5 rejects, and
// leaves the send queue unchanged.
func TestRejectedBindings(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	qp := toItself(t, device)
	const access = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_MW_BIND
	mr, err := qp.RegMR(make([]byte, size), access)
	keep(t, mr, err)
	other, err := device.AllocPD()
	keep(t, other, err)
	windows := map[ibv.MWType]*ibv.MW{}
	for _, kind := range []ibv.MWType{ibv.MW_TYPE_1, ibv.MW_TYPE_2} {
		mw, err := qp.PD().AllocMW(kind)
		keep(t, mw, err)
		windows[kind] = mw.C()
	}
	otherMW, err := other.AllocMW(ibv.MW_TYPE_1)
	keep(t, otherMW, err)

	good := ibv.MWBind{WRID: 1, SendFlags: ibv.SEND_SIGNALED, BindInfo: ibv.MWBindInfo{MR: mr.Ptr(), Addr: mr.Address(),
		Length: 8, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
	raw := qp.SendQueue() // C decides about raw posts
	one := windows[ibv.MW_TYPE_1]
	for name, test := range map[string]struct {
		mw    *ibv.MW
		errno syscall.Errno
		set   func(*ibv.MWBind)
	}{
		"type 2":    {windows[ibv.MW_TYPE_2], syscall.EINVAL, func(*ibv.MWBind) {}},
		"no region": {one, syscall.EINVAL, func(b *ibv.MWBind) { b.BindInfo.MR = 0 }},
		"zero based": {one, syscall.EINVAL, func(b *ibv.MWBind) {
			b.BindInfo.MWAccessFlags |= ibv.ACCESS_ZERO_BASED
		}},
		"another domain":       {otherMW.C(), syscall.EPERM, func(*ibv.MWBind) {}},
		"longer than an entry": {one, syscall.EOPNOTSUPP, func(b *ibv.MWBind) { b.BindInfo.Length = 1<<31 + 1 }},
	} {
		bind := good
		test.set(&bind)
		key := test.mw.RKey
		assert.ErrorIs(t, raw.BindMW(test.mw, &bind), test.errno, name)
		assert.Equal(t, key, test.mw.RKey, name)
	}
	require.NoError(t, raw.BindMW(one, &good))
	assert.Equal(t, uint64(1), next(t, qp.SendCQ()).WRID, "nothing else was posted")
}
