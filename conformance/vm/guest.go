// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// Program is a program to run in a guest.
type Program struct {
	Name     string
	Host     string // executable on the host
	Source   string // digest of its sources, if known; otherwise the executable is hashed
	Testdata string // directory on the host for testdata in the program's directory; optional
	Args     []string
	Env      []string
	Timeout  time.Duration // default 10 min; on timeout the program gets SIGQUIT and later SIGKILL
}

// Guest is a virtual machine that boots an image, runs programs one after another, and stops.
type Guest struct {
	Image    *Image
	Programs []Program
	Files    []File
	CPUs     int           // default 2
	Memory   int           // MiB; default 1024
	Timeout  time.Duration // timeout of all programs, starting when the guest is ready; default: the sum of theirs
	Output   io.Writer     // optional: output of the programs, as it arrives
	Console  io.Writer     // optional: output of the kernel, as it arrives
	Log      Logf          // optional: progress
	NoDevice bool          // no RDMA device
	Counted  bool          // the clock counts instructions, so that measurements do not depend on the load of the host
	Socket   string        // for a pair: Unix socket that connects the guests
	Host     int           // for a pair: number of this guest, 0 or 1
	Append   string        // additional kernel parameters
	NVDIMM   string        // optional: file on the host with the content of /dev/pmem0
	// Passed is an optional directory that records which programs have passed. They are skipped until one of their
	// inputs changes.
	Passed string

	mayBootAgain bool
	failed       func()        // optional: called when a program or init has failed
	bootTime     time.Duration // limit for the first boot; default bootTime
}

// bootTime limits the boot of the kernel until init runs, and then the time until init is ready. Each takes 3 to 10 s
// on an idle host.
const bootTime = 90 * time.Second

// ErrNoQEMU means that QEMU is not installed.
var ErrNoQEMU = errors.New("no qemu-system-x86_64: install it (Debian: apt-get install qemu-system-x86)")

// Run boots the guest, runs its programs and returns the outcome. An error means that the guest could not be run. Run
// returns within Timeout plus the boot times, or when ctx ends; it then kills the guest and does not retry. If the
// kernel never reaches init, or crashes or has a wrong clock before it runs a program, the guest is booted again, up to
// three times.
func (g *Guest) Run(ctx context.Context) (*Outcome, error) {
	dir, err := os.MkdirTemp("", "goverbs-vm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	initProgram, err := buildInit(ctx, dir)
	if err != nil {
		return nil, err
	}
	rest, notes, err := notPassed(initProgram, g)
	if err != nil {
		return nil, err
	}
	if len(rest) == 0 && len(g.Programs) > 0 {
		return &Outcome{Kind: Passed, Before: true}, nil
	}
	own := *g
	own.Programs = rest
	initrd, err := own.prepare(dir, initProgram)
	if err != nil {
		return nil, err
	}
	for again := bootsAgain; ; again-- {
		own.mayBootAgain = again > 0
		own.Append, own.bootTime = g.Append, g.bootTime
		o, err := own.boot(ctx, initrd)
		if !isBadBoot(err) {
			notes.write(o)
			return o, err
		}
		g.bootTime = 0
		g.Log.printf("%v: booting again", err)
	}
}

// prepare writes the guest's initramfs to a directory.
func (g *Guest) prepare(dir, initProgram string) (initrd string, err error) {
	files, _, err := g.Image.initramfs(initProgram, g.config(), g.Programs, g.Files)
	if err != nil {
		return "", err
	}
	initrd = filepath.Join(dir, "initrd-"+strconv.Itoa(g.Host))
	if err := os.WriteFile(initrd, files, 0o600); err != nil {
		return "", err
	}
	g.Log.printf("Linux %s with rdma-core %s: %d modules, %d programs, %.1f MB", g.Image.Version, g.Image.Library,
		len(g.Image.Modules), len(g.Programs), float64(len(files))/1e6)
	return initrd, nil
}

// isBadBoot reports whether the guest has to be booted again.
func isBadBoot(err error) bool { return errors.Is(err, errClock) || errors.Is(err, errBroke) }

// bootsAgain limits how often a guest is booted again.
var bootsAgain = 3

func (g *Guest) config() wire.Config {
	c := wire.Config{Kernel: g.Image.Kernel, Library: g.Image.Library, Modules: g.Image.Modules, Host: g.Host,
		Driver: g.Image.driver(), Pair: g.Socket != "", NoDevice: g.NoDevice}
	if g.NoDevice {
		c.Modules = nil
	}
	if g.NVDIMM != "" {
		c.Modules = append(slices.Clip(c.Modules), g.Image.NVDIMM...)
	}
	for n, p := range g.Programs {
		dir := path.Join("/programs", strconv.Itoa(n))
		c.Programs = append(c.Programs, wire.Program{
			Name: p.Name, Path: path.Join(dir, filepath.Base(p.Host)), Dir: dir, Args: p.Args, Env: p.Env,
			Timeout: orDefault(p.Timeout, programTime),
		})
	}
	return c
}

// limit returns the time for all programs, including the time to end each of them.
func (g *Guest) limit() time.Duration {
	if g.Timeout != 0 {
		return g.Timeout
	}
	sum := time.Duration(0)
	for _, p := range g.Programs {
		sum += orDefault(p.Timeout, programTime) + 15*time.Second
	}
	return sum
}

// programTime is the default timeout of a program.
const programTime = 10 * time.Minute

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// command returns QEMU's command line. The only devices are two serial ports: the console of the kernel on file
// descriptor 3, and the connection to init on 4. KVM is never used, since it hangs where it is present but broken.
func (g *Guest) command(initrd string) []string {
	// A kernel fault ends the guest (panic=-1 restarts, and -no-reboot turns that into an exit), so that it does not
	// continue in a broken state. The check of the timer interrupt is disabled, since it fails on a busy host.
	line := "console=ttyS0 loglevel=5 panic=-1 oops=panic rdinit=/init nokaslr mitigations=off random.trust_cpu=on " +
		"tsc=reliable no_timer_check audit=0 cryptomgr.notests"
	if g.Append != "" {
		line += " " + g.Append
	}
	args := []string{
		"-accel", "tcg,thread=multi", "-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+pclmulqdq,+rdrand,+rdtscp",
		"-machine", "pc,hpet=off", "-smp", strconv.Itoa(orDefault(g.CPUs, 2)), "-m",
		strconv.Itoa(orDefault(g.Memory, 1024)),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-kernel", g.Image.kernelFile(), "-initrd", initrd, "-append", line,
		"-chardev", "file,id=console,path=/proc/self/fd/3", "-serial", "chardev:console",
		"-chardev", "file,id=line,path=/proc/self/fd/4", "-serial", "chardev:line",
	}
	if g.Counted { // impossible with processors that run in parallel
		args[1] = "tcg,thread=single"
		args = append(args, "-icount", "shift=0,sleep=off,align=off")
	}
	if g.NVDIMM != "" {
		args = append(args, g.nvdimm()...)
	}
	if g.Socket != "" {
		server := "on"
		if g.Host != 0 {
			server = "off"
		}
		args = append(args,
			"-netdev", "stream,id=peer,server="+server+",addr.type=unix,addr.path="+g.Socket,
			"-device", fmt.Sprintf("virtio-net-pci,netdev=peer,romfile=,mac=52:54:00:77:00:%02x", 1+g.Host))
	}
	return args
}

// nvdimm returns the arguments for persistent memory. Writes of the guest do not reach the host's file. The kernel
// requires that the size is a multiple of 128 MiB.
func (g *Guest) nvdimm() []string {
	size := int64(0)
	if info, err := os.Stat(g.NVDIMM); err == nil { // otherwise, QEMU reports the error
		size = info.Size()
	}
	return []string{"-machine", "pc,hpet=off,nvdimm=on", "-m", fmt.Sprintf("%dM,slots=1,maxmem=%dM",
		orDefault(g.Memory, 1024), int64(orDefault(g.Memory, 1024))+size>>20+1024),
		"-object", fmt.Sprintf("memory-backend-file,id=persistent,mem-path=%s,size=%d,share=off", g.NVDIMM, size),
		"-device", "nvdimm,memdev=persistent"}
}

// emulator returns the path of QEMU.
func emulator() (string, error) {
	file, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", ErrNoQEMU
	}
	return file, nil
}

// buildInit compiles the guest's init as a static program.
func buildInit(ctx context.Context, dir string) (string, error) {
	if _, err := emulator(); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "init")
	env := append(guestTarget(), "CGO_ENABLED=0")
	return file, goCommand(ctx, moduleRoot(), env, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"./conformance/vm/guest")
}
