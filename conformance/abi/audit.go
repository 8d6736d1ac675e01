// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// Verdict is how what is installed and the generated Go packages go together.
type Verdict string

const (
	Identical    Verdict = "identical"    // they say the same
	Compatible   Verdict = "compatible"   // one is older; what both have is the same
	Incompatible Verdict = "incompatible" // a program would read or write the wrong memory, or mean another value
)

// Question is what Ask needs to know.
type Question struct {
	Packages    []rules.Package // to check; all when empty
	Include     string          // include directory that holds infiniband/verbs.h; the compiler's own when empty
	CC          Compiler        // for Target
	Target      string          // GOARCH
	Release     string          // of the installed headers, where the user states it
	Only        Part            // look at nothing else; everything when empty
	LibraryDirs []string        // where the libraries are; where the loader looks when empty
	// the Go packages; empty when they were not compiled for Target, and their model stands for them
	Go       []witness.Package
	Primary  *model.Release   // the model that the Go packages were generated from
	Recorded []*model.Release // all recorded releases
}

func (q Question) packages() []rules.Package {
	if len(q.Packages) == 0 {
		return rules.Packages
	}
	return q.Packages
}

// Part is one of the two things that an installation has.
type Part string

const (
	Headers   Part = "headers"
	Libraries Part = "libraries"
)

// Answer is what is installed, and how the Go packages go with it.
type Answer struct {
	Verdict      Verdict      `json:"verdict"`     // of everything below
	Headers      Verdict      `json:"headers"`     // empty where no headers were looked at
	Packages     []string     `json:"packages"`    // whose headers were compared
	Include      string       `json:"include"`     // where they are
	Release      string       `json:"release"`     // of the headers: "44.0", or how it lies to the recorded ones
	Primary      string       `json:"primary"`     // the release that the Go packages were generated from
	Report       *Report      `json:"report"`      // of the C compiler, about our reading of the headers
	Differences  []Difference `json:"differences"` // between the headers and the Go packages
	Libraries    []*Library   `json:"libraries"`
	NotInstalled []Absent     `json:"not_installed"` // packages whose headers, and libraries that, are not here
}

// Absent is something that a machine has not.
type Absent struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Ask compares what is installed with the Go packages. An error means that there is no verdict; that some of it is not
// installed is none, unless nothing is.
func Ask(ctx context.Context, q Question) (*Answer, error) {
	a := &Answer{Primary: q.Primary.Name, Packages: []string{}, Differences: []Difference{}, Libraries: []*Library{},
		NotInstalled: []Absent{}}
	var none error
	if q.Only != Libraries {
		none = a.askHeaders(ctx, q)
		if none != nil && (q.Only == Headers || q.Include != "" || !errors.Is(none, ErrNoHeaders)) {
			return nil, none
		}
		if none != nil {
			a.NotInstalled = append(a.NotInstalled, Absent{Name: "headers", Why: none.Error()})
		}
	}
	if q.Only != Headers {
		found, absent, err := checkLibraries(ctx, q)
		if err != nil {
			return nil, err
		}
		a.Libraries = append(a.Libraries, found...)
		a.NotInstalled = append(a.NotInstalled, absent...)
	}
	if a.Report == nil && len(a.Libraries) == 0 {
		if none == nil {
			none = errors.New(a.NotInstalled[0].Why)
		}
		return nil, none
	}
	a.Verdict = a.verdict()
	return a, nil
}

// askHeaders reads the installed headers, compares them with the Go packages, and lets the C compiler prove the
// reading, so that the verdict does not rest on a C reader of our own.
func (a *Answer) askHeaders(ctx context.Context, q Question) error {
	if q.Release != "" && !releaseName.MatchString(q.Release) {
		return fmt.Errorf("%q is no release of rdma-core; name one like 44.0", q.Release)
	}
	include := q.Include
	if include == "" {
		var err error
		if include, err = FindHeaders(ctx, q.CC); err != nil {
			return err
		}
	}
	if err := hasHeaders(include); err != nil {
		return err
	}
	packages, absent := installed(include, q.packages())
	if a.NotInstalled = append(a.NotInstalled, absent...); len(packages) == 0 {
		return fmt.Errorf("%w of %s: %s", ErrNoHeaders, absent[0].Name, absent[0].Why)
	}
	read, err := ReadHeaders(include, q.Target, withImports(packages))
	if err != nil {
		return err
	}
	if len(q.Go) > 0 {
		differences, err := q.compareGo(packages)
		if err != nil {
			return err
		}
		a.Differences = append(a.Differences, differences...)
	}
	theirs, primary := restrict(read, packages), restrict(q.Primary, packages)
	var recorded []*model.Release
	for _, r := range q.Recorded {
		recorded = append(recorded, restrict(r, packages))
	}
	stated := cmp.Or(q.Release, Identify(theirs, recorded, q.Target), StatedRelease(include))
	theirs.Name = stated
	differences := Compare(primary, theirs, recorded, q.Target)
	a.Differences = append(a.Differences, differences...)
	a.Include, a.Packages = include, namesOf(packages)
	a.Release = cmp.Or(stated, place(differences, recorded))
	theirs.Name = cmp.Or(stated, "?")
	if a.Report, err = CWitness(ctx, q.CC, q.Include, theirs, q.Target); err != nil {
		return err
	}
	a.Headers = a.headersVerdict()
	return nil
}

var releaseName = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*$`)

// compareGo measures the Go packages, with those whose types they use, and compares them with their model.
func (q Question) compareGo(packages []rules.Package) ([]Difference, error) {
	packages = withImports(packages)
	var compiled []witness.Package
	for _, p := range q.Go {
		if slices.Contains(namesOf(packages), p.Name) {
			compiled = append(compiled, p)
		}
	}
	facts, err := Measure(compiled...)
	if err != nil {
		return nil, err
	}
	return facts.CompareModel(restrict(q.Primary, packages), q.Target), nil
}

// verdict is the worst of all.
func (a *Answer) verdict() Verdict {
	all := map[Verdict]bool{a.Headers: true}
	for _, l := range a.Libraries {
		all[l.Verdict] = true
	}
	switch {
	case all[Incompatible]:
		return Incompatible
	case all[Compatible]:
		return Compatible
	}
	return Identical
}

func (a *Answer) headersVerdict() Verdict {
	switch {
	case a.Mismatches() > 0:
		return Incompatible
	case len(a.Differences) > 0:
		return Compatible
	}
	return Identical
}

// Mismatches counts what makes the headers incompatible: what the C compiler has otherwise than we read it, and what
// they have otherwise than the Go packages.
func (a *Answer) Mismatches() int {
	n := len(a.Report.Mismatches)
	for _, d := range a.Differences {
		if !d.Compatible {
			n++
		}
	}
	return n
}

// place tells how headers of no known release lie to the recorded ones.
func place(differences []Difference, recorded []*model.Release) string {
	names := make([]string, 0, len(recorded))
	for _, r := range recorded {
		names = append(names, r.Name)
	}
	slices.SortFunc(names, compareReleases)
	var lack, more bool
	for _, d := range differences {
		lack = lack || d.Headers == ""
		more = more || (d.Want == "" && d.Since == "")
	}
	switch {
	case len(names) == 0:
	case more && !lack:
		return "newer than " + names[len(names)-1]
	case lack && !more && len(names) > 1:
		return "between " + names[0] + " and " + names[len(names)-1]
	}
	return "unknown"
}

// Print writes the answer for people: for the headers the line of counts and the verdict, a line for each library and
// for what is not installed, then every mismatch on a line. Differences that are compatible are counted, for the
// headers and for each library, or with verbose each is a line.
func (a *Answer) Print(w io.Writer, verbose bool) error {
	p := printer{w: w}
	if a.Report != nil {
		p.line("%s", a.Report.line(a.Mismatches()))
		verdict := fmt.Sprintf("%s: the headers in %s are of rdma-core %s; the Go packages %s were generated from %s",
			a.Headers, a.Include, a.Release,
			strings.Join(a.Packages, ", "), a.Primary)
		if n := len(a.Differences); n > 0 {
			verdict += fmt.Sprintf("; %d differences", n)
		}
		p.line("%s", verdict)
	}
	for _, l := range a.Libraries {
		p.line("%s", l)
	}
	for _, n := range a.NotInstalled {
		p.line("not installed: %s: %s", n.Name, n.Why)
	}
	a.printDifferences(&p, false, "wrong")
	if verbose {
		a.printDifferences(&p, true, "fine ")
	} else {
		a.countDifferences(&p)
	}
	for _, l := range a.Libraries {
		for _, s := range l.New {
			p.line("  new  : %s in %s: no table knows it", s, l.Name)
		}
	}
	return p.err
}

func (a *Answer) printDifferences(p *printer, compatible bool, word string) {
	if a.Report != nil && !compatible {
		for _, m := range a.Report.Mismatches {
			p.line("  %s: the C compiler has it otherwise than it was read: %s", word, m)
		}
	}
	for _, d := range a.Differences {
		if d.Compatible == compatible {
			p.line("  %s: %s", word, d)
		}
	}
	for _, l := range a.Libraries {
		for _, d := range l.Problems {
			if d.Compatible == compatible {
				p.line("  %s: %s: %s", word, l.Name, d)
			}
		}
	}
}

// countDifferences writes how many differences are compatible.
func (a *Answer) countDifferences(p *printer) {
	all := 0
	count := func(where string, n int) {
		if all += n; n > 0 {
			p.line("  fine : %s: %d differences", where, n)
		}
	}
	n := 0
	for _, d := range a.Differences {
		if d.Compatible {
			n++
		}
	}
	count("headers", n)
	for _, l := range a.Libraries {
		count(l.Name, len(l.Problems)-l.Wrong())
	}
	if all > 0 {
		p.line("-v lists what is fine")
	}
}

// printer keeps the first error of many writes.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// Require is an error that names those of the packages and libraries that were not checked.
func (a *Answer) Require(names []string) error {
	checked := map[string]bool{}
	for _, p := range a.Packages {
		checked[p] = true
	}
	for _, l := range a.Libraries {
		checked[l.Name] = true
	}
	var missing []error
	for _, name := range names {
		if !checked[name] {
			why := "it was not asked for"
			for _, n := range a.NotInstalled {
				if n.Name == name || n.Name == "headers" && why == "it was not asked for" {
					why = n.Why
				}
			}
			missing = append(missing, fmt.Errorf("%s is required and was not checked: %s", name, why))
		}
	}
	return errors.Join(missing...)
}
