// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import "unsafe"

// supported says that the barriers below are there.
const supported = true

// The barriers are those of rdma-core for each processor. Go's own atomics order what processors see of each other's
// stores; a device is no processor, and its registers are memory of another kind.

// publish stores a doorbell record, after everything that was written before, and before what is written to a register.
//
//go:noescape
func publish(record *uint32, value uint32)

// ring is publish, and stores the first 8 bytes of a control segment in a register; they leave the processor before
// anything else that is written.
//
//go:noescape
func ring(record *uint32, value uint32, register, control unsafe.Pointer)

// flame is ring with the first 64 bytes of a request.
//
//go:noescape
func flame(record *uint32, value uint32, register, request unsafe.Pointer)

// copyBlock copies 64 bytes to a register.
//
//go:noescape
func copyBlock(to, from unsafe.Pointer)

// flush has what was stored in registers leave the processor.
//
//go:noescape
func flush()

// acquire keeps loads behind it from being done before loads in front of it.
//
//go:noescape
func acquire()
