package abi

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// Verdict is how installed headers and a generated Go package go together.
type Verdict string

const (
	Identical    Verdict = "identical"    // they say the same
	Compatible   Verdict = "compatible"   // one is older; what both have is the same
	Incompatible Verdict = "incompatible" // a program would read or write the wrong memory, or mean another value
)

// Question is what Ask needs to know.
type Question struct {
	Include  string           // include directory that holds infiniband/verbs.h; the compiler's own when empty
	CC       Compiler         // for Target
	Target   string           // GOARCH
	Release  string           // of the installed headers, where the user states it
	Go       *GoFacts         // of the Go package; nil when it was not compiled for Target, and its model stands for it
	Primary  *model.Release   // the model that the Go package was generated from
	Recorded []*model.Release // all recorded releases
}

// Answer is what the installed headers are, and how the Go package goes with them.
type Answer struct {
	Verdict     Verdict      `json:"verdict"`
	Include     string       `json:"include"`
	Release     string       `json:"release"` // "44.0", or how it lies to the recorded ones
	Primary     string       `json:"primary"`
	Report      *Report      `json:"report"`      // of the C compiler, about our reading of the headers
	Differences []Difference `json:"differences"` // between the headers and the Go package
}

// Ask reads the installed headers, compares them with the Go package, and lets the C compiler prove the reading, so that the
// verdict does not rest on a C reader of our own. An error means that there is no verdict.
func Ask(ctx context.Context, q Question) (*Answer, error) {
	include := q.Include
	if include == "" {
		var err error
		if include, err = FindHeaders(ctx, q.CC); err != nil {
			return nil, err
		}
	}
	theirs, err := ReadHeaders(include, q.Target)
	if err != nil {
		return nil, err
	}
	a := &Answer{Include: include, Primary: q.Primary.Name, Differences: []Difference{}}
	if q.Go != nil {
		a.Differences = append(a.Differences, q.Go.CompareModel(q.Primary, q.Target)...)
	}
	stated := cmp.Or(q.Release, Identify(theirs, q.Recorded, q.Target), StatedRelease(include))
	theirs.Name = stated
	differences := Compare(q.Primary, theirs, q.Recorded, q.Target)
	a.Differences = append(a.Differences, differences...)
	a.Release = cmp.Or(stated, place(differences, q.Recorded))
	theirs.Name = cmp.Or(stated, "?")
	if a.Report, err = CWitness(ctx, q.CC, q.Include, theirs, q.Target); err != nil {
		return nil, err
	}
	a.Verdict = a.verdict()
	return a, nil
}

func (a *Answer) verdict() Verdict {
	switch {
	case a.Mismatches() > 0:
		return Incompatible
	case len(a.Differences) > 0:
		return Compatible
	}
	return Identical
}

// Mismatches counts what makes the verdict incompatible: what the C compiler has otherwise than we read it, and what the
// headers have otherwise than the Go package.
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

// Print writes the answer for people: the line of counts, the verdict, then every mismatch and every difference on a line.
func (a *Answer) Print(w io.Writer) error {
	p := printer{w: w}
	p.line("%s", a.Report.line(a.Mismatches()))
	verdict := fmt.Sprintf("%s: the headers in %s are of rdma-core %s; the Go package was generated from %s", a.Verdict, a.Include, a.Release, a.Primary)
	if n := len(a.Differences); n > 0 {
		verdict += fmt.Sprintf("; %d differences", n)
	}
	p.line("%s", verdict)
	for _, m := range a.Report.Mismatches {
		p.line("  wrong: the C compiler has it otherwise than it was read: %s", m)
	}
	for _, d := range a.Differences {
		if !d.Compatible {
			p.line("  wrong: %s", d)
		}
	}
	for _, d := range a.Differences {
		if d.Compatible {
			p.line("  fine : %s", d)
		}
	}
	return p.err
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
