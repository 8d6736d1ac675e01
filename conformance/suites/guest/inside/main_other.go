// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command inside runs suites in a Linux guest.
package main

func main() { panic("inside runs in Linux guests: build it with GOOS=linux") }
