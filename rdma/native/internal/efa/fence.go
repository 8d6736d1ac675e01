// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

// The barriers are rdma-core's for each architecture. Go's atomics order memory for other processors, but neither for
// the device nor for stores to its registers.

// flush makes earlier stores reach memory and the device before later stores.
func flush()

// acquire orders earlier loads before later loads.
func acquire()
