// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

// The barriers are rdma-core's for each architecture. Go's atomics order memory for other processors, but neither for
// the device nor for stores to its registers; on amd64 they would also lock the bus.

// ring stores a doorbell, after all earlier stores and before later ones.
//
//go:noescape
func ring(bell *uint32, value uint32)

// acquire orders earlier loads before later loads.
func acquire()
