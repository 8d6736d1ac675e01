// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("rapid.nofailfile", "true")
	os.Exit(m.Run())
}
