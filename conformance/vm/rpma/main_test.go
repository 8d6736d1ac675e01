// SPDX-License-Identifier: BSD-2-Clause

// Package rpma tests package rpma against librpma, in guests with Soft-RoCE, and against itself on the software device.
package rpma

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

// envRole makes the test program run a role.
const envRole = "GOVERBS_RPMA_ROLE"

var programs = map[string]func(args []string){}

// TestMain runs the tests on the software device outside a guest. In a separate process it runs a role of rpmapeer.c.
func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		programs[role](os.Args[1:])
		return
	}
	testbed.OrSoft()
	testbed.Main(m, "ctx")
}
