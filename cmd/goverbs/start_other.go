// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package main

import "os"

// terminationSignal returns 0: this system has no signals.
func terminationSignal(*os.ProcessState) (number int, name string) { return 0, "" }
