package cm

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

func TestMain(m *testing.M) { rig.Main(m, "ctx") }

// address is the guest's own, on the device, with a port.
func address(t testing.TB, port uint16) netip.AddrPort {
	t.Helper()
	rig.Kernel(t)
	ip, err := netip.ParseAddr(os.Getenv(wire.EnvAddress))
	require.NoError(t, err)
	return netip.AddrPortFrom(ip, port)
}

// soon is a context that ends when something takes far too long.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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
