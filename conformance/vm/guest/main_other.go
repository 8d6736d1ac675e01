// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command guest is PID 1 of a Linux guest.
package main

func main() { panic("guests of conformance/vm run Linux: build this with GOOS=linux") }
