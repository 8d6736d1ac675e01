// SPDX-License-Identifier: BSD-2-Clause

package gen

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoGenerate runs the real directive: it must work, and find generated/ as it should be already.
func TestGoGenerate(t *testing.T) {
	out, err := exec.Command("go", "generate", "./...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `generated/: \d+ files, which are what rdma-core [\d.]+ and librpma [\d.]+ and linux [\d.]+ give`,
		string(out))
}
