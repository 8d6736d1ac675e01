// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// TestMain runs the tests on the software device outside a guest.
func TestMain(m *testing.M) {
	testbed.OrSoft()
	if os.Getenv(envMainThread) != "" {
		deviceAddresses()
	}
	notCounted := []string{"ctx"}
	if goPath {
		notCounted = append(notCounted, "pd") // librdmacm leaks its PD if a device list is freed last
	}
	testbed.Main(tests{m}, notCounted...)
}

// tests runs the tests, with the data path in Go if the environment selects it. The data path keeps devices, and the
// memory pool of streams, open until the end.
type tests struct{ *testing.M }

var goPath = os.Getenv(wire.EnvPath) == "mlx5"

func (m tests) Run() int {
	if !goPath {
		return m.M.Run()
	}
	list, err := getDevices()
	if err != nil {
		panic(err)
	}
	for _, d := range list.Devices {
		path, err := mlx5.NewPath(d)
		if err != nil {
			panic(err)
		}
		d.UsePath(path)
	}
	status := m.M.Run()
	if err := list.Close(); err != nil {
		panic(err)
	}
	return status
}

// backend returns the backend of the tests: nil for the C library.
var backend = sync.OnceValue(func() runtime.Backend {
	b, err := testbed.Backend()
	if err != nil {
		panic(err)
	}
	return b
})

func createID(ps rdmacm.PortSpace) (*cm.ID, error) { return cm.CreateIDOn(backend(), ps) }

func createEventChannel() (*cm.EventChannel, error) { return cm.CreateEventChannelOn(backend()) }

func getDevices() (*cm.DeviceList, error) { return cm.GetDevicesOn(backend()) }

func getAddrInfo(ctx context.Context, node, service string, h cm.Hints) (*cm.AddrInfo, error) {
	return cm.GetAddrInfoOn(ctx, backend(), node, service, h)
}

// on returns a configuration of streams for the tests' backend, with default timeouts that suit a busy machine.
func on(c stream.Config) stream.Config {
	c.Backend = backend()
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, opTimeout)
	c.Linger = cmp.Or(c.Linger, opTimeout)
	return c
}

func dialer(c stream.Config) *stream.Dialer { return &stream.Dialer{Config: c} }

func listenConfig(c stream.Config) *stream.ListenConfig { return &stream.ListenConfig{Config: c} }

// eachProtocol runs a test of streams for each protocol.
func eachProtocol(t *testing.T, test func(t *testing.T, p stream.Protocol)) {
	t.Helper()
	for _, p := range []stream.Protocol{stream.Stream, stream.RSocket} {
		t.Run(map[stream.Protocol]string{stream.Stream: "stream", stream.RSocket: "rsocket"}[p],
			func(t *testing.T) { test(t, p) })
	}
}

// inGuest skips a test that cannot run on the software device.
func inGuest(t testing.TB, reason string) {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft {
		t.Skip("runs in a guest: " + reason)
	}
}

// envAlone names the test to run in a separate process.
const envAlone = "GOVERBS_CM_ALONE"

// alone reports whether the test has its own process. If not, it runs the test in a new process with a single malloc
// arena, since librdmacm 44.0 sometimes hangs when a device is removed; see TestDeviceListOfLibrdmacm.
func alone(t *testing.T) bool {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft || os.Getenv(envAlone) == t.Name() {
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(withTimeout(t), self, "-test.v", "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), envAlone+"="+t.Name(), oneArena)
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// address returns the IPv4 address of the guest's device, with a port.
func address(t testing.TB, port uint16) netip.AddrPort {
	t.Helper()
	testbed.Kernel(t)
	ip, err := netip.ParseAddr(os.Getenv(wire.EnvAddress))
	require.NoError(t, err)
	return netip.AddrPortFrom(ip, port)
}

// opTimeout is the timeout for operations that should be fast.
const opTimeout = 20 * time.Second

// withTimeout returns a context that ends after opTimeout.
func withTimeout(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	t.Cleanup(cancel)
	return ctx
}

type closer interface{ Close() error }

// keep closes an object when the test ends.
func keep[T closer](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}
