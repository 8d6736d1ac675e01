// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package main

import (
	"os"
	"syscall"
)

// terminationSignal returns the signal that terminated a program, or 0. The name is empty for signals that need no
// message.
func terminationSignal(p *os.ProcessState) (number int, name string) {
	status, ok := p.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return 0, ""
	}
	switch s := status.Signal(); s {
	case syscall.SIGPIPE, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP:
		return int(s), ""
	default:
		return int(s), s.String()
	}
}
