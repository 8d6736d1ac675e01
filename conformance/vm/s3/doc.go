// SPDX-License-Identifier: BSD-2-Clause

// Package s3 tests package s3rdma on a real kernel with Soft-RoCE, in guests.
package s3
