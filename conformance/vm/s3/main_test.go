// SPDX-License-Identifier: BSD-2-Clause

package s3

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

// TestMain runs the tests on the software device outside a guest. A client process of TestKilled counts nothing, because
// it is killed.
func TestMain(m *testing.M) {
	if os.Getenv(envServer) != "" {
		os.Exit(m.Run())
	}
	testbed.OrSoft()
	testbed.Main(m)
}
