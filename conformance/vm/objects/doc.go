// SPDX-License-Identifier: BSD-2-Clause

// Package objects tests the objects of package rdma on a real kernel with Soft-RoCE, in guests.
package objects
