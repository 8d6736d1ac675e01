// SPDX-License-Identifier: BSD-2-Clause

// Command suites runs third-party test suites on the drop-in libraries and compares the results with the expected ones.
// It exits with 1 if they differ.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/conformance/suites"
	"github.com/goverbs/goverbs/conformance/suites/guest"
)

func main() {
	var o options
	flag.StringVar(&o.names, "suites", strings.Join(suites.Names, ","), "comma-separated suites to run")
	flag.StringVar(&o.run, "run", "",
		"run only cases that match this regular expression")
	flag.StringVar(&o.libraries, "libraries", "", "directory of the drop-in libraries (default: build them)")
	flag.BoolVar(&o.update, "update", false, "write conformance/suites/results")
	flag.StringVar(&o.kernel, "kernel", "",
		"run the suites that support it in a guest, on Soft-RoCE of this kernel (6.1 or 6.12)")
	flag.Parse()
	if flag.NArg() > 0 || o.run != "" && o.update {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	names, run, libraries, kernel string
	update                        bool
}

const results = "conformance/suites/results"

func run(ctx context.Context, o options) error {
	only, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	cache, err := filepath.Abs("conformance/suites/cache")
	if err != nil {
		return err
	}
	if o.libraries == "" && o.kernel == "" {
		dir, err := os.MkdirTemp("", "goverbs-dropin-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := command(ctx, "dropin/build", dir); err != nil {
			return err
		}
		o.libraries = dir
	}
	r := &suites.Runner{Libraries: o.libraries, Cache: cache, Log: func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
	}}
	var errs []error
	for name := range strings.SplitSeq(o.names, ",") {
		errs = append(errs, one(ctx, r, name, only, o))
	}
	return errors.Join(errs...)
}

// one runs a suite.
func one(ctx context.Context, r *suites.Runner, name string, only *regexp.Regexp, o options) error {
	s, err := suites.Read(name)
	if err != nil {
		return err
	}
	if o.kernel != "" && !s.Rxe {
		return nil
	}
	if err := prepare(ctx, r, s); errors.Is(err, suites.ErrNoSource) {
		fmt.Printf("%s: %v\n", name, suites.ErrNoSource)
		return nil
	} else if err != nil {
		return err
	}
	start := time.Now()
	var got []suites.Result
	dir := suites.ResultsOf(results, o.kernel)
	if o.kernel == "" {
		got, err = r.All(ctx, s, only.MatchString)
	} else {
		got, err = guest.Run(ctx, o.kernel, s, o.run, r.Log)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	count := map[string]int{}
	for _, g := range got {
		count[g.Ends]++
	}
	fmt.Printf("%s: %d pass, %d skip, %d fail; %.0f s\n", name, count[suites.Pass], count[suites.Skip],
		count[suites.Fail], time.Since(start).Seconds())
	want, err := suites.Expected(dir, name)
	if o.update {
		return suites.Update(dir, name, want, got)
	}
	if o.run != "" {
		want = suites.Of(want, got)
	}
	return errors.Join(err, suites.Compare(name, want, got))
}

// prepare checks that the packages of a suite are installed, and builds its sources.
func prepare(ctx context.Context, r *suites.Runner, s *suites.Suite) error {
	var names []string
	if r.Libraries == "" { // kernel device
		names = slices.Clone(guest.Packages)
	}
	for _, p := range s.Packages {
		names = append(names, p.Name)
	}
	if err := command(ctx, ".ci/deps", names...); err != nil {
		return err
	}
	for _, p := range s.Packages {
		out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", p.Name).Output()
		if err != nil {
			return fmt.Errorf("dpkg-query %s: %w", p.Name, err)
		}
		if string(out) != p.Version {
			return fmt.Errorf("%s %s is installed, but the expected results are of %s: install that version, or "+
				"pin the installed one in conformance/suites/cases/%s.txt and run with -update",
				p.Name, out, p.Version, s.Name)
		}
	}
	if s.Build == "" {
		return nil
	}
	if err := os.MkdirAll(r.Cache, 0o755); err != nil {
		return err
	}
	// exclude Go code in the sources from this module
	if err := os.WriteFile(filepath.Join(r.Cache, "go.mod"), []byte("module cache\n"), 0o644); err != nil {
		return err
	}
	start := time.Now()
	if err := suites.Build(ctx, "conformance/suites/build/"+s.Build, s.Builds, r.Cache, r.Libraries); err != nil {
		return err
	}
	if elapsed := time.Since(start); elapsed > time.Second { // otherwise it was already built
		fmt.Printf("%s: built in %.0f s\n", s.Name, elapsed.Seconds())
	}
	return nil
}

func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
