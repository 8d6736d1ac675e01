// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReleaseInFileNames(t *testing.T) {
	for name, release := range map[string]string{
		"libmlx5.so.1.27.65.0": "65.0", "libmlx5.so.1.24.44.0": "44.0", "libmlx5.so.1.25.56.1": "56.1",
		"libmlx5.so.1": "", "libmlx5.so.1.25": "", "libmlx5.so.1.25.2407mlnx52.0": "", "libmlx5-rdmav34.so": "",
		"libibverbs.so.1.15.65.0": "", "": "",
	} {
		assert.Equal(t, release, releaseIn(name), name)
	}
	for i, release := range []string{"9.0", "43.9", "44.0", "44.1", "100.0"} {
		assert.Equal(t, i < 2, older(release, "44.0"), release)
	}
}
