// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"slices"
	"strings"
)

// Finding is a difference between the installation and the Go packages, in a form for all output formats.
type Finding struct {
	// ID identifies the difference across runs and releases, such as "field ibv_sge.addr offset" or "symbol
	// libibverbs.so.1 ibv_close_device". Policies and baselines contain these IDs.
	ID         string `json:"id"`
	Rule       string `json:"rule"` // kind of difference: a [Kind], "symbol" or "compiler"
	Path       string `json:"path"` // include directory or library
	Text       string `json:"text"`
	Compatible bool   `json:"compatible"`
	Accepted   string `json:"accepted,omitempty"` // reason in the policy, or the baseline; empty if not accepted
}

// Fails reports whether the finding makes the installation incompatible.
func (f Finding) Fails() bool { return !f.Compatible && f.Accepted == "" }

// Rules of findings other than the kinds of items.
const (
	compilerRule = "compiler" // the C compiler disagrees with the parser
	symbolRule   = "symbol"   // a function of a library
	libraryRule  = "library"  // a library that a program needs
	versionRule  = "version"  // a version of symbols that a library needs
)

// ruleTexts describes the rules of findings.
var ruleTexts = map[string]string{
	string(RecordItem):     "Size or alignment of a structure or union",
	string(FieldItem):      "Offset, size or type of a member",
	string(EnumItem):       "Size of an enumeration",
	string(EnumeratorItem): "Value of an enumerator",
	string(ConstantItem):   "Value of a macro",
	string(AliasItem):      "Target of a macro that is another name",
	string(MacroItem):      "Macro with parameters",
	string(FuncItem):       "Prototype or linkage of a function",
	symbolRule:             "Function that a library exports",
	libraryRule:            "Library that a program needs",
	versionRule:            "Version of symbols that a program or a library needs",
	compilerRule:           "Disagreement of the C compiler with the parser",
}

// findings lists all differences of an answer, incompatible ones first.
func (a *Answer) findings() []Finding {
	all := []Finding{}
	for _, h := range a.Headers {
		for _, m := range h.Report.Mismatches {
			all = append(all, Finding{ID: compilerRule + " " + m.Item.label(), Rule: compilerRule, Path: h.Dir,
				Text: "the C compiler disagrees with the parser: " + m.String()})
		}
		for _, d := range h.Differences {
			all = append(all, Finding{ID: string(d.Kind) + " " + d.Item.label(), Rule: string(d.Kind), Path: h.Dir,
				Text: d.String(), Compatible: d.Compatible})
		}
	}
	for _, l := range a.Libraries {
		for _, d := range l.Problems {
			all = append(all, Finding{ID: symbolRule + " " + l.Name + " " + d.Name, Rule: symbolRule,
				Path: l.Path, Text: l.Name + ": " + d.String(), Compatible: d.Compatible})
		}
	}
	if p := a.Program; p != nil {
		for _, d := range p.Problems {
			all = append(all, Finding{ID: d.ID, Rule: d.Rule, Path: p.Path, Text: d.Text})
		}
	}
	slices.SortStableFunc(all, func(x, y Finding) int {
		switch {
		case x.Compatible == y.Compatible:
			return 0
		case y.Compatible:
			return -1
		}
		return 1
	})
	return all
}

// label returns "ibv_sge.addr offset", or "IBV_WR_SEND value" for an enumerator or a macro.
func (i Item) label() string {
	name := i.Name
	switch {
	case name == "-" || i.Kind == EnumeratorItem && i.Path != "":
		name = i.Path
	case i.Path != "":
		name += "." + i.Path
	}
	return name + " " + i.Fact
}

// judge sets the answer's verdict: the worst of its parts, unless all incompatible differences are accepted.
func (a *Answer) judge() {
	a.Verdict = a.measured()
	if a.Verdict == Incompatible && !slices.ContainsFunc(a.Findings, func(f Finding) bool { return f.Fails() }) {
		a.Verdict = Compatible
	}
}

// title describes the answer in one line.
func (a *Answer) title() string {
	var parts []string
	if a.Program != nil {
		parts = append(parts, "program "+a.Program.Main)
	}
	for _, h := range a.Headers {
		parts = append(parts, fmt.Sprintf("%s of %s %s", h.Source.noun(), h.Project, h.Release))
	}
	for _, l := range a.Libraries {
		parts = append(parts, l.Name)
	}
	return fmt.Sprintf("%s: %s", a.Verdict, strings.Join(parts, ", "))
}
