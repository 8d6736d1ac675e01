// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command misbehave runs in a Linux guest of conformance/vm.
package main

func main() { panic("misbehave runs on Linux") }
