// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command guest is PID 1 of a guest, which runs Linux.
package main

func main() { panic("conformance/vm's guests run Linux: build this with GOOS=linux") }
