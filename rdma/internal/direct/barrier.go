// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import "unsafe"

// supported reports whether this architecture has the barriers below.
const supported = true

// These are rdma-core's barriers. Go's atomics order stores for other processors only, but a device is not a processor,
// and its registers are a different kind of memory.

// publish stores a doorbell record, after all earlier stores and before later stores to a register.
//
//go:noescape
func publish(record *uint32, value uint32)

// ring is publish followed by a store of the first 8 bytes of a control segment to a register. They leave the processor
// before any later store.
//
//go:noescape
func ring(record *uint32, value uint32, register, control unsafe.Pointer)

// flame is ring that stores the first 64 bytes of a request.
//
//go:noescape
func flame(record *uint32, value uint32, register, request unsafe.Pointer)

// copyBlock copies 64 bytes to a register.
//
//go:noescape
func copyBlock(to, from unsafe.Pointer)

// flush makes earlier stores to registers leave the processor.
//
//go:noescape
func flush()

// acquire orders earlier loads before later loads.
//
//go:noescape
func acquire()
