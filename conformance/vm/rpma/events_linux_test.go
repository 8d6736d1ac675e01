// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

const (
	inGo   = "Go"
	envNow = "GOVERBS_UNREACHABLE"
)

// eachPair runs a test for each combination of languages of client and server.
func eachPair(t *testing.T, test func(t *testing.T, active, passive string)) {
	inC(t)
	for _, active := range []string{inCAlone, inGo} {
		for _, passive := range []string{inCAlone, inGo} {
			t.Run(active+" to "+passive, func(t *testing.T) { test(t, active, passive) })
		}
	}
}

// watchBoth connects two watchers.
func watchBoth(t *testing.T, at netip.AddrPort, active, passive string) [2]*watcher {
	p := startWatcher(timeout(t), t, passive, watchPassive, at)
	p.expect("ready")
	a := startWatcher(timeout(t), t, active, watch, at)
	a.expect("event 0, result 0")
	p.expect("event 0, result 0")
	return [2]*watcher{a, p}
}

// TestLost removes a device with a connection, which both sides then lose. The kernel may also close one side first,
// whose disconnect then reaches the other.
func TestLost(t *testing.T) {
	eachPair(t, func(t *testing.T, active, passive string) {
		spare := testbed.Open(t).Spare()
		at, _ := netip.AddrFromSlice(spare.Address.To4())
		watchers := watchBoth(t, netip.AddrPortFrom(at, 7660), active, passive)
		removed := make(chan error, 1)
		go func() { removed <- spare.Remove() }() // Remove waits until both sides have closed it
		const lost, closed = "event 2, result 0", "event 1, result 0"
		output := []string{watchers[0].next(), watchers[1].next()}
		assert.Contains(t, output, lost)
		assert.Subset(t, []string{lost, closed}, output)
		for _, w := range watchers {
			w.stop()
		}
		require.NoError(t, <-removed)
	})
}

// TestUndefined checks that an event that librpma does not know, an address change of the device, is reported as
// undefined with an unknown error.
func TestUndefined(t *testing.T) {
	eachPair(t, func(t *testing.T, active, passive string) {
		bond := testbed.NewBond(t)
		t.Cleanup(func() { require.NoError(t, bond.Remove()) })
		watchers := watchBoth(t, netip.AddrPortFrom(bond.Address, 7661), active, passive)
		bond.FailOver()
		for _, w := range watchers {
			w.expect("event -1, result -100000")
		}
		for _, w := range watchers {
			w.stop()
		}
	})
}

// TestUnreachable connects to an address that does not respond.
func TestUnreachable(t *testing.T) {
	inC(t)
	if os.Getenv(envNow) == "" {
		t.Skip("the kernel retries 16 times in 70 s: run vmtest -counted -cpus 1 -env " + envNow +
			"=1, with which idle time passes quickly")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// The network device accepts packets to any neighbor. This neighbor does not exist.
	unused := netip.AddrPortFrom(address(0).Addr().Next(), 7662)
	var all []*watcher
	for _, language := range []string{inCAlone, inGo} {
		all = append(all, startWatcher(ctx, t, language, watch, unused))
	}
	start := time.Now()
	for _, w := range all {
		w.expect("event 4, result 0")
		w.stop()
	}
	t.Logf("after %v", time.Since(start))
}
