// SPDX-License-Identifier: BSD-2-Clause

// Package rpma proves package rpma against librpma, in guests with Soft-RoCE, and alone on the software device.
package rpma

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

// TestMain: where there is no guest, the tests run on the software device. As a program of its own, it watches a
// connection, as rpmapeer.c does.
func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		watcherMain(role, os.Args[1:])
		return
	}
	rig.OrSoft()
	rig.Main(m, "ctx")
}
