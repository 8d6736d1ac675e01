// Command abicheck tells whether the generated Go package goes with the rdma-core headers that are installed where it runs.
// It is meant for the continuous integration of programs that use the package; run it with -h.
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
	"runtime"
	"strings"

	"github.com/goverbs/goverbs/conformance/abi"
	"github.com/goverbs/goverbs/generated/witness"
)

// Exit codes.
const (
	exitFits       = 0 // identical or compatible
	exitMismatch   = 1
	exitUnchecked  = 2
	helpAfterFlags = `
It reads the installed headers, compares every structure, member, enumerator, constant and prototype with the Go package,
and lets the C compiler prove the reading against the headers themselves. It prints a line of counts, the verdict, and every
difference with the rdma-core release since which it exists.

  identical     headers and Go package say the same
  compatible    one of them is older or newer; what both have is the same
  incompatible  an offset, a size, a type, a value or a prototype differs, or something has vanished

Exit codes: 0 identical or compatible, 1 incompatible, 2 could not check (no headers, no C compiler, a header that cannot be
read; the message says how to mend it). "go run" turns every code but 0 into 1 and prints the real one; "go build" the command
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
	dump, json                          bool
	include, cc, target, release, cache string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("abicheck", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.dump, "dump", false, "print what the Go package has, as CSV with C names:\n\"ibv_send_wr,wr.rdma.rkey,48,4\" (structure, path, offset, size) and\n\"ibv_wr_opcode,IBV_WR_SEND,2\" (enum or -, name, value)")
	fs.BoolVar(&o.json, "json", false, "print the answer as JSON")
	fs.StringVar(&o.include, "I", "", "include `directory` that holds infiniband/verbs.h (default: where the C compiler finds it)")
	fs.StringVar(&o.cc, "cc", "", "C compiler, perhaps with arguments (default: $CC, cc, gcc or clang; for another -target the cross gcc)")
	fs.StringVar(&o.target, "target", runtime.GOARCH, "`GOARCH` to check")
	fs.StringVar(&o.release, "release", "", "`release` of the installed headers, such as 33.2 (default: found out)")
	fs.StringVar(&o.cache, "cache", "", "check the recorded models instead, each against `DIR`/RELEASE/include, for every target with a C compiler")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "abicheck tells whether the generated Go package goes with the rdma-core headers installed here.")
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

// check does what the options ask for and tells whether all is well.
func check(ctx context.Context, o options, stdout io.Writer) (bool, error) {
	primary, recorded, err := abi.Recorded()
	if err != nil {
		return false, err
	}
	if o.cache != "" {
		s, err := abi.Summarize(ctx, o.cache, recorded)
		if err != nil {
			return false, err
		}
		return s.Mismatches() == 0, s.Print(stdout)
	}
	var facts *abi.GoFacts
	if o.target == runtime.GOARCH {
		if facts, err = abi.Measure(witness.IBV); err != nil {
			return false, err
		}
	}
	if o.dump {
		if facts == nil {
			return false, fmt.Errorf("-dump measures the Go types of this program, which was compiled for %s; build it with GOARCH=%s and run it there", runtime.GOARCH, o.target)
		}
		return true, facts.Dump(stdout)
	}
	cc := abi.Compiler(strings.Fields(o.cc))
	if len(cc) == 0 {
		if cc, err = abi.FindCompiler(o.target); err != nil {
			return false, err
		}
	}
	answer, err := abi.Ask(ctx, abi.Question{
		Include: o.include, CC: cc, Target: o.target, Release: o.release, Go: facts, Primary: primary, Recorded: recorded,
	})
	if err != nil {
		return false, err
	}
	if o.json {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "\t")
		return answer.Verdict != abi.Incompatible, enc.Encode(answer)
	}
	if err := answer.Print(stdout); err != nil {
		return false, err
	}
	if facts == nil {
		fmt.Fprintf(stdout, "this program was compiled for %s: on %s the layouts of the Go package are those that it asserts when it is compiled\n", runtime.GOARCH, o.target)
	}
	return answer.Verdict != abi.Incompatible, nil
}
