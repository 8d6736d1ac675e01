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
	Host     string // the executable, on the host
	Source   string // a digest of what it is built from, so far as guests use it, or "": then the executable counts
	Testdata string // a directory of the host that is testdata in the program's directory, or ""
	Args     []string
	Env      []string
	Timeout  time.Duration // 10 min unless given; then it is asked where it is with SIGQUIT, and killed
}

// Guest is a machine that boots an image, runs programs one after the other, and stops.
type Guest struct {
	Image    *Image
	Programs []Program
	Files    []File
	CPUs     int           // 2 unless given
	Memory   int           // MiB; 1024 unless given
	Timeout  time.Duration // of the programs together, from when the guest is ready; what they have each unless given
	Output   io.Writer     // what programs write, as it comes; nil for nothing
	Console  io.Writer     // what the kernel writes, as it comes; nil for nothing
	Log      Logf          // a line about each step
	NoDevice bool          // no RDMA device
	Counted  bool          // the clock counts instructions, so that what is measured does not depend on other load
	Socket   string        // of two guests: the unix socket between them
	Host     int           // of two guests: which, 0 or 1
	Append   string        // more for the kernel's command line
	NVDIMM   string        // a file of the host whose content is persistent memory of the guest, /dev/pmem0, or ""
	// Passed is a directory with notes of programs that have passed, which are not run again while nothing that they
	// run with changes, or "".
	Passed string

	mayBootAgain bool
	bootTime     time.Duration // of the first boot; bootTime unless given
}

// bootTime bounds a boot until init runs, and then until it is ready. Both take 3 to 10 s; the machine may have other
// work.
const bootTime = 90 * time.Second

// ErrNoQEMU says that there is nothing to boot a guest with.
var ErrNoQEMU = errors.New("no qemu-system-x86_64: install it (Debian: apt-get install qemu-system-x86)")

// Run boots the guest, runs its programs and tells how that ended; the error says that it could not be tried. It ends
// within Timeout and the time that boots may take, or when ctx does: then the guest is killed, and nothing is tried
// again. A guest whose kernel never reaches init, or breaks or has a wrong clock before it runs a program, is booted
// again, up to three times.
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
	rest, notes, err := undone(initProgram, g)
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

// prepare writes the guest's initial file system to a directory.
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

// isBadBoot says whether a guest that may be booted again has to be.
func isBadBoot(err error) bool { return errors.Is(err, errClock) || errors.Is(err, errBroke) }

// bootsAgain is how many times a guest is booted again.
var bootsAgain = 3

func (g *Guest) config() wire.Config {
	c := wire.Config{Kernel: g.Image.Kernel, Library: g.Image.Library, Modules: g.Image.Modules, Host: g.Host,
		Pair: g.Socket != "", NoDevice: g.NoDevice}
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

// limit is the time that the programs have: theirs, and what it takes to end each of them.
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

// programTime is what a program has unless it says otherwise.
const programTime = 10 * time.Minute

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// command is QEMU's: no devices but two serial ports, the kernel's console on file descriptor 3 and the line to init on
// 4. KVM is never asked for: where it is there and does not work, it hangs.
func (g *Guest) command(initrd string) []string {
	// A kernel in trouble ends at once (panic=-1 restarts, -no-reboot makes that the end) instead of going on with a
	// broken state. It does not look whether the timer's interrupts come at their times: on a busy machine they do not.
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
	if g.Counted { // which processors that run at the same time cannot do
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

// nvdimm are the arguments for persistent memory. What the guest writes there is not written to the host's file. A
// kernel wants the size to be a multiple of 128 MiB.
func (g *Guest) nvdimm() []string {
	size := int64(0)
	if info, err := os.Stat(g.NVDIMM); err == nil { // or QEMU says what is wrong
		size = info.Size()
	}
	return []string{"-machine", "pc,hpet=off,nvdimm=on", "-m", fmt.Sprintf("%dM,slots=1,maxmem=%dM",
		orDefault(g.Memory, 1024), int64(orDefault(g.Memory, 1024))+size>>20+1024),
		"-object", fmt.Sprintf("memory-backend-file,id=persistent,mem-path=%s,size=%d,share=off", g.NVDIMM, size),
		"-device", "nvdimm,memdev=persistent"}
}

// emulator is QEMU's file.
func emulator() (string, error) {
	file, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", ErrNoQEMU
	}
	return file, nil
}

// buildInit compiles the guest's init: a static program. Without QEMU there is no use for it.
func buildInit(ctx context.Context, dir string) (string, error) {
	if _, err := emulator(); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "init")
	env := append(guestTarget(), "CGO_ENABLED=0")
	return file, goCommand(ctx, moduleRoot(), env, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"./conformance/vm/guest")
}
