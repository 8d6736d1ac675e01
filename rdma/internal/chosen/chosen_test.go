// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestHint: the hint goes by what the environment says already.
func TestHint(t *testing.T) {
	for name, want := range map[string]string{
		"": "GOVERBS_DEVICE=soft0 in the environment takes the software devices",
		"soft7": "GOVERBS_DEVICE=soft0 in the environment takes the software devices; " +
			`it is "soft7", which none of them is called: one with an address of this machine is soft@ADDRESS`,
		"mlx7": "GOVERBS_DEVICE=soft0 in the environment takes the software devices; " +
			`it is "mlx7", which none of them is called`,
		"soft1":          `GOVERBS_DEVICE="soft1" is for calls that name no backend, and runtime.Native is rdma-core`,
		"soft@192.0.2.1": `GOVERBS_DEVICE="soft@192.0.2.1" is for calls that name no backend, and runtime.Native is rdma-core`,
	} {
		t.Setenv(Variable, name)
		assert.Equal(t, want, Hint())
	}
}
