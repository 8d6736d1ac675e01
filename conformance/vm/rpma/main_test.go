// SPDX-License-Identifier: BSD-2-Clause

// Package rpma proves package rpma against librpma, in guests with Soft-RoCE, and alone on the software device.
package rpma

import (
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

// TestMain: where there is no guest, the tests run on the software device.
func TestMain(m *testing.M) {
	rig.OrSoft()
	rig.Main(m, "ctx")
}
