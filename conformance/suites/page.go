// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const about = `# Third-party test suites on the software device and on Soft-RoCE

These third-party programs and tests run unmodified on the [drop-in libraries](dropin.md) over the software device. They
come from the Debian archive, in the versions below. ` + "`make suites` installs them, runs each case, and fails if a " +
	"result\ndiffers from this page. It takes half an hour, including 8 minutes for building suites the first time. " +
	"`make suites KERNEL=all`\nruns the suites that support it in guests, on Soft-RoCE of two kernels with rdma-core's\n" +
	`libraries. This page is generated from [conformance/suites/results](../conformance/suites/results).

A server and its client are two processes. On the software device, each has its own device at a loopback address, except
for libfabric, which ignores loopback interfaces: its programs run in a network namespace. In a guest, both use the same
device. A case passes if both programs exit with status 0 and the client prints the expected text. Suites skip cases
because a feature is vendor-specific or the device lacks it. A case that fails because of a known race in the suite runs
again; the suite's file of cases describes the race.

`

// Page returns docs/suites.md, generated from the expected results.
func Page(root string) (string, error) {
	var table, reasons strings.Builder
	table.WriteString("Each cell has the numbers of passed, skipped and failed cases.\n\n| suite | version | cases | " +
		"soft0 |")
	for _, kernel := range Kernels {
		fmt.Fprintf(&table, " rxe %s |", kernel)
	}
	table.WriteString("\n|---|---|---:|---:|" + strings.Repeat("---:|", len(Kernels)) + "\n")
	for _, name := range Names {
		s, err := Read(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&table, "| %s | %s |", s.Title, s.version())
		for i, kernel := range append([]string{""}, Kernels...) {
			dir := ResultsOf(filepath.Join(root, "conformance", "suites", "results"), kernel)
			results, err := Expected(dir, name)
			if err != nil {
				return "", err
			}
			if i == 0 {
				fmt.Fprintf(&table, " %d |", len(results))
			}
			if len(results) == 0 {
				table.WriteString(" – |")
				continue
			}
			fmt.Fprintf(&table, " %d, %d, %d |", len(ending(results, Pass)), len(ending(results, Skip)),
				len(ending(results, Fail)))
			writeReasons(&reasons, s, kernel, results)
		}
		table.WriteString("\n")
	}
	return about + table.String() + reasons.String(), nil
}

// writeReasons writes the reasons of failed and skipped cases; for Soft-RoCE only of failed ones.
func writeReasons(to *strings.Builder, s *Suite, kernel string, results []Result) {
	at := ""
	if kernel != "" {
		at = ", on Soft-RoCE of " + kernel
	}
	for _, cause := range []struct{ end, title string }{{Fail, "Failed"}, {Skip, "Skipped"}} {
		some := ending(results, cause.end)
		if len(some) == 0 || cause.end == Skip && kernel != "" {
			continue
		}
		fmt.Fprintf(to, "\n## %s cases of %s%s\n\n| reason | cases |\n|---|---|\n", cause.title, s.Title, at)
		for _, reason := range grouped(some) {
			cases := reason.cases
			if n := len(cases); n > 4 && (cause.end == Skip || kernel != "") {
				cases = []string{fmt.Sprintf("%d cases", n)}
			}
			fmt.Fprintf(to, "| %s | %s |\n", reason.text, strings.Join(cases, ", "))
		}
	}
}

// version returns the version of the source or, if the suite is not built, of the first package, which contains the
// suite.
func (s *Suite) version() string {
	if s.Version != "" || len(s.Packages) == 0 {
		return s.Version
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

// grouped groups cases by reason, in the order of the results.
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
