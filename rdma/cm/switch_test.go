// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// TestSwitch: with GOVERBS_DEVICE=soft0, a program that names no backend runs on the software devices.
func TestSwitch(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	id, err := CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	assert.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.2:0")))
	assert.NoError(t, id.Close())
	channel, err := CreateEventChannel()
	require.NoError(t, err)
	assert.NoError(t, channel.Close())
	list, err := GetDevices()
	require.NoError(t, err)
	assert.Len(t, list.Devices, 2)
	assert.NoError(t, list.Close())
	info, err := GetAddrInfo(timeout(t), "soft1", "7", Hints{})
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("127.0.0.2:7"), info.Destination())
	info.Close()
}

// TestNilBackendUsesEnvironment: with a nil backend, every function uses GOVERBS_DEVICE. runtime.Native always selects
// the native library.
func TestNilBackendUsesEnvironment(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft1")
	id, err := CreateIDOn(nil, rdmacm.PS_TCP)
	require.NoError(t, err)
	assert.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.2:0")))
	assert.NoError(t, id.Close())
	channel, err := CreateEventChannelOn(nil)
	require.NoError(t, err)
	assert.NoError(t, channel.Close())
	list, err := GetDevicesOn(nil)
	require.NoError(t, err)
	assert.Len(t, list.Devices, 2)
	assert.NoError(t, list.Close())
	info, err := GetAddrInfoOn(timeout(t), nil, "soft1", "7", Hints{})
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("127.0.0.2:7"), info.Destination())
	info.Close()

	if id, err := CreateIDOn(runtime.Native, rdmacm.PS_TCP); err == nil { // this machine has RDMA
		assert.ErrorIs(t, id.Bind(netip.MustParseAddrPort("127.0.0.2:0")), syscall.ENODEV)
		assert.NoError(t, id.Close())
	}
}

// TestSoftUnknownAddress: resolving an address that no device has fails at once, and the error lists the known
// addresses.
func TestSoftUnknownAddress(t *testing.T) {
	f := newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Name: "left"},
		{Name: "right", Address: netip.MustParseAddr("10.0.0.2")}}})
	const known = "; the software devices have 10.0.0.2 (right), 127.0.0.1 (left)"
	start, id := time.Now(), newSoftID(t, f, rdmacm.PS_TCP)
	err := id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7"), time.Minute)
	assert.ErrorIs(t, err, syscall.EHOSTUNREACH)
	assert.ErrorContains(t, err, "no device has the address"+known+" in this process; use a device soft@ADDRESS "+
		"to reach others")
	_, err = bound(t, f, rdmacm.PS_TCP, "127.0.0.9:7")
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "not an address of this machine"+known)
	assert.Less(t, time.Since(start), 30*time.Second)
	_, err = GetAddrInfoOn(timeout(t), f, "middle", "7", Hints{})
	var unknown *AddrInfoError
	assert.ErrorAs(t, err, &unknown)
	assert.ErrorContains(t, err, known)
}
