// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets the type checker make more garbage before it is collected: that is a fifth of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}
