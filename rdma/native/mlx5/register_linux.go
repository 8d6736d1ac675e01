// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/mlx5"
)

func init() {
	driver.Register(driver.Vendor{ID: uapi.RDMA_DRIVER_MLX5, Open: mlx5.Open, Library: "libmlx5",
		Functions: mlx5.Functions})
}
