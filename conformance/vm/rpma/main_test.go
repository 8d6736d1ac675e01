// SPDX-License-Identifier: BSD-2-Clause

// Package rpma proves package rpma against librpma, in guests with Soft-RoCE, and alone on the software device.
package rpma

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/rig"
)

// envRole makes the test program one of programs.
const envRole = "GOVERBS_RPMA_ROLE"

var programs = map[string]func(args []string){}

// TestMain: where there is no guest, the tests run on the software device. As a program of its own, it plays a role of
// rpmapeer.c.
func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		programs[role](os.Args[1:])
		return
	}
	rig.OrSoft()
	rig.Main(m, "ctx")
}
