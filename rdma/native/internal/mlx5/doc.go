// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 is the driver of mlx5 adapters: the private parts of commands, and queues in the memory of the process.
// Package direct posts and polls.
//
// No adapter has run it. conformance/provider compares its commands, queues and doorbells with those of libmlx5 over an
// emulated kernel.
package mlx5
