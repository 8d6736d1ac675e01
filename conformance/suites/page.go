// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const about = `# Test suites of others, on the software device

Programs and tests that nobody of this project wrote run unmodified on the drop-in libraries, ` +
	"`libibverbs.so.1`" + `
and ` + "`librdmacm.so.1`" + ` over the software device. ` + "`make suites`" + ` installs them from the Debian archive in the versions
below, runs each case, and fails if one ends otherwise than here. This page is made from
[conformance/suites/results](../conformance/suites/results).

A server and its client are two processes, each with a software device at a loopback address of its own; those of
libfabric, which leaves loopback out, are in a network namespace. A case passes if both end with status 0, and if the
client prints what the case asks for. What a suite skips, it skips for a reason of its own: the feature is of one
vendor, or the device does not have it.

`

// Page makes docs/suites.md from the results that are expected.
func Page(root string) (string, error) {
	var table, reasons strings.Builder
	table.WriteString("| suite | version | cases | pass | skip | fail |\n|---|---|---:|---:|---:|---:|\n")
	for _, name := range Names {
		s, err := Read(name)
		if err != nil {
			return "", err
		}
		results, err := Expected(filepath.Join(root, "conformance", "suites", "results"), name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&table, "| %s | %s | %d | %d | %d | %d |\n", s.Title, s.version(), len(results),
			len(ending(results, Pass)), len(ending(results, Skip)), len(ending(results, Fail)))
		for _, why := range []struct{ end, title string }{{Fail, "fails"}, {Skip, "is skipped"}} {
			some := ending(results, why.end)
			if len(some) == 0 {
				continue
			}
			fmt.Fprintf(&reasons, "\n## What %s of %s\n\n| why | cases |\n|---|---|\n", why.title, s.Title)
			for _, reason := range grouped(some) {
				cases := reason.cases
				if n := len(cases); why.end == Skip && n > 4 {
					cases = []string{fmt.Sprintf("%d cases", n)}
				}
				fmt.Fprintf(&reasons, "| %s | %s |\n", reason.text, strings.Join(cases, ", "))
			}
		}
	}
	return about + table.String() + reasons.String(), nil
}

// version is the version of the package that has the suite, which is the first one.
func (s *Suite) version() string {
	if len(s.Packages) == 0 {
		return ""
	}
	return s.Packages[0].Name + " " + s.Packages[0].Version
}

func ending(results []Result, end string) []Result {
	return slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Ends != end })
}

type reason struct {
	text  string
	cases []string
}

// grouped are the cases of each reason, in the order of the results.
func grouped(results []Result) (all []*reason) {
	for _, r := range results {
		i := slices.IndexFunc(all, func(of *reason) bool { return of.text == r.Reason })
		if i < 0 {
			i = len(all)
			all = append(all, &reason{text: r.Reason})
		}
		all[i].cases = append(all[i].cases, "`"+strings.TrimPrefix(r.Case, "tests.")+"`")
	}
	return all
}
