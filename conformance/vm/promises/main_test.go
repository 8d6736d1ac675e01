// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

// TestMain: where there is no guest, the tests run on the software device.
func TestMain(m *testing.M) {
	rig.OrSoft()
	rig.Main(m, "ctx")
}
