// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/rows"
)

// Results of a case.
const (
	Pass = "pass"
	Skip = "skip"
	Fail = "fail"
)

// Result is the actual or expected result of a case.
type Result struct {
	Case string
	Ends string // Pass, Skip or Fail
	// for a skip, the suite's reason; for a failure, our explanation or, after a run, the last output of the programs
	Reason string
	// complete output of a failed case
	output string
}

// noReason is the reason that Update writes for an unexplained failure.
const noReason = "?"

// emulated is the subdirectory for results on the adapters of conformance/provider.
const emulated = "emulated"

// Kernels lists the kernels on whose Soft-RoCE suites run.
var Kernels = []string{"6.1", "6.12"}

// ResultsOf returns the directory of results for a kernel, or for the software device if kernel is "".
func ResultsOf(dir, kernel string) string {
	if kernel == "" {
		return dir
	}
	return filepath.Join(dir, "rxe-"+kernel)
}

// Expected reads the expected results of a suite. If there is no file, it returns none.
func Expected(dir, suite string) ([]Result, error) {
	name := filepath.Join(dir, suite+".txt")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f := rows.Read(name, string(text), rows.Form{Want: "case | result | reason", Least: 2, Most: 3, Key: []int{0}})
	var all []Result
	for _, row := range f.Rows {
		r := Result{Case: row.Columns[0], Ends: row.Columns[1], Reason: row.Rest(2)}
		switch {
		case r.Ends != Pass && r.Ends != Skip && r.Ends != Fail:
			f.Fail(row.At, "invalid result %q; want pass, skip or fail", r.Ends)
		case r.Ends == Pass && r.Reason != "":
			f.Fail(row.At, "a case that passes needs no reason")
		case r.Ends != Pass && (r.Reason == "" || r.Reason == noReason):
			f.Fail(row.At, "%s: write the reason in the third column", r.Ends)
		}
		all = append(all, r)
	}
	return all, f.Err()
}

// Compare describes differences between actual and expected results. Reasons of failures are our own and are not
// compared.
func Compare(suite string, want, got []Result) error {
	var errs []error
	for _, g := range got {
		i := slices.IndexFunc(want, func(w Result) bool { return w.Case == g.Case })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("%s: %s: %s, without a row", suite, g.Case, g))
		case want[i].Ends != g.Ends:
			errs = append(errs, fmt.Errorf("%s: %s: got %s, want %s", suite, g.Case, g, want[i]))
		case g.Ends == Skip && want[i].Reason != g.Reason:
			errs = append(errs, fmt.Errorf("%s: %s: got %s, want %s", suite, g.Case, g, want[i]))
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g Result) bool { return w.Case == g.Case }) {
			errs = append(errs, fmt.Errorf("%s: %s: expected, but no such case ran; delete its row", suite,
				w.Case))
		}
	}
	return errors.Join(errs...)
}

// Update writes the results of a suite and keeps existing reasons of failures. For kernels, a missing reason is
// replaced by the last output of the programs, since we do not fix kernels.
func Update(dir, suite string, want, got []Result) error {
	var text strings.Builder
	device, how, ours := "the software device", "make suites UPDATE=1", true
	if filepath.Base(dir) == emulated {
		device, how = "emulated adapters", "go test ./conformance/provider -run TestPyverbs -update"
	}
	if kernel, ok := strings.CutPrefix(filepath.Base(dir), "rxe-"); ok {
		device, how, ours = "Soft-RoCE of Linux "+kernel, "make suites UPDATE=1 KERNEL="+kernel, false
	}
	fmt.Fprintf(&text, "# Results of %s on %s. Written by %s, except for the reasons of failures.\n#\n"+
		"# case | result | the suite's reason for a skip, ours for a failure\n", suite, device, how)
	for _, g := range got {
		reason := g.Reason
		if g.Ends == Fail {
			if ours {
				reason = noReason
			}
			if i := slices.IndexFunc(want, func(w Result) bool { return w.Case == g.Case && w.Ends == Fail }); i >= 0 {
				reason = want[i].Reason
			}
		}
		fmt.Fprintln(&text, strings.TrimRight(strings.Join([]string{g.Case, g.Ends, reason}, " | "), " |"))
	}
	return os.WriteFile(filepath.Join(dir, suite+".txt"), []byte(text.String()), 0o644)
}

func (r Result) String() string {
	if r.Reason == "" {
		return r.Ends
	}
	return r.Ends + " (" + r.Reason + ")"
}

func (r Result) detail() string {
	if r.output == "" {
		return ""
	}
	return "\n\t" + strings.ReplaceAll(strings.TrimSpace(r.output), "\n", "\n\t")
}

// Of returns the expected results of cases that have run.
func Of(want, got []Result) []Result {
	return slices.DeleteFunc(slices.Clone(want), func(w Result) bool {
		return !slices.ContainsFunc(got, func(g Result) bool { return g.Case == w.Case })
	})
}
