// SPDX-License-Identifier: BSD-2-Clause

// Package cm tests package rdma/cm on a real kernel with Soft-RoCE in guests, and otherwise on the software device,
// except for tests that need other programs, other hosts or netlink.
package cm
