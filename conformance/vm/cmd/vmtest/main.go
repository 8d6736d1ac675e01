// SPDX-License-Identifier: BSD-2-Clause

// Command vmtest runs tests and programs of this module on a real kernel with Soft-RoCE, or Soft-iWARP (-driver siw), in
// a guest that QEMU emulates:
//
//	go run ./conformance/vm/cmd/vmtest -kernel 6.12 -- ./rdma/... -run X
//
// Packages and files come first. Arguments from the first flag on, or after another --, are for the test programs;
// flags of go test are recognized. A path with a slash that is a file and not a package pattern is a program to run
// unchanged. The exit status is 0 if all passed, that of a failed program, 124 if the guest or a program hung, 126 if
// the kernel failed, 137 if memory ran out, 125 if the guest could not run, and 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/conformance/vm"
)

type options struct {
	kernels string
	driver  string
	fetch   bool
	drivers bool
	console bool
	timeout time.Duration
	cpus    int
	memory  int
	counted bool
	pair    bool
	nvdimm  string
	out     string
	env     []string
	build   []string
	files   []string
	with    []string
	roots   []string
	again   bool
	retries int
}

func main() {
	var o options
	set := flag.NewFlagSet("vmtest", flag.ContinueOnError)
	set.StringVar(&o.kernels, "kernel", "6.1", "comma-separated kernels to run on: "+strings.Join(vm.KernelNames(),
		", ")+" or all")
	set.StringVar(&o.driver, "driver", vm.RXE, "driver of the guest's RDMA device: "+vm.RXE+", or "+vm.SIW+
		", which is built from the kernel's source")
	set.BoolVar(&o.fetch, "fetch", false, "only download the kernels into the cache")
	set.BoolVar(&o.drivers, "drivers", false, "with -fetch, also download the drivers of adapters, for gen ioctls")
	set.BoolVar(&o.console, "console", false, "print the console output of the kernel")
	set.DurationVar(&o.timeout, "timeout", 5*time.Minute,
		"timeout of each program; it then gets SIGQUIT and is killed")
	set.IntVar(&o.cpus, "cpus", 2, "processors of the guest")
	set.IntVar(&o.memory, "memory", 1024, "memory of the guest in MiB")
	set.BoolVar(&o.counted, "counted", false,
		"make the guest's clock count instructions, so that measurements do not depend on the host's load")
	set.BoolVar(&o.pair, "pair", false,
		"boot two connected guests; both run the programs, with $GOVERBS_HOST 0 and 1, and end when one "+
			"fails")
	set.StringVar(&o.nvdimm, "nvdimm", "",
		"`file` with the content of the guest's persistent memory, /dev/pmem0; the guest does not change it")
	set.BoolVar(&o.again, "again", true, "also run programs that passed and have not changed since")
	set.IntVar(&o.retries, "retries", 0, "number of additional boots for programs that failed; "+
		"a pass after a failure is reported as a flake")
	set.StringVar(&o.out, "out", "", "directory for the files in $GOVERBS_OUT")
	set.Func("env", "environment variable `name=value` for the programs; may be repeated",
		func(s string) error { o.env = append(o.env, s); return nil })
	set.Func("build", "`flag` for go build and go test -c, such as -tags=x; may be repeated",
		func(s string) error { o.build = append(o.build, s); return nil })
	set.Func("file", "`host=guest`: path of an additional file on the host and in the guest; may be repeated",
		func(s string) error { o.files = append(o.files, s); return nil })
	set.Func("with",
		"`package or file.c`: a Go program, or a C program for libibverbs and librdmacm, to install in the "+
			"guest's /usr/bin; may be repeated",
		func(s string) error { o.with = append(o.with, s); return nil })
	set.Func("root", "`suite:package,...=directory`: packages of a Debian suite, with their dependencies on "+
		"Soft-RoCE, to unpack in a directory of the guest for chroot; may be repeated",
		func(s string) error { o.roots = append(o.roots, s); return nil })
	set.Usage = func() {
		fmt.Fprintln(set.Output(), "usage: vmtest [flags] -- PACKAGE-or-FILE... [-flag of the programs...] [-- "+
			"argument of the programs...]")
		set.PrintDefaults()
	}
	if err := set.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return
	} else if err != nil {
		os.Exit(2)
	}
	if set.NArg() == 0 && !o.fetch {
		set.Usage()
		os.Exit(2)
	}
	if o.driver != vm.RXE && o.driver != vm.SIW {
		fmt.Fprintf(set.Output(), "-driver %s: unknown driver; use %s or %s\n", o.driver, vm.RXE, vm.SIW)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status, err := run(ctx, o, set.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		status = vm.StatusBroken
	}
	os.Exit(status)
}

func run(ctx context.Context, o options, args []string) (status int, err error) {
	out := &clock{began: time.Now(), to: os.Stdout}
	names := strings.Split(o.kernels, ",")
	if o.kernels == "all" {
		names = vm.KernelNames()
	}
	var images []*vm.Image
	for _, name := range names {
		image, err := vm.Prepare(ctx, name, vm.CacheDir(), out.printf)
		if err != nil {
			return 0, err
		}
		if o.driver == vm.SIW {
			if image, err = image.WithSIW(ctx, vm.CacheDir(), out.printf); err != nil {
				return 0, err
			}
		}
		if o.drivers {
			if _, err := image.Drivers(ctx, vm.CacheDir(), out.printf); err != nil {
				return 0, err
			}
		}
		images = append(images, image)
	}
	if o.fetch {
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "goverbs-vmtest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	programs, err := programs(ctx, o, dir, args, out.printf)
	if err != nil {
		return 0, err
	}
	files, err := files(o.files)
	if err != nil {
		return 0, err
	}
	helpers, err := vm.BuildHelpers(ctx, dir, o.with, o.build, out.printf)
	if err != nil {
		return 0, err
	}
	roots, err := vm.RootFiles(ctx, o.roots, vm.CacheDir(), out.printf)
	if err != nil {
		return 0, err
	}
	files = slices.Concat(files, helpers, roots)
	for _, image := range images {
		outcomes, err := retried(o.retries, out.printf, func() ([]*vm.Outcome, error) {
			return boot(ctx, o, image, programs, files, out)
		})
		if err != nil {
			return 0, fmt.Errorf("kernel %s: %w", image.Kernel, err)
		}
		for _, outcome := range outcomes {
			if o.out != "" {
				if err := write(o.out, outcome.Files); err != nil {
					return 0, err
				}
			}
			if status == 0 {
				status = outcome.ExitStatus()
			}
		}
	}
	return status, nil
}

// retried boots guests until all programs have passed, at most 1+retries times. On a busy machine, a guest may not be
// scheduled for longer than its peer's timeout. A kernel fault is not retried.
func retried(retries int, log vm.Logf, boot func() ([]*vm.Outcome, error)) ([]*vm.Outcome, error) {
	for failed := 0; ; failed++ {
		outcomes, err := boot()
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(outcomes, func(o *vm.Outcome) bool { return o.Kind != vm.Passed })
		switch {
		case i < 0 && failed > 0:
			log("FLAKE: passed at attempt %d", failed+1)
			return outcomes, nil
		case i < 0 || failed == retries || outcomes[i].ExitStatus() == vm.StatusKernel:
			return outcomes, nil
		}
		log("attempt %d failed (%s); retrying", failed+1, outcomes[i].Kind)
	}
}

// boot runs the programs in one guest, or in two.
func boot(ctx context.Context, o options, image *vm.Image, programs []vm.Program, files []vm.File,
	out *clock) ([]*vm.Outcome, error) {
	guest := vm.Guest{Image: image, Programs: programs, Files: files, CPUs: o.cpus, Memory: o.memory, NVDIMM: o.nvdimm,
		Counted: o.counted,
		Output:  out, Log: out.printf}
	if !o.again {
		guest.Passed = filepath.Join(vm.CacheDir(), "passed")
	}
	if o.console {
		guest.Console = os.Stderr
	}
	if !o.pair {
		outcome, err := guest.Run(ctx)
		if err != nil {
			return nil, err
		}
		out.printf("kernel %s: %s", image.Kernel, outcome)
		return []*vm.Outcome{outcome}, nil
	}
	var guests [2]*vm.Guest
	for host := range guests {
		guestCopy, lines := guest, &clock{began: out.began, to: out.to, prefix: fmt.Sprintf("%d| ", host)}
		guestCopy.Output, guestCopy.Log = lines, lines.printf
		guests[host] = &guestCopy
	}
	outcomes, err := vm.RunPair(ctx, guests)
	if err != nil {
		return nil, err
	}
	for host, outcome := range outcomes {
		out.printf("kernel %s, host %d: %s", image.Kernel, host, outcome)
	}
	return outcomes[:], nil
}

// programs builds the packages that the arguments name. Arguments from the first flag on, or after another --, are for
// the programs.
func programs(ctx context.Context, o options, dir string, args []string, log vm.Logf) ([]vm.Program, error) {
	own := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	if own < 0 {
		own = len(args)
	}
	names, args := args[:own], args[own:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	var all []vm.Program
	var patterns []string
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			all = append(all, vm.Program{Name: filepath.Base(name), Host: name, Args: args, Timeout: o.timeout})
			continue
		}
		patterns = append(patterns, name)
	}
	if len(patterns) > 0 {
		built, err := vm.Build(ctx, dir, patterns, o.build, args, o.timeout, log)
		if err != nil {
			return nil, err
		}
		all = append(all, built...)
	}
	for i, p := range all {
		all[i].Env = o.env
		if o.pair && strings.HasSuffix(p.Host, ".test") { // the next test would wait for the other guest
			all[i].Args = slices.Insert(slices.Clone(p.Args), 0, "-test.failfast")
		}
	}
	return all, nil
}

func files(pairs []string) (all []vm.File, err error) {
	for _, pair := range pairs {
		host, name, ok := strings.Cut(pair, "=")
		if !ok || !filepath.IsAbs(name) {
			return nil, fmt.Errorf("-file %s: want HOST=GUEST, with an absolute path in the guest", pair)
		}
		all = append(all, vm.File{Name: name, Host: host})
	}
	return all, nil
}

func write(dir string, files map[string][]byte) error {
	for name, data := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return fmt.Errorf("the guest wrote a file %q, which is not below the output directory", name)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// clock prefixes each line with the seconds since it was created.
type clock struct {
	began time.Time
	to    *os.File
	mu    sync.Mutex
	open  bool // the last line is incomplete

	prefix string
}

func (c *clock) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for line := range strings.Lines(string(p)) {
		if !c.open {
			fmt.Fprintf(&b, "%6.1f  %s", time.Since(c.began).Seconds(), c.prefix)
		}
		b.WriteString(line)
		c.open = !strings.HasSuffix(line, "\n")
	}
	if _, err := c.to.WriteString(b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *clock) printf(format string, args ...any) {
	line := "vm: " + fmt.Sprintf(format, args...) + "\n"
	c.mu.Lock()
	open := c.open
	c.mu.Unlock()
	if open {
		line = "\n" + line
	}
	c.Write([]byte(line))
}
