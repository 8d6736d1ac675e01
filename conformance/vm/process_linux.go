// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os/exec"
	"runtime"
	"syscall"
)

// start starts a process that the kernel kills when this one exits, so that no QEMU process outlives it, and returns a
// function that waits for it. The parent death signal is bound to the thread, so a single thread starts the process and
// lives until the process has exited.
func start(cmd *exec.Cmd) (wait func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	return func() error { return <-done }, <-started
}
