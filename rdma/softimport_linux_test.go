// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestImportedDevice: a program imports a device and its objects from a descriptor and handles.
func TestImportedDevice(t *testing.T) {
	fabric, err := soft.Default()
	require.NoError(t, err)
	before := fabric.Resources()
	pd := softPD(t)
	dm, err := pd.Device().AllocDM(&ibv.AllocDMAttr{Length: 64})
	dm = keep(t, dm, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	commands, err := syscall.Dup(int(pd.Device().C().CmdFD))
	require.NoError(t, err)

	_, err = ImportDeviceOn(fabric, "soft0", -1)
	assert.ErrorIs(t, err, syscall.EINVAL)
	d, err := ImportDeviceOn(fabric, "soft0", commands)
	require.NoError(t, err)
	ownPD, err := d.ImportPD(pd.C().Handle)
	require.NoError(t, err)
	ownMR, err := ownPD.ImportMR(mr.C().Handle)
	require.NoError(t, err)
	ownDM, err := d.ImportDM(dm.C().Handle)
	require.NoError(t, err)
	assert.Equal(t, [2]uint32{mr.LKey(), mr.RKey()}, [2]uint32{ownMR.LKey(), ownMR.RKey()})
	assert.EqualValues(t, 64, ownMR.Len())
	_, err = dm.WriteAt([]byte("12345678"), 8)
	require.NoError(t, err)
	got := make([]byte, 8)
	_, err = ownDM.ReadAt(got, 8)
	require.NoError(t, err)
	assert.Equal(t, "12345678", string(got))
	_, err = d.ImportDM(1 << 30)
	assert.ErrorIs(t, err, syscall.ENOENT)
	for _, one := range []Object{ownMR, ownDM, ownPD, d, mr, dm, pd, pd.Device()} {
		require.NoError(t, one.Close())
	}
	assert.Equal(t, before, fabric.Resources())
}
