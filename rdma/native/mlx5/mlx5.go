// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 adds the driver of mlx5 adapters to package native. Import it for this effect:
//
//	import _ "github.com/goverbs/goverbs/rdma/native/mlx5"
//
// Package rdma/mlx5 imports it. For that package, the driver has mlx5dv_init_obj, mlx5dv_query_device,
// mlx5dv_is_supported, mlx5dv_create_qp, for dynamic connections, and mlx5dv_wr_set_dc_addr of generated/libmlx5.
//
// The driver is for amd64 and arm64, and for kernels that allocate doorbell pages on demand. No adapter has run it: it
// was tested over an emulated kernel and compared with libmlx5.
package mlx5
