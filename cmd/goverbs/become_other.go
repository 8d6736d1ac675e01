// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// become runs a program and waits for it: here no process can become another.
func (o output) become(path string) error { return o.start(exec.Command(path, o.args...), path) }

// endedBy is 0: there are no signals.
func endedBy(*os.ProcessState) (number int, name string) { return 0, "" }
