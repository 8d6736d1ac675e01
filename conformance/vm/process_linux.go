// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os/exec"
	"runtime"
	"syscall"
)

// start starts a process that the kernel kills when this one ends, so that no QEMU outlives us, and gives what waits
// for its end. The kernel means the thread by that, so one thread starts the process and stays until it has ended.
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
