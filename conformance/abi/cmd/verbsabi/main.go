// SPDX-License-Identifier: BSD-2-Clause

// Command verbsabi reports whether the generated Go packages are compatible with the installed rdma-core headers and
// libraries. It is meant for the continuous integration of programs that use the packages. Run it with -h for usage.
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

	"github.com/goverbs/goverbs/generated/witness"
	"github.com/goverbs/goverbs/internal/printable"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

// Exit codes.
const (
	exitFits       = 0 // identical or compatible
	exitMismatch   = 1
	exitUnchecked  = 2
	helpAfterFlags = `
It parses the installed headers, compares every structure, member, enumerator, constant and prototype with the Go
packages, and has the C compiler verify the parser's result. In the installed libraries it looks up every function that
the Go packages declare. -dwarf and -btf replace the headers by the types in debug information. It prints a line of counts, a verdict for the headers and for each library, and every
incompatible difference with the release that introduced it. Compatible differences are counted; -v lists them.

  identical     the installation and the Go packages agree
  compatible    one is older; everything that both have is the same
  incompatible  an offset, a size, a type, a value or a prototype differs, or something was removed

Missing parts are listed and are not a failure unless -require names them. With a PROGRAM, the verdict is about the
functions that it can call and the libraries of the host; a library that is missing there is a failure.

Exit codes: 0 identical or compatible, 1 incompatible, 2 could not check (nothing is installed, no C compiler, an
unreadable header, a stale policy or a damaged baseline). "go run" turns every code but 0 into 1 and prints the real one;
install the command with "go install" where that matters.
`
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := verbsabi.Options{UAPI: []witness.Package{witness.UAPI}}
	fs := flag.NewFlagSet("verbsabi", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.Dump, "dump", false,
		"print the facts of the Go packages as CSV with C names:\n\"ibv_send_wr,wr.rdma.rkey,48,4\" (structure, "+
			"path, offset, size) and\n\"ibv_wr_opcode,IBV_WR_SEND,2\" (enum or -, name, value)")
	fs.StringVar(&o.Format, "format", "text", "output `format`: "+strings.Join(verbsabi.Formats(), ", "))
	fs.StringVar(&o.Write, "write", "",
		"also write `FORMAT=FILE`, several separated by commas: sarif=abi.sarif,junit=abi.xml")
	fs.StringVar(&o.Policy, "policy", "",
		"`file` with accepted incompatible differences: difference, last day, reason, separated by\ntabs; expired rows "+
			"and rows that match nothing are errors")
	fs.StringVar(&o.Baseline, "baseline", "", "accept the differences in this `file`, and list new ones")
	fs.StringVar(&o.Record, "write-baseline", "", "write the differences to this `file`")
	fs.BoolVar(&o.Verbose, "v", false, "also list compatible differences")
	fs.StringVar(&o.Include, "I", "",
		"include `directory` that holds infiniband/verbs.h, librpma.h (default: where the C compiler finds them)")
	fs.StringVar(&o.CC, "cc", "", "C compiler, with optional arguments (default: $CC, cc, gcc or clang; for another "+
		"-target the cross gcc)")
	fs.StringVar(&o.Target, "target", runtime.GOARCH, "`GOARCH` to check")
	fs.StringVar(&o.Release, "release", "",
		"installed `release`, such as 33.2 or librpma=1.2.0; the default project is rdma-core;\n"+
			"separate several by commas (default: detected)")
	fs.StringVar(&o.Packages, "pkg", "",
		"check only these `packages`: "+strings.Join(verbsabi.PackageNames(), ",")+" (default: all but uapi,\nfor "+
			"which -cache runs C compilers: its layouts depend on the running kernel)")
	fs.StringVar(&o.Only, "only", "", "check only this `part`: headers, libraries, or layouts (of -dwarf and -btf)")
	fs.StringVar(&o.DWARF, "dwarf", "",
		"compare the types in the debug information of these comma-separated `files` instead of the\nheaders: "+
			"libraries or their debug files, found by build ID, or installed for the libraries of\nthis machine; no C "+
			"compiler is needed")
	fs.StringVar(&o.BTF, "btf", "",
		"compare uapi with the types of a kernel (BTF) in these comma-separated `files`: "+verbsabi.KernelBTF+
			",\nthe kernel of this machine; or vmlinux, followed by modules")
	fs.StringVar(&o.DebugDir, "debug-dir", "", "`directory` of debug files (default: "+verbsabi.DebugDir+")")
	fs.StringVar(&o.Dirs, "L", "", "colon-separated `directories` of the libraries (default: "+
		"where the loader searches)")
	fs.StringVar(&o.Required, "require", "",
		"comma-separated `names` that must be checked: packages and libraries\n(ibv,libibverbs.so.1), "+
			"with -cache targets (amd64,arm64)")
	fs.StringVar(&o.Host, "host", "",
		"root file system on which the program is to run: a `directory`, or an image of docker save or\ndocker "+
			"export (default: this machine's)")
	fs.StringVar(&o.Cache, "cache", "",
		"check the recorded models instead, each against `DIR`/RELEASE/include, for every target with a C compiler")
	fs.IntVar(&o.Releases, "minimum-releases", 1,
		"with -cache: minimum number of releases to check on each target in -require")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "verbsabi compares the generated Go packages with the installed headers and "+
			"libraries,\nor a finished Go program with the libraries of a host.\n\n"+
			"usage: verbsabi [flags]\n       verbsabi [flags] [-host ROOT] PROGRAM")
		fs.PrintDefaults()
		fmt.Fprint(stderr, helpAfterFlags)
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitFits
	} else if err != nil {
		return exitUnchecked
	}
	if fs.NArg() > 1 {
		fmt.Fprintf(stderr, "verbsabi: unexpected arguments %q; options go before PROGRAM, see -h\n", fs.Args()[1:])
		return exitUnchecked
	}
	o.Program = fs.Arg(0)
	if err := minimum(fs, o); err != nil {
		fmt.Fprintf(stderr, "verbsabi: %v; see -h\n", err)
		return exitUnchecked
	}
	ok, err := verbsabi.Run(ctx, o, stdout)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "verbsabi: could not check: %s\n", printable.Text(err.Error()))
		return exitUnchecked
	case !ok:
		return exitMismatch
	}
	return exitFits
}

// minimum rejects a -minimum-releases that would have no effect.
func minimum(fs *flag.FlagSet, o verbsabi.Options) error {
	given := false
	fs.Visit(func(f *flag.Flag) { given = given || f.Name == "minimum-releases" })
	switch {
	case given && (o.Cache == "" || len(verbsabi.List(o.Required)) == 0):
		return errors.New("-minimum-releases needs -cache and -require")
	case o.Releases < 1:
		return fmt.Errorf("-minimum-releases %d: want at least 1", o.Releases)
	}
	return nil
}
