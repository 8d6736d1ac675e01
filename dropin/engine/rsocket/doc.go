// SPDX-License-Identifier: BSD-2-Clause

// Package rsocket implements rsocket(7) for C programs: streams of rdma/stream that use the rsocket protocol, behind
// descriptors. A thread that has to wait sleeps in the kernel, so that signals end its wait as they do in C.
package rsocket
