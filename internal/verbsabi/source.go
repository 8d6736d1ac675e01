// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Witness is a C file that compiles only if the headers it includes agree with a model on one target.
type Witness struct {
	Project string
	Release string
	Target  string // GOARCH
	Counts  Counts // number of assertions, counted from the model
	prelude []string
	checks  []check
	bits    []bitfield
}

// check is one assertion: a line of C, and an expression whose value or type the compiler can reveal.
type check struct {
	item  Item
	code  string // C on one line
	value string // integer expression whose value reveal reports
	typed string // pointer expression whose type reveal reports
}

// architecture contains a preprocessor condition for each target that holds only for its compilers. Other compilers
// must be rejected.
var architecture = map[string]string{
	"amd64":    "defined(__x86_64__)",
	"arm64":    "defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__",
	"loong64":  "defined(__loongarch64)",
	"mips64":   "defined(__mips64) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__",
	"mips64le": "defined(__mips64) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__",
	"ppc64":    "defined(__powerpc64__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__",
	"ppc64le":  "defined(__powerpc64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__",
	"riscv64":  "defined(__riscv) && __riscv_xlen == 64",
	"s390x":    "defined(__s390x__)",
}

// NewWitness generates the assertions for all facts of a model about a target.
func NewWitness(r *model.Release, target string) (*Witness, error) {
	arch, ok := architecture[target]
	if !ok {
		return nil, fmt.Errorf("no known C compiler for target %s; add it to internal/verbsabi", target)
	}
	w := &Witness{Project: r.Project, Release: r.Name, Target: target}
	w.prelude = append(w.prelude,
		fmt.Sprintf("#if !defined(__LP64__) || !(%s)", arch),
		fmt.Sprintf("#error this C compiler does not compile for %s", target),
		"#endif")
	for _, support := range []bool{false, true} { // public headers must compile on their own
		for _, h := range r.Headers {
			if h.Support == support {
				w.prelude = append(w.prelude, "#include <"+h.Name+">")
			}
		}
	}
	w.prelude = append(w.prelude,
		"#define GOVERBS_TEXT_(x) #x",
		"#define GOVERBS_TEXT(x) GOVERBS_TEXT_(x)",
		`#define GOVERBS_COUNTED _Static_assert(__COUNTER__ >= 0, "counted");`)
	names := newNames(r)
	for i := range r.Headers {
		if err := w.header(&r.Headers[i], names); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Headers[i].Name, err)
		}
	}
	return w, nil
}

func (w *Witness) header(h *model.Header, names *names) error {
	for i := range h.Records {
		if err := w.record(&h.Records[i]); err != nil {
			return fmt.Errorf("%s: %w", h.Records[i].CName(), err)
		}
	}
	for _, e := range h.Enums {
		w.enum(&e)
	}
	for _, m := range h.Macros {
		w.macro(&m, names)
	}
	for _, f := range h.FuncTypes {
		if err := w.funcType(&f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	for _, f := range h.Funcs {
		if err := w.function(&f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Source returns the C text. It compiles without errors if the headers agree with the model.
func (w *Witness) Source() string {
	text, _ := w.render()
	return text
}

// render returns the C text and the first line of each check.
func (w *Witness) render() (text string, starts []int) {
	var b strings.Builder
	line := 1
	put := func(s string) {
		b.WriteString(s + "\n")
		line += 1 + strings.Count(s, "\n")
	}
	for _, s := range w.prelude {
		put(s)
	}
	for _, c := range w.checks {
		starts = append(starts, line)
		put(c.code + " GOVERBS_COUNTED")
	}
	put(countLine)
	return b.String(), starts
}

// countLine makes the compiler print the number of assertions in an intentional error, which detects a compiler that
// compiles nothing or stops early.
const countLine = `#ifdef GOVERBS_COUNT
struct goverbs_none *goverbs_count = (char (*)[1 + __COUNTER__])0;
#endif`
