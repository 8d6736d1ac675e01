// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

// TestMain runs the tests on the software device outside a guest.
func TestMain(m *testing.M) {
	rig.OrSoft()
	rig.Main(m)
}
