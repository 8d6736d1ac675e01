// SPDX-License-Identifier: BSD-2-Clause

package rdma_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// TestOpenWithoutName: GOVERBS_DEVICE selects the device if the program passes no name.
func TestOpenWithoutName(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft1")
	device, err := rdma.Open("")
	require.NoError(t, err)
	assert.Equal(t, "soft1", device.Name())
	assert.NotNil(t, device.Info().Backend, "rdma/cm needs the backend")
	assert.NoError(t, device.Close())
	device, err = rdma.Open("soft0")
	require.NoError(t, err)
	assert.Equal(t, "soft0", device.Name(), "the program's name takes precedence")
	assert.NoError(t, device.Close())
	device, err = rdma.OpenOn(nil, "")
	require.NoError(t, err)
	assert.Equal(t, "soft1", device.Name(), "an empty backend is like an empty name")
	assert.NoError(t, device.Close())
	_, err = rdma.OpenOn(runtime.Native, "soft1")
	assert.Error(t, err, "the native library has no such device")

	t.Setenv("GOVERBS_DEVICE", "none")
	_, err = rdma.Open("")
	assert.ErrorIs(t, err, syscall.ENOENT)
	assert.ErrorContains(t, err, `no device "none"; known devices: `)
	assert.NotContains(t, err.Error(), "\n")
	assert.NotContains(t, err.Error(), "soft@")

	t.Setenv("GOVERBS_DEVICE", "soft:127.0.0.1")
	_, err = rdma.Open("")
	assert.ErrorContains(t, err, `no device "soft:127.0.0.1"; known devices: `)
	assert.ErrorContains(t, err, "; for an address of this machine use soft@ADDRESS")
}

// TestNoKernelDevices: if the kernel has no RDMA support, listing devices succeeds, and the error of Open explains how
// to get a software device.
func TestNoKernelDevices(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "")
	if native, err := rdma.DevicesOf(runtime.Native); err == nil && len(native) > 0 {
		t.Skip("the machine has RDMA devices")
	}
	all, err := rdma.Devices()
	assert.NoError(t, err)
	assert.Len(t, all, 2)
	_, err = rdma.Open("")
	assert.ErrorContains(t, err, "; for a software device, set GOVERBS_DEVICE=soft0")
	assert.NotContains(t, err.Error(), "\n")
	if _, err := os.Stat("/sys/class/infiniband_verbs"); err != nil {
		_, err = rdma.DevicesOf(runtime.Native)
		assert.Error(t, err, "the cause is available")
	}
}
