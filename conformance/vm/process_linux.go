// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os/exec"
	"runtime"
	"syscall"
)

// start starts a process that the kernel kills when this one exits, so that no QEMU outlives it, and returns a function
// that waits for it. The parent death signal follows the thread, so one thread starts the process and stays until it
// has exited.
func start(cmd *exec.Cmd) (wait func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return func() error { return <-ended }, <-started
}
