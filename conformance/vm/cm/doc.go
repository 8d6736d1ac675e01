// SPDX-License-Identifier: BSD-2-Clause

// Package cm has the tests of package rdma/cm that run in guests, on a real kernel with Soft-RoCE, and where there is
// no guest on the software device, but for those with other programs, other machines or netlink.
package cm
