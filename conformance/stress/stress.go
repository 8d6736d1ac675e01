// SPDX-License-Identifier: BSD-2-Clause

// Package stress proves that package runtime, and the queues of package rdma over it, call C without breaking what Go's
// runtime relies on: its worker program runs in processes of its own, built in several ways, under storms of signals,
// collections and stops of the world. The tests of both packages are run for other machines as well, by qemu's user
// mode.
package stress
