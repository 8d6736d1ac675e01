// SPDX-License-Identifier: BSD-2-Clause

//go:build !amd64 && !arm64

package direct

import "unsafe"

// supported is false because this architecture has no barriers here, so a device could see stores in any order.
const supported = false

func publish(*uint32, uint32)                               { panic("no barriers") }
func ring(*uint32, uint32, unsafe.Pointer, unsafe.Pointer)  { panic("no barriers") }
func flame(*uint32, uint32, unsafe.Pointer, unsafe.Pointer) { panic("no barriers") }
func copyBlock(unsafe.Pointer, unsafe.Pointer)              { panic("no barriers") }
func flush()                                                { panic("no barriers") }
func acquire()                                              { panic("no barriers") }
