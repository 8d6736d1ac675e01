// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
)

// target is a limit for minima of plain cells.
type target struct {
	what  string
	limit float64
	least bool // the limit is a minimum
	unit  string
	value func(results) float64
}

func plain(name string, batch int) cell { return cell{stubReturn, 1, 1, name, batch} }

// over returns the ratio of two minima.
func over(c cell, impl string, base cell, baseImpl string) func(results) float64 {
	return func(r results) float64 { return r[c][impl].min / r[base][baseImpl].min }
}

var targets = []target{
	{"call, default, to C", 5, false, "×", over(plain(caseCall, 1), implDefault, plain(caseCall, 1), implC)},
	{"build+post of 16, default, to C", 1.25, false, "×",
		over(plain(caseBuild, 16), implDefault, plain(caseBuild, 16), implC)},
	{"checks, for each work request of build+post of 16", 3, false, " ns", func(r results) float64 {
		return (r[plain(caseBuild, 16)][implChecked].min - r[plain(caseBuild, 16)][implDefault].min) / 16
	}},
	{"patch+post of 16, default, to C's build+post", 1, false, "×",
		over(plain(casePatch, 16), implDefault, plain(caseBuild, 16), implC)},
	// Missed independently of the call: reading the members of a completion takes 0.75 ns with Go's compiler and 0.61
	// ns with gcc (indexed addressing without folded pointers), so the loop over an empty Go function already takes
	// 1.14 of C's total.
	{"poll of 16, default, to C", 1.05, false, "×", over(plain(casePoll, 16), implDefault, plain(casePoll, 16), implC)},
}

func printTargets(w io.Writer, all results) {
	fmt.Fprint(w, "| target | limit | measured | |\n|---|---:|---:|---|\n")
	for _, t := range targets {
		v, sign := t.value(all), "≤"
		if t.least {
			sign = "≥"
		}
		verdict := "missed"
		if t.least == (v >= t.limit) || v == t.limit {
			verdict = "ok"
		}
		fmt.Fprintf(w, "| %s | %s %g%s | %.2f%s | %s |\n", t.what, sign, t.limit, t.unit, v, t.unit, verdict)
	}
}
