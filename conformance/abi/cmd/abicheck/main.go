// SPDX-License-Identifier: BSD-2-Clause

// Command abicheck tells whether the generated Go packages go with the rdma-core headers and libraries that are
// installed where it runs. It is meant for the continuous integration of programs that use the packages; run it with
// -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/conformance/abi"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// Exit codes.
const (
	exitFits       = 0 // identical or compatible
	exitMismatch   = 1
	exitUnchecked  = 2
	helpAfterFlags = `
It reads the installed headers, compares every structure, member, enumerator, constant and prototype with the Go packages,
and lets the C compiler prove the reading against the headers themselves. In the installed libraries it looks up every function
that the Go packages know. It prints a line of counts, a verdict for the headers and one for each library, and every difference
that matters, with the release since which it exists. Differences that are fine are counted; -v lists them.

  identical     what is installed and the Go packages say the same
  compatible    one of them is older or newer; what both have is the same
  incompatible  an offset, a size, a type, a value or a prototype differs, or something has vanished

What is not installed is named, and is no failure unless -require names it.

Exit codes: 0 identical or compatible, 1 incompatible, 2 could not check (nothing is installed, no C compiler, a header that cannot
be read; the message says how to mend it). "go run" turns every code but 0 into 1 and prints the real one; "go install" the command
where that matters.
`
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

type options struct {
	dump, json, verbose                                             bool
	include, cc, target, release, cache, only, dirs, pkgs, required string
	releases                                                        int
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("abicheck", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.dump, "dump", false,
		"print what the Go packages have, as CSV with C names:\n\"ibv_send_wr,wr.rdma.rkey,48,4\" (structure, "+
			"path, offset, size) and\n\"ibv_wr_opcode,IBV_WR_SEND,2\" (enum or -, name, value)")
	fs.BoolVar(&o.json, "json", false, "print the answer as JSON")
	fs.BoolVar(&o.verbose, "v", false, "list the differences that are fine, too")
	fs.StringVar(&o.include, "I", "",
		"include `directory` that holds infiniband/verbs.h, librpma.h (default: where the C compiler finds them)")
	fs.StringVar(&o.cc, "cc", "", "C compiler, perhaps with arguments (default: $CC, cc, gcc or clang; for another "+
		"-target the cross gcc)")
	fs.StringVar(&o.target, "target", runtime.GOARCH, "`GOARCH` to check")
	fs.StringVar(&o.release, "release", "",
		"`release` of what is installed, such as 33.2 or librpma=1.2.0, where nothing tells it; without a project,\n"+
			"of rdma-core; several with commas between them (default: found out)")
	fs.StringVar(&o.pkgs, "pkg", "",
		"check these `packages` alone: "+strings.Join(packageNames(), ",")+" (default: all)")
	fs.StringVar(&o.only, "only", "", "check the headers or the libraries alone: `headers|libraries`")
	fs.StringVar(&o.dirs, "L", "", "`directories` that hold the libraries, with colons between them (default: "+
		"where the loader looks)")
	fs.StringVar(&o.required, "require", "",
		"`names` that have to be checked, with commas between them: packages and libraries\n(ibv,libibverbs.so.1), "+
			"with -cache targets (amd64,arm64)")
	fs.StringVar(&o.cache, "cache", "",
		"check the recorded models instead, each against `DIR`/RELEASE/include, for every target with a C compiler")
	fs.IntVar(&o.releases, "minimum-releases", 1,
		"with -cache: how many releases have to be checked on each target that -require names")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "abicheck tells whether the generated Go packages go with the headers and "+
			"libraries installed here.")
		fs.PrintDefaults()
		fmt.Fprint(stderr, helpAfterFlags)
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitFits
	} else if err != nil {
		return exitUnchecked
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "abicheck: takes no arguments but flags, got %q; see -h\n", fs.Args())
		return exitUnchecked
	}
	if err := o.minimum(fs); err != nil {
		fmt.Fprintf(stderr, "abicheck: %v; see -h\n", err)
		return exitUnchecked
	}
	ok, err := check(ctx, o, stdout)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "abicheck: could not check: %v\n", err)
		return exitUnchecked
	case !ok:
		return exitMismatch
	}
	return exitFits
}

// minimum refuses a -minimum-releases that would not be looked at.
func (o *options) minimum(fs *flag.FlagSet) error {
	given := false
	fs.Visit(func(f *flag.Flag) { given = given || f.Name == "minimum-releases" })
	switch {
	case given && (o.cache == "" || len(list(o.required)) == 0):
		return errors.New("-minimum-releases is about the targets that -require names, with -cache: give both")
	case o.releases < 1:
		return fmt.Errorf("-minimum-releases %d: at least 1 release has to be checked", o.releases)
	}
	return nil
}

func packageNames() []string {
	var all []string
	for _, p := range witness.All() {
		all = append(all, p.Name)
	}
	return all
}

// list parts names at commas.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// check does what the options ask for and tells whether all is well.
func check(ctx context.Context, o options, stdout io.Writer) (bool, error) {
	if o.only != "" && o.only != string(abi.Headers) && o.only != string(abi.Libraries) {
		return false, fmt.Errorf("-only takes headers or libraries, got %q", o.only)
	}
	packages, err := abi.Packages(list(o.pkgs)...)
	if err != nil {
		return false, err
	}
	primary, recorded, err := abi.Recorded()
	switch {
	case err != nil:
		return false, err
	case o.cache != "":
		return checkCache(ctx, o, primary, recorded, stdout)
	case o.dump:
		return true, dump(o, packages, stdout)
	}
	q := abi.Question{
		Packages: packages, Include: o.include, CC: strings.Fields(o.cc), Target: o.target,
		Release: releases(o.release), Only: abi.Part(o.only),
		LibraryDirs: filepath.SplitList(o.dirs), Primary: primary, Recorded: recorded,
	}
	if o.target == runtime.GOARCH {
		q.Go = witness.All()
	}
	if len(q.CC) == 0 && q.Only != abi.Libraries {
		if q.CC, err = abi.FindCompiler(o.target); err != nil {
			return false, err
		}
	}
	answer, err := abi.Ask(ctx, q)
	if err != nil {
		return false, err
	}
	if o.json {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "\t")
		err = enc.Encode(answer)
	} else if err = answer.Print(stdout, o.verbose); err == nil && len(q.Go) == 0 && q.Only != abi.Libraries {
		_, err = fmt.Fprintf(stdout,
			"this program was compiled for %s: on %s the layouts of the Go packages are those that they assert "+
				"when they are compiled\n",
			runtime.GOARCH, o.target)
	}
	return answer.Verdict != abi.Incompatible, errors.Join(err, answer.Require(list(o.required)))
}

// releases reads what -release names: RELEASE or PROJECT=RELEASE.
func releases(named string) map[string]string {
	all := map[string]string{}
	for _, one := range list(named) {
		if of, release, ok := strings.Cut(one, "="); ok {
			all[of] = release
		} else {
			all[project.All[0].Name] = one
		}
	}
	return all
}

// checkCache checks the recorded models against the headers of a cache.
func checkCache(ctx context.Context, o options, primary, recorded rules.Recorded, stdout io.Writer) (bool, error) {
	s, err := abi.Summarize(ctx, o.cache, primary, recorded)
	if err != nil {
		return false, err
	}
	return s.Mismatches() == 0, errors.Join(s.Print(stdout), s.Require(list(o.required), o.releases))
}

// dump prints what the Go packages have.
func dump(o options, packages []rules.Package, stdout io.Writer) error {
	if o.target != runtime.GOARCH {
		return fmt.Errorf("-dump measures the Go types of this program, which was compiled for %s; build it with "+
			"GOARCH=%s and run it there",
			runtime.GOARCH, o.target)
	}
	var chosen []witness.Package
	for _, p := range witness.All() {
		if slices.ContainsFunc(packages, func(q rules.Package) bool { return q.Name == p.Name }) {
			chosen = append(chosen, p)
		}
	}
	facts, err := abi.Measure(chosen...)
	if err != nil {
		return err
	}
	return facts.Dump(stdout)
}
