// SPDX-License-Identifier: BSD-2-Clause

// Package objects has the tests of package rdma's objects that run in guests, on a real kernel with Soft-RoCE.
package objects
