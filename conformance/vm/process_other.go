// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package vm

import "os/exec"

func start(cmd *exec.Cmd) (wait func() error, err error) { return cmd.Wait, cmd.Start() }
