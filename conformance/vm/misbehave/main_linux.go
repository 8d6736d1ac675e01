// SPDX-License-Identifier: BSD-2-Clause

// Command misbehave fails in the way that its argument names, to test that the runner distinguishes the failures of a
// guest.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if os.Getenv(wire.EnvGuest) == "" {
		fmt.Fprintln(os.Stderr, "misbehave runs in a guest of conformance/vm")
		os.Exit(2)
	}
	if name != "holder" {
		fmt.Println("misbehave", name)
	}
	switch name {
	case "panic": // crash the kernel
		must(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
	case "oom":
		var all [][]byte
		for {
			block := make([]byte, 16<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			all = append(all, block)
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "deaf": // ignore signals, with a child that keeps the output open
		_, err := syscall.ForkExec("/proc/self/exe", []string{"misbehave", "sleep"},
			&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
		must(err)
		time.Sleep(time.Hour)
	case "hold": // leave a process that has the device open
		ready, w, err := os.Pipe()
		must(err)
		_, err = syscall.ForkExec("/proc/self/exe", []string{"misbehave", "holder"}, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, w.Fd(), 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		must(err)
		_, err = ready.Read(make([]byte, 1))
		must(err)
	case "holder":
		var n int32
		list, err := libibverbs.GetDeviceList(&n)
		must(err)
		context, err := libibverbs.OpenDevice(list.Deref())
		must(err)
		_, err = libibverbs.AllocPD(context)
		must(err)
		fmt.Println("holds")
		time.Sleep(time.Hour)
	case "killed":
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		time.Sleep(time.Hour)
	case "leave":
		must(os.MkdirAll(filepath.Join(os.Getenv(wire.EnvOut), "below"), 0o755))
		must(os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "below", "left"), []byte("as it was\n\x00\xff"), 0o644))
		text, err := os.ReadFile("testdata/given")
		fmt.Printf("%s%v\n", text, err)
	default:
		status, err := strconv.Atoi(name)
		must(err)
		os.Exit(status)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}
