// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"flag"
	"os"
)

// A plain go test runs fewer random programs than make test, which sets RAPID_CHECKS.
func init() {
	if os.Getenv("RAPID_CHECKS") == "" {
		flag.Set("rapid.checks", "15")
	}
}
