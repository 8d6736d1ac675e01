// SPDX-License-Identifier: BSD-2-Clause

// Package rdmatest supports tests of programs that use package rdma, with software devices that are closed when the
// test ends, connected queue pairs, and virtual time.
package rdmatest

import (
	"testing"
	"time"

	"github.com/goverbs/goverbs/rdma/soft"
)

// NewFabric returns a fabric for one test, for rdma.OpenOn and stream.Config. When the test ends, after functions that
// the test has passed to Cleanup since, it reports objects that are not closed, with the place where they were created,
// fails the test, and closes the fabric. Queue pairs have exactly the requested capacities (soft.Options.ExactCaps).
func NewFabric(t testing.TB, o soft.Options) *soft.Fabric {
	t.Helper()
	o.Trace, o.ExactCaps = true, true
	fabric, err := soft.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Helper()
		// another goroutine may still be releasing a connection that its peer closed
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

// grace is how long NewFabric waits for goroutines to close their objects.
const grace = 200 * time.Millisecond

// Sleep waits until the fabric's clock has advanced by a duration. A virtual clock advances at once, and everything
// that is due runs.
func Sleep(fabric *soft.Fabric, d time.Duration) {
	until := fabric.Now() + d
	fabric.Advance(d)
	time.Sleep(until - fabric.Now())
}
