// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain raises the garbage collection target: collection takes a fifth of the type checker's time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}
