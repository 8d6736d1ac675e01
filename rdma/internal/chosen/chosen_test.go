// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestHint: the hint depends on the environment.
func TestHint(t *testing.T) {
	for name, want := range map[string]string{
		"": "set GOVERBS_DEVICE=soft0 in the environment to use the software devices",
		"soft7": "set GOVERBS_DEVICE=soft0 in the environment to use the software devices; " +
			`its value "soft7" is not a software device: for one with an address of this machine, use soft@ADDRESS`,
		"mlx7": "set GOVERBS_DEVICE=soft0 in the environment to use the software devices; " +
			`its value "mlx7" is not a software device`,
		"soft1": `GOVERBS_DEVICE="soft1" applies only to calls without a backend, and runtime.Native is rdma-core`,
		"soft@192.0.2.1": `GOVERBS_DEVICE="soft@192.0.2.1" applies only to calls without a backend, and runtime.Native is ` +
			"rdma-core",
	} {
		t.Setenv(Variable, name)
		assert.Equal(t, want, Hint())
	}
}
