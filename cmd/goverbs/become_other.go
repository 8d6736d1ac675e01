// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package main

import "os/exec"

// become runs a program and waits for it: here no process can become another.
func (o output) become(path string) error { return o.start(exec.Command(path, o.args...)) }
