// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

// TestMain runs the tests on the software device outside a guest.
func TestMain(m *testing.M) {
	testbed.OrSoft()
	testbed.Main(m, "ctx")
}
