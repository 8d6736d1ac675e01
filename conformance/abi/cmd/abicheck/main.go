// SPDX-License-Identifier: BSD-2-Clause

// Command abicheck checks whether the generated Go packages are compatible with the installed rdma-core headers and
// libraries. It is intended for continuous integration of programs that use the packages; run it with -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"

	"github.com/goverbs/goverbs/internal/abicheck"
	"github.com/goverbs/goverbs/internal/printable"
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

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o abicheck.Options
	fs := flag.NewFlagSet("abicheck", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.Dump, "dump", false,
		"print what the Go packages have, as CSV with C names:\n\"ibv_send_wr,wr.rdma.rkey,48,4\" (structure, "+
			"path, offset, size) and\n\"ibv_wr_opcode,IBV_WR_SEND,2\" (enum or -, name, value)")
	fs.BoolVar(&o.JSON, "json", false, "print the answer as JSON")
	fs.BoolVar(&o.Verbose, "v", false, "list the differences that are fine, too")
	fs.StringVar(&o.Include, "I", "",
		"include `directory` that holds infiniband/verbs.h, librpma.h (default: where the C compiler finds them)")
	fs.StringVar(&o.CC, "cc", "", "C compiler, perhaps with arguments (default: $CC, cc, gcc or clang; for another "+
		"-target the cross gcc)")
	fs.StringVar(&o.Target, "target", runtime.GOARCH, "`GOARCH` to check")
	fs.StringVar(&o.Release, "release", "",
		"`release` of what is installed, such as 33.2 or librpma=1.2.0, where nothing tells it; without a project,\n"+
			"of rdma-core; several with commas between them (default: found out)")
	fs.StringVar(&o.Packages, "pkg", "",
		"check these `packages` alone: "+strings.Join(abicheck.PackageNames(), ",")+" (default: all but uapi,\nfor which "+
			"-cache asks compilers: what counts is the kernel that runs)")
	fs.StringVar(&o.Only, "only", "", "check the headers or the libraries alone: `headers|libraries`")
	fs.StringVar(&o.Dirs, "L", "", "`directories` that hold the libraries, with colons between them (default: "+
		"where the loader looks)")
	fs.StringVar(&o.Required, "require", "",
		"`names` that have to be checked, with commas between them: packages and libraries\n(ibv,libibverbs.so.1), "+
			"with -cache targets (amd64,arm64)")
	fs.StringVar(&o.Cache, "cache", "",
		"check the recorded models instead, each against `DIR`/RELEASE/include, for every target with a C compiler")
	fs.IntVar(&o.Releases, "minimum-releases", 1,
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
	if err := minimum(fs, o); err != nil {
		fmt.Fprintf(stderr, "abicheck: %v; see -h\n", err)
		return exitUnchecked
	}
	ok, err := abicheck.Run(ctx, o, stdout)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "abicheck: could not check: %s\n", printable.Text(err.Error()))
		return exitUnchecked
	case !ok:
		return exitMismatch
	}
	return exitFits
}

// minimum rejects -minimum-releases if it would have no effect.
func minimum(fs *flag.FlagSet, o abicheck.Options) error {
	given := false
	fs.Visit(func(f *flag.Flag) { given = given || f.Name == "minimum-releases" })
	switch {
	case given && (o.Cache == "" || len(abicheck.List(o.Required)) == 0):
		return errors.New("-minimum-releases is about the targets that -require names, with -cache: give both")
	case o.Releases < 1:
		return fmt.Errorf("-minimum-releases %d: at least 1 release has to be checked", o.Releases)
	}
	return nil
}
