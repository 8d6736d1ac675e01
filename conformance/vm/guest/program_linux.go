// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// program runs one program until it exits, or kills it at its timeout, and reports whether it failed. An error means
// that the guest cannot continue.
func program(h *host, p wire.Program, env []string) (failed bool, err error) {
	before := resources()
	h.send(wire.Message{Kind: wire.Start, Program: p.Name})
	// with a pipe from exec.Cmd, Wait would wait for a descendant that keeps the pipe open
	r, w, err := os.Pipe()
	if err != nil {
		return false, err
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir = p.Dir
	cmd.Env = append(env, p.Env...)
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		r.Close()
		h.send(wire.Message{Kind: wire.Exit, Program: p.Name, Status: 127, Text: err.Error()})
		return true, nil
	}
	w.Close()
	written := make(chan struct{})
	go func() {
		defer close(written)
		output(h, p.Name, r)
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timedOut, err := await(h, p, cmd.Process.Pid, ended)
	if err != nil {
		return true, err
	}
	// remaining processes of the group would keep the device open
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-written:
	case <-time.After(time.Second):
	}
	r.Close()
	m := wire.Message{Kind: wire.Exit, Program: p.Name, Status: cmd.ProcessState.ExitCode(), TimedOut: timedOut}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		m.Status, m.Signal = 128+int(status.Signal()), status.Signal().String()
	}
	if left := leftover(before); left != "" {
		m.Status, m.Text = max(m.Status, 1), "it has exited, but the kernel still holds "+left
	}
	h.send(m)
	return timedOut || m.Status != 0, nil
}

// resources counts RDMA resources in the kernel, by kind.
func resources() map[string]uint64 {
	sum := map[string]uint64{}
	all, err := netlink.RdmaResourceList()
	if err != nil {
		return sum // the guest has no device
	}
	for _, device := range all {
		for kind, n := range device.RdmaResourceSummaryEntries {
			sum[kind] += n
		}
	}
	return sum
}

// leftover describes resources that the kernel did not hold before, after giving it some time to release them.
func leftover(before map[string]uint64) string {
	var left []string
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left = nil
		for kind, n := range resources() {
			if n > before[kind] {
				left = append(left, fmt.Sprintf("%d %s", n-before[kind], kind))
			}
		}
		if left == nil || time.Now().After(deadline) {
			slices.Sort(left)
			return strings.Join(left, ", ")
		}
	}
}

// await waits until a program exits. On timeout it sends SIGQUIT, on which Go programs print their goroutines, and then
// SIGKILL. If the program survives both, it is stuck in the kernel, and await prints where.
func await(h *host, p wire.Program, pid int, ended <-chan error) (timedOut bool, err error) {
	after := func(d time.Duration) <-chan time.Time {
		if d <= 0 {
			return nil
		}
		return time.After(d)
	}
	// A Go test times out a little earlier and prints its goroutines. The state of its threads in C and in the kernel
	// is printed before that.
	early, late := after(p.Timeout*8/10), after(p.Timeout)
	for over := false; !over; {
		select {
		case <-ended:
			return false, nil
		case <-early:
			h.send(wire.Message{Kind: wire.Output, Program: p.Name, Data: []byte(stuck(pid))})
		case <-late:
			over = true
		}
	}
	h.send(wire.Message{Kind: wire.Late, Program: p.Name})
	for _, stop := range []func() error{
		func() error { return syscall.Kill(pid, syscall.SIGQUIT) },
		func() error { return syscall.Kill(-pid, syscall.SIGKILL) },
	} {
		stop()
		select {
		case <-ended:
			return true, nil
		case <-time.After(stopGrace):
		}
	}
	h.send(wire.Message{Kind: wire.Output, Program: p.Name, Data: []byte(stuck(pid))})
	return true, fmt.Errorf("%s did not exit within %v, nor when it was killed: it is stuck in the kernel", p.Name,
		p.Timeout)
}

// stuck describes the threads of a process: the system call with its arguments, stack pointer and instruction pointer,
// or "running"; the mapped files to which these point; and the kernel stack.
func stuck(pid int) string {
	var b strings.Builder
	files := mappedFiles(pid)
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		stack, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stack", pid, task.Name()))
		if err != nil {
			continue
		}
		call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", pid, task.Name()))
		fmt.Fprintf(&b, "thread %s in system call %s", task.Name(), call)
		for _, word := range strings.Fields(string(call)) {
			for _, f := range files {
				if at, err := strconv.ParseUint(word, 0, 64); err == nil && f.from <= at && at < f.to {
					fmt.Fprintf(&b, "%s is %s+%#x\n", word, f.name, at-f.base)
				}
			}
		}
		b.Write(stack)
	}
	return b.String()
}

// mappedFile is a mapping of a file, or of the anonymous memory for variables that follows it.
type mappedFile struct {
	from, to, base uint64 // base is the address at which the file is loaded
	name           string
}

func mappedFiles(pid int) (all []mappedFile) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	var last mappedFile
	for line := range strings.Lines(string(maps)) {
		var f mappedFile
		var mode, device string
		var offset, inode uint64
		fmt.Sscanf(line, "%x-%x %s %x %s %d %s", &f.from, &f.to, &mode, &offset, &device, &inode, &f.name)
		switch {
		case f.name == "" && f.from == last.to:
			f.name = last.name
		case !strings.HasPrefix(f.name, "/"):
			continue
		}
		if f.base = f.from; f.name == last.name {
			f.base = last.base
		}
		all, last = append(all, f), f
	}
	return all
}
