// SPDX-License-Identifier: BSD-2-Clause

package mlx5_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/vendorrig"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// TestOtherDevices: NewPath rejects devices of other providers without calling their functions.
func TestOtherDevices(t *testing.T) {
	_, fake, _, _ := vendorrig.Open(t)
	soft, err := rdma.Open("soft0")
	soft = vendorrig.Keep(t, soft, err)
	for _, d := range []*rdma.Device{fake, soft} {
		_, err := mlx5.NewPath(d)
		assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
		assert.ErrorContains(t, err, d.Name()+": no data path in Go: the device is not mlx5's")
	}
}
