// SPDX-License-Identifier: BSD-2-Clause

package rdma_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// GOVERBS_STORM names the device that TestStorm uses instead of a software device; GOVERBS_PATH=mlx5 selects its data
// path in Go. conformance/provider sets both.
func init() {
	name := os.Getenv("GOVERBS_STORM")
	if name == "" {
		return
	}
	rdma.StormOn = func(t *testing.T) *rdma.Device {
		d, err := rdma.Open(name)
		require.NoError(t, err)
		if os.Getenv("GOVERBS_PATH") == "mlx5" {
			path, err := mlx5.NewPath(d)
			require.NoError(t, err)
			d.UsePath(path)
		}
		return d
	}
}
