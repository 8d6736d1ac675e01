// SPDX-License-Identifier: BSD-2-Clause

// Package stress tests that package runtime, and the queues of package rdma, call C without violating invariants of the
// Go runtime. Its worker program, built in several ways, runs in separate processes under storms of signals, garbage
// collections and stop-the-world pauses. The tests of both packages also run for other machines in qemu's user mode.
package stress
