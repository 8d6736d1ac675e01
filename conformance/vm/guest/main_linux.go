// SPDX-License-Identifier: BSD-2-Clause

// Command guest is PID 1 of a guest: it mounts file systems, loads modules, creates the RDMA device, runs the programs
// in order and reports their results to the host.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// host is the connection to the host.
type host struct {
	mu   sync.Mutex
	port *os.File
}

func (h *host) send(m wire.Message) {
	if text, err := os.ReadFile("/proc/uptime"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		m.Uptime, _ = strconv.ParseFloat(first, 64)
	}
	line, err := json.Marshal(m)
	if err != nil {
		line = fmt.Appendf(nil, `{"kind":"failed","text":%q}`, err.Error())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.port.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "goverbs guest: write to host:", err)
	}
}

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the init of guests of conformance/vm: it runs only as PID 1 of a guest")
		os.Exit(2)
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "goverbs guest:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "goverbs guest: power off:", err)
	}
	select {}
}

func run() error {
	if err := mounts(); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	h := &host{port: port}
	defer port.Sync()
	if err := work(h); err != nil {
		h.send(wire.Message{Kind: wire.Failed, Text: err.Error()})
		return err
	}
	h.send(wire.Message{Kind: wire.Done})
	return nil
}

func work(h *host) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	h.send(wire.Message{Kind: wire.Boot, Text: unix.ByteSliceToString(uts.Release[:])})
	var config wire.Config
	text, err := os.ReadFile(wire.ConfigFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", wire.ConfigFile, err)
	}
	if err := settings(); err != nil {
		return err
	}
	if !config.NoDevice {
		for _, name := range config.Modules {
			if err := load(name); err != nil {
				return err
			}
		}
	}
	env, err := network(config)
	if err != nil {
		return err
	}
	h.send(wire.Message{Kind: wire.Ready, Text: strings.Join(env, " ")})
	for _, p := range config.Programs {
		failed, err := program(h, p, append(environment(config), env...))
		if err != nil {
			return err
		}
		if err := sendFiles(h); err != nil {
			return err
		}
		// otherwise the next program would wait for the other guest, which is still in this one
		if failed && config.Pair {
			return nil
		}
	}
	return nil
}

func mounts() error {
	for _, m := range []struct{ source, target, kind, data string }{
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"tmpfs", "/tmp", "tmpfs", ""},
		{"tmpfs", wire.OutDir, "tmpfs", ""},
		{"tmpfs", "/dev/shm", "tmpfs", ""},
		{"debugfs", "/sys/kernel/debug", "debugfs", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	for target, link := range map[string]string{"/proc/self/fd": "/dev/fd", "/proc/self/fd/0": "/dev/stdin",
		"/proc/self/fd/1": "/dev/stdout", "/proc/self/fd/2": "/dev/stderr"} {
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// openPort opens the connection to the host as a raw terminal.
func openPort() (*os.File, error) {
	fd, err := unix.Open(wire.Port, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", wire.Port, err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", wire.Port, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", wire.Port, err)
	}
	return os.NewFile(uintptr(fd), wire.Port), nil
}

// settings sets kernel parameters that tests need, and those that make a hung kernel print diagnostics.
func settings() error {
	for file, value := range map[string]string{
		"/proc/sys/kernel/sysrq":                     "1",
		"/proc/sys/kernel/hung_task_timeout_secs":    "20",
		"/proc/sys/net/ipv6/conf/default/accept_dad": "0", // IPv6 addresses are usable immediately
		"/proc/sys/net/ipv4/conf/all/rp_filter":      "0",
		"/proc/sys/net/ipv4/conf/all/accept_local":   "1",
	} {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}

func load(name string) error {
	f, err := os.Open(filepath.Join(wire.ModuleDir, name+".ko"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("module %s: %w", name, err)
	}
	return nil
}

func environment(c wire.Config) []string {
	return []string{
		"PATH=/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "LC_ALL=C", "USER=root",
		wire.EnvGuest + "=" + c.Kernel, wire.EnvLibrary + "=" + c.Library, wire.EnvHost + "=" + strconv.Itoa(c.Host),
		wire.EnvOut + "=" + wire.OutDir,
	}
}

// sendFiles sends the programs' output files to the host.
func sendFiles(h *host) error {
	return filepath.Walk(wire.OutDir, func(file string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(wire.OutDir, file)
		if err != nil {
			return err
		}
		h.send(wire.Message{Kind: wire.File, Text: name, Data: data})
		return os.Remove(file)
	})
}

// output forwards the output of a program to the host.
func output(h *host, program string, from io.Reader) {
	buf := make([]byte, 8192)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			h.send(wire.Message{Kind: wire.Output, Program: program, Data: buf[:n]})
		}
		if err != nil {
			return
		}
	}
}

// stopGrace is how long a program may take to exit after SIGQUIT, and again after SIGKILL.
const stopGrace = 5 * time.Second
