// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/rights"
)

// TestWayWithElevatedPrivileges: a program with elevated privileges ignores GOVERBS_CALL.
func TestWayWithElevatedPrivileges(t *testing.T) {
	t.Setenv(EnvCall, "fast")
	for _, more := range []bool{false, true} {
		before := rights.More
		t.Cleanup(func() { rights.More = before })
		rights.More = func() bool { return more }
		_, _, err := WayOf(1, PostSend, "", nil)
		assert.Equal(t, more, err == nil, "%v", err)
	}
}
