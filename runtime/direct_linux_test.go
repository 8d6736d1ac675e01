// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

package runtime

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDirect checks that the Go releases of the build tag have their records at the offsets that the assembly uses, and
// that calls still work with other offsets.
func TestDirect(t *testing.T) {
	assert.True(t, stacksAreKnown())
	assert.True(t, throwsplitIsKnown())
	assert.Equal(t, os.Getenv("GOVERBS_FULL_TRACEBACK") == "", direct)
	defer func(was bool) { direct = was }(direct)
	for _, direct = range []bool{true, false} {
		assert.NotZero(t, System.Call3(errnoLocation(), 0, 0, 0), direct)
	}
}
