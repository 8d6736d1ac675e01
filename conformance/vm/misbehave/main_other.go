// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command misbehave runs in a guest of conformance/vm, which runs Linux.
package main

func main() { panic("misbehave runs on Linux") }
