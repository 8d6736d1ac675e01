// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Command inside runs suites in a Linux guest.
package main

func main() { panic("this runs in guests, which run Linux: build it with GOOS=linux") }
