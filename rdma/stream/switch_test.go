// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// TestSwitch: with GOVERBS_DEVICE=soft0, a program that names no backend runs on the software devices.
func TestSwitch(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	listener, err := Listen(soon(t), "soft1:0")
	require.NoError(t, err)
	assert.Contains(t, listener.Addr().String(), "127.0.0.2:")
	go func() {
		conn, err := listener.Accept()
		if assert.NoError(t, err) {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := Dial(soon(t), listener.Addr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	got, err := io.ReadAll(conn)
	assert.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	assert.NoError(t, conn.Close())
	assert.NoError(t, listener.Close())
}

// TestNilBackendUsesEnvironment: a nil backend selects by GOVERBS_DEVICE. runtime.Native always selects the native
// library.
func TestNilBackendUsesEnvironment(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft1")
	fabric, err := soft.Default()
	require.NoError(t, err)
	config, err := Config{}.complete()
	require.NoError(t, err)
	assert.Same(t, fabric, config.Backend)
	config, err = (Config{Backend: runtime.Native}).complete()
	require.NoError(t, err)
	assert.Equal(t, runtime.Native, config.Backend)
}

// TestSoftwareDeviceOnRequest: a program gets a software device only on request.
func TestSoftwareDeviceOnRequest(t *testing.T) {
	for _, name := range []string{"", "mlx5_0", "soft"} {
		t.Setenv("GOVERBS_DEVICE", name)
		config, err := Config{}.complete()
		require.NoError(t, err)
		kernel, err := rdma.KernelBackend()
		require.NoError(t, err)
		assert.Equal(t, kernel, config.Backend, "%q", name)
	}
}

// TestSoftUnknownAddress: an unknown address fails at once, and the error lists the existing ones.
func TestSoftUnknownAddress(t *testing.T) {
	f := newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Name: "left"},
		{Name: "right", Address: netip.MustParseAddr("10.0.0.2")}}})
	const known = "; the software devices have 10.0.0.2 (right), 127.0.0.1 (left)"
	config, start := Config{Backend: f}, time.Now()
	_, err := dialer(config).Dial(soon(t), "10.0.0.1:7")
	assert.ErrorIs(t, err, syscall.EHOSTUNREACH)
	assert.ErrorContains(t, err, "no device has the address"+known+" in this process; use a device soft@ADDRESS "+
		"to reach others")
	_, err = listening(config).Listen(soon(t), "127.0.0.9:7")
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "not an address of this machine"+known)
	assert.Less(t, time.Since(start), 3*time.Second)
	_, err = dialer(config).Dial(soon(t), "middle:7") // may query a name server, which takes time
	var unknown *cm.AddrInfoError
	assert.ErrorAs(t, err, &unknown)
	assert.ErrorContains(t, err, known)
}

// TestSoftLocalAddress: Dialer.LocalAddr can put the two sides of a stream on two devices.
func TestSoftLocalAddress(t *testing.T) {
	f := newFabric(t, soft.Options{})
	listener, err := listening(Config{Backend: f}).Listen(soon(t), "soft1:0")
	require.NoError(t, err)
	conn, err := (&Dialer{Config: Config{Backend: f}, LocalAddr: netip.MustParseAddrPort("127.0.0.1:0")}).Dial(soon(t),
		listener.Addr().String())
	require.NoError(t, err)
	assert.Contains(t, conn.LocalAddr().String(), "127.0.0.1:")
	peer, err := listener.Accept()
	require.NoError(t, err)
	here, err := conn.id.Device()
	require.NoError(t, err)
	there, err := peer.(*Conn).id.Device()
	require.NoError(t, err)
	assert.Equal(t, []string{"soft0", "soft1"}, []string{here.Name(), there.Name()})
	assert.NoError(t, conn.Close())
	assert.NoError(t, peer.Close())
	assert.NoError(t, listener.Close())
}
