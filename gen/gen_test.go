// SPDX-License-Identifier: BSD-2-Clause

package gen

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoGenerate runs the go:generate directive and checks that generated/ is up to date.
func TestGoGenerate(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	out, err := exec.Command("go", "generate", "./...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `generated/: \d+ files, up to date with rdma-core [\d.]+ and librpma [\d.]+ and linux [\d.]+`,
		string(out))
}
