// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestNamed: a name with an address opens a device once. Devices with such names share a fabric, which is not Default.
func TestNamed(t *testing.T) {
	shared, name, err := soft.Named("soft@127.0.0.6")
	require.NoError(t, err)
	assert.Equal(t, "soft@127.0.0.6", name)
	defer shared.RemoveDevice(name)
	again, name, err := soft.Named("soft@::ffff:127.0.0.6")
	require.NoError(t, err)
	assert.Equal(t, "soft@127.0.0.6", name)
	assert.Same(t, shared, again)
	device, err := rdma.Open("soft@127.0.0.7")
	require.NoError(t, err)
	defer shared.RemoveDevice("soft@127.0.0.7")
	defer device.Close()
	assert.Equal(t, "soft@127.0.0.7", device.Name())
	assert.Same(t, shared, device.Info().Backend)
	assert.Same(t, shared, soft.Wired())
	own, err := soft.Default()
	require.NoError(t, err)
	assert.NotSame(t, shared, own)
	assert.Len(t, own.Addresses(), 2)
	all, err := rdma.Devices()
	require.NoError(t, err)
	var names []string
	for _, info := range all {
		names = append(names, info.Name)
	}
	assert.Subset(t, names, []string{"soft0", "soft1", "soft@127.0.0.6", "soft@127.0.0.7"})
}

// TestReopenNamed: removing a device releases its port, and the device can be opened again.
func TestReopenNamed(t *testing.T) {
	for range 2 {
		shared, name, err := soft.Named("soft@127.0.0.8")
		require.NoError(t, err)
		_, err = net.ListenPacket("udp", "127.0.0.8:4791")
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.True(t, shared.RemoveDevice(name))
	}
}

// TestInvalidNames: each error explains what is wrong with the name and how to write it.
func TestInvalidNames(t *testing.T) {
	for name, want := range map[string]string{
		"soft@":                "an address of this machine must follow",
		"soft@localhost":       "not the name of a host or an interface",
		"soft@eth0":            "not the name of a host or an interface",
		"soft@127.0.0.1:4791":  "omit the port",
		"soft@[::1]":           "without brackets",
		"soft@127.0.0.1,::1":   "a device has one address",
		"soft@0.0.0.0":         "one address of this machine",
		"soft@224.0.0.1":       "one address of this machine",
		"soft@fe80::1":         "needs its interface",
		"soft@fe80::1%nothing": "nothing",
		"soft@192.0.2.1":       "none of this machine's addresses",
	} {
		_, err := rdma.Open(name)
		require.ErrorContains(t, err, want, name)
		var unknown *rdma.UnknownDeviceError
		assert.False(t, errors.As(err, &unknown), name)
		assert.NotContains(t, err.Error(), "\n")
		t.Setenv("GOVERBS_DEVICE", name)
		_, err = rdma.Open("")
		assert.ErrorContains(t, err, want, name)
		_, err = stream.Listen(t.Context(), "127.0.0.1:0")
		assert.ErrorContains(t, err, want, name)
		assert.ErrorContains(t, err, "GOVERBS_DEVICE", name)
	}
}

// TestNameInUse: the error names the process that uses the port.
func TestNameInUse(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.9:4791")
	require.NoError(t, err)
	_, err = rdma.Open("soft@127.0.0.9")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "127.0.0.9:4791")
	require.ErrorContains(t, err, `"soft.test") uses the port`)
	require.NoError(t, c.Close())
	device, err := rdma.Open("soft@127.0.0.9")
	require.NoError(t, err)
	require.NoError(t, device.Close())
	require.True(t, soft.Wired().RemoveDevice("soft@127.0.0.9"))
}

// TestNamedByEnvironment: programs that select no device and no backend use the one in the environment.
func TestNamedByEnvironment(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft@127.0.0.10")
	device, err := rdma.Open("")
	require.NoError(t, err)
	assert.Equal(t, "soft@127.0.0.10", device.Name())
	require.NoError(t, device.Close())
	defer soft.Wired().RemoveDevice("soft@127.0.0.10")
	b := fabricAt(t, "127.0.0.11")
	l, err := listening(stream.Config{Backend: b}).Listen(t.Context(), "127.0.0.11:0")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan struct{})
	defer func() { <-served }() // close its connection before the fabric
	go func() {
		defer close(served)
		if c, err := l.Accept(); err == nil {
			c.Write([]byte("x"))
			c.Close()
		}
	}()
	c, err := stream.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	assert.Contains(t, c.LocalAddr().String(), "127.0.0.10:")
	n, err := c.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestNamedMTU: the device's MTU fits the interface of its address, not loopback.
func TestNamedMTU(t *testing.T) {
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	seen := 0
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addresses {
			address, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
			name := "soft@" + address.Unmap().String()
			if address.IsLinkLocalUnicast() {
				name += "%" + i.Name
			}
			device, err := rdma.Open(name)
			if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) { // in use, or not ready yet
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, name, device.Name())
			port, err := device.Port(1)
			require.NoError(t, err)
			got := 128 << port.ActiveMTU
			assert.LessOrEqual(t, got+40, i.MTU, name)
			if i.MTU < 8000 {
				assert.Greater(t, 2*got+100, i.MTU, name)
			} else {
				assert.Equal(t, 4096, got, name)
			}
			seen++
			require.NoError(t, device.Close())
			require.True(t, soft.Wired().RemoveDevice(name))
		}
	}
	assert.Positive(t, seen)
}
