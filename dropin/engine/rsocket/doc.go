// SPDX-License-Identifier: BSD-2-Clause

// Package rsocket has the calls of rsocket(7) as programs of C make them: streams of rdma/cm that speak the protocol of
// rsockets, behind descriptors. A thread that has to wait sleeps in the kernel, so that signals end its wait as they do
// in C.
package rsocket
