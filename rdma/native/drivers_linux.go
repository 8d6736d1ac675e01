// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package native

import (
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/mlx5"
	"github.com/goverbs/goverbs/rdma/native/internal/rxe"
	"github.com/goverbs/goverbs/rdma/native/internal/siw"
)

// drivers are the supported drivers of the kernel. mlx5 needs barriers, which its data path has for these processors.
var drivers = map[uapi.RDMADriverID]driver.Driver{
	uapi.RDMA_DRIVER_RXE:  rxe.Open,
	uapi.RDMA_DRIVER_SIW:  siw.Open,
	uapi.RDMA_DRIVER_MLX5: mlx5.Open,
}
