// SPDX-License-Identifier: BSD-2-Clause

// Package rdmatest helps tests of programs that use package rdma: software devices that end with the test, queue pairs
// that are connected, and time that need not pass.
package rdmatest

import (
	"testing"
	"time"

	"github.com/goverbs/goverbs/rdma/soft"
)

// NewFabric returns a fabric for this test only, for rdma.OpenOn and stream.Config. At the end of the test it fails the
// test if an object is not closed, and reports the object and where it was created; then it closes the fabric.
// Functions that the test passes to Cleanup after this call run before that. Queue pairs have exactly the requested
// capacities (soft.Options.ExactCaps).
func NewFabric(t testing.TB, o soft.Options) *soft.Fabric {
	t.Helper()
	o.Trace, o.ExactCaps = true, true
	fabric, err := soft.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Helper()
		// a connection that its peer closed may still be on its way out of another goroutine
		for deadline := time.Now().Add(grace); len(fabric.Resources()) > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		for _, held := range fabric.Held() {
			t.Errorf("not closed: %s", held)
		}
		if len(fabric.Resources()) == 0 {
			if err := fabric.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return fabric
}

// grace is the time that goroutines have to close their objects.
const grace = 200 * time.Millisecond

// Sleep waits until the fabric's clock has advanced by a duration. A virtual clock is advanced, which takes no real
// time and runs everything that is due.
func Sleep(fabric *soft.Fabric, d time.Duration) {
	until := fabric.Now() + d
	fabric.Advance(d)
	time.Sleep(until - fabric.Now())
}
