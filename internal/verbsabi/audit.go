// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// Verdict is the result of comparing an installation with the generated Go packages.
type Verdict string

const (
	Identical    Verdict = "identical"    // no differences
	Compatible   Verdict = "compatible"   // one side is older; all common declarations are the same
	Incompatible Verdict = "incompatible" // a program would access wrong memory or use a wrong value
)

// Question contains the arguments of Ask.
type Question struct {
	Packages []rules.Package // packages to check; empty means all
	Include  string          // include directory of the headers; empty means the compiler's own
	CC       Compiler        // compiler for Target
	Target   string          // GOARCH
	// Release contains the installed release by project, if the user has stated it.
	Release     map[string]string
	Only        Part     // check only this part; empty means everything
	LibraryDirs []string // directories of the libraries; empty means the loader's
	// DWARF lists libraries and files with debug information to compare instead of headers, or contains InstalledDebug.
	DWARF    []string
	DebugDir string // directory of debug files; empty means DebugDir
	// BTF lists files with kernel type information to compare instead of headers: the kernel's, followed by modules'.
	BTF []string
	// Go contains the compiled Go packages. If it is empty, because they were not compiled for Target, their model is
	// compared.
	Go       []witness.Package
	Primary  rules.Recorded // one model per project, from which the Go packages were generated
	Recorded rules.Recorded // all recorded releases
}

func (q Question) packages() []rules.Package {
	if len(q.Packages) == 0 {
		return rules.Calling()
	}
	return q.Packages
}

// Part is a part of an installation.
type Part string

const (
	Headers   Part = "headers"
	Libraries Part = "libraries"
	Layouts   Part = "layouts" // types in Question.DWARF and Question.BTF
)

// Answer describes the installation and its compatibility with the Go packages.
type Answer struct {
	Verdict      Verdict    `json:"verdict"` // of all fields below
	Headers      []*Include `json:"headers"` // by project whose headers or debug information was compared
	Libraries    []*Library `json:"libraries"`
	Program      *Program   `json:"program,omitempty"`     // if a program file was checked
	NotChecked   []Absent   `json:"not_checked,omitempty"` // parts of a program without a verdict
	NotInstalled []Absent   `json:"not_installed"`         // missing libraries, and packages with missing headers
	Findings     []Finding  `json:"findings"`              // all differences, incompatible ones first
	Change       *Change    `json:"change,omitempty"`      // since a baseline
	primary      rules.Recorded
}

// Include describes a project's installed headers, or its types in debug information, and their compatibility.
type Include struct {
	Source      Source       `json:"source"`
	Project     string       `json:"project"`
	Verdict     Verdict      `json:"verdict"`
	Packages    []string     `json:"packages"`        // whose headers were compared
	Dir         string       `json:"include"`         // their include directory, or the file with debug information
	Release     string       `json:"release"`         // of the headers: "44.0", or its order among the recorded ones
	Primary     string       `json:"primary"`         // the release that the Go packages were generated from
	Report      *Report      `json:"report"`          // of the C compiler about the parsed headers
	Differences []Difference `json:"differences"`     // between the headers and the Go packages
	Files       []string     `json:"files,omitempty"` // with debug information
	// NotChecked lists the packages' types that the debug information lacks.
	NotChecked []string `json:"not_checked,omitempty"`
	checked    *index   // types in the debug information
}

// Absent is something that is not installed.
type Absent struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// projectNames returns the names of the projects for Linux.
func projectNames() (all []string) {
	for _, p := range project.Linux() {
		all = append(all, p.Name)
	}
	return all
}

// Ask compares the installation with the Go packages. It returns an error if it reaches no verdict. A missing part is
// an error only if nothing is installed.
func Ask(ctx context.Context, q Question) (*Answer, error) {
	a := &Answer{Headers: []*Include{}, Libraries: []*Library{}, NotInstalled: []Absent{}, primary: q.Primary}
	for of, release := range q.Release {
		switch p := project.Named(of); {
		case p == nil:
			return nil, fmt.Errorf("unknown project %q; use one of %s", of, strings.Join(projectNames(), ", "))
		case p.GOOS != "":
			return nil, foreign("project "+of, p.GOOS)
		}
		if release != "" && !releaseName.MatchString(release) {
			return nil, fmt.Errorf("unknown release %q of %s; use a number such as %s", release, of, q.Primary.Of(of)[0].Name)
		}
	}
	var none error
	debug := len(q.DWARF) > 0 || len(q.BTF) > 0
	if len(q.DWARF) > 0 {
		if err := a.askDWARF(ctx, q); err != nil {
			return nil, err
		}
	}
	if len(q.BTF) > 0 {
		if err := a.askBTF(q); err != nil {
			return nil, err
		}
	}
	if q.Only != Libraries && !debug {
		projects, packages := projectsOf(q.packages())
		for _, of := range projects {
			err := a.askHeaders(ctx, q, of, packages[of.Name])
			if err != nil && !errors.Is(err, ErrNoHeaders) {
				return nil, err
			}
			if err != nil {
				none = cmp.Or(none, err)
				a.NotInstalled = append(a.NotInstalled, Absent{Name: "headers of " + of.Name, Why: err.Error()})
			}
		}
		if len(a.Headers) == 0 && none != nil && (q.Only == Headers || q.Include != "") {
			return nil, none
		}
	}
	if q.Only != Headers && q.Only != Layouts && (len(q.BTF) == 0 || len(q.DWARF) > 0) {
		found, absent, err := checkLibraries(ctx, q)
		if err != nil {
			return nil, err
		}
		a.Libraries = append(a.Libraries, found...)
		a.NotInstalled = append(a.NotInstalled, absent...)
	}
	if len(a.Headers) == 0 && len(a.Libraries) == 0 {
		if none == nil {
			none = errors.New(a.NotInstalled[0].Why)
		}
		return nil, none
	}
	a.Findings = a.findings()
	a.judge()
	return a, nil
}

// askHeaders parses a project's installed headers and compares them with the Go packages. The C compiler verifies the
// parser's result, so that the verdict does not depend on the parser.
func (a *Answer) askHeaders(ctx context.Context, q Question, of *project.Project, packages []rules.Package) error {
	include := q.Include
	if include == "" {
		var err error
		if include, err = FindHeaders(ctx, q.CC, of); err != nil {
			return err
		}
	}
	if q.Include != "" { // otherwise the C compiler could block on a pipe or read a device forever
		if err := bounded.Headers(q.Include); err != nil {
			return err
		}
	}
	if err := hasHeaders(include, of); err != nil {
		return err
	}
	packages, absent := installed(include, packages)
	if a.NotInstalled = append(a.NotInstalled, absent...); len(packages) == 0 {
		return fmt.Errorf("%w of %s: %s", ErrNoHeaders, absent[0].Name, absent[0].Why)
	}
	read, err := ReadHeaders(include, q.Target, ofProject(withImports(packages), of.Name))
	if err != nil {
		return err
	}
	ours := q.Primary.Of(of.Name)[0]
	h := &Include{Source: FromHeaders, Project: of.Name, Primary: ours.Name, Dir: include, Packages: namesOf(packages),
		Differences: []Difference{}}
	if len(q.Go) > 0 {
		differences, err := q.compareGo(ours, packages)
		if err != nil {
			return err
		}
		h.Differences = append(h.Differences, differences...)
	}
	theirs, primary := restrict(read, packages), restrict(ours, packages)
	var recorded []*model.Release
	for _, r := range q.Recorded.Of(of.Name) {
		recorded = append(recorded, restrict(r, packages))
	}
	stated := StatedRelease(include, of)
	stated = cmp.Or(q.Release[of.Name], Identify(theirs, recorded, q.Target, stated), stated)
	theirs.Name = stated
	differences := Compare(primary, theirs, recorded, q.Target)
	h.Differences = append(h.Differences, differences...)
	h.Release = cmp.Or(stated, place(differences, recorded))
	theirs.Name = cmp.Or(stated, "?")
	if h.Report, err = CWitness(ctx, q.CC, q.Include, theirs, q.Target); err != nil {
		return err
	}
	h.Verdict = h.verdict()
	a.Headers = append(a.Headers, h)
	return nil
}

var releaseName = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*$`)

// compareGo measures the Go packages and packages whose types they use, and compares them with their model.
func (q Question) compareGo(ours *model.Release, packages []rules.Package) ([]Difference, error) {
	packages = ofProject(withImports(packages), ours.Project)
	var compiled []witness.Package
	for _, p := range q.Go {
		if slices.Contains(namesOf(packages), p.Name) {
			compiled = append(compiled, p)
		}
	}
	if len(compiled) == 0 { // see Options.UAPI
		return nil, nil
	}
	have, err := Measure(compiled...)
	if err != nil {
		return nil, err
	}
	return compareModel(have, restrict(ours, packages), q.Target), nil
}

// measured returns the worst verdict of the headers and libraries.
func (a *Answer) measured() Verdict {
	all := map[Verdict]bool{}
	for _, h := range a.Headers {
		all[h.Verdict] = true
	}
	for _, l := range a.Libraries {
		all[l.Verdict] = true
	}
	switch {
	case all[Incompatible] || a.Program != nil && len(a.Program.Problems) > 0:
		return Incompatible
	case all[Compatible]:
		return Compatible
	}
	return Identical
}

func (h *Include) verdict() Verdict {
	switch {
	case h.Mismatches() > 0:
		return Incompatible
	case len(h.Differences) > 0:
		return Compatible
	}
	return Identical
}

// Mismatches counts the differences that make the headers incompatible: between the C compiler and the parser, and
// between the headers and the Go packages.
func (h *Include) Mismatches() int {
	n := len(h.Report.Mismatches)
	for _, d := range h.Differences {
		if !d.Compatible {
			n++
		}
	}
	return n
}

// place describes where headers of an unknown release fit among the recorded releases.
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

// Print writes the answer as text: counts and the verdict for the headers, a line for each library and each missing
// part, and a line for each mismatch. It prints the number of compatible differences; if verbose, it lists them.
func (a *Answer) Print(w io.Writer, verbose bool) error {
	p := printer{w: w}
	if a.Program != nil {
		p.line("%s", a.Program)
	}
	for _, h := range a.Headers {
		p.line("%s", h.Report.line(h.Mismatches()))
		verdict := fmt.Sprintf("%s: the %s in %s are of %s %s; the Go packages %s were generated from %s",
			h.Verdict, h.Source.noun(), h.Dir, h.Project, h.Release, strings.Join(h.Packages, ", "), h.Primary)
		if n := len(h.Differences); n > 0 {
			verdict += "; " + plural(n, "difference")
		}
		p.line("%s", verdict)
		if n := len(h.NotChecked); n > 0 && verbose {
			p.line("not checked: %s", strings.Join(h.NotChecked, ", "))
		} else if n > 0 {
			p.line("not checked: %d types of these packages, which %s lacks; -v lists them", n, h.Dir)
		}
	}
	for _, l := range a.Libraries {
		p.line("%s", l)
	}
	if n := a.Program.missing(a.Findings); n > 0 {
		p.line("%s: the host lacks %d libraries or symbol versions that the program needs", Incompatible, n)
	}
	for _, n := range a.NotInstalled {
		p.line("not installed: %s: %s", n.Name, n.Why)
	}
	for _, n := range a.NotChecked {
		p.line("not checked: %s: %s", n.Name, n.Why)
	}
	for _, f := range a.Findings {
		switch {
		case f.Fails():
			p.line("  wrong: %s", f.Text)
		case f.Accepted != "":
			p.line("  accepted: %s; %s", f.Text, f.Accepted)
		case verbose:
			p.line("  fine : %s", f.Text)
		}
	}
	if !verbose {
		a.countDifferences(&p)
	}
	if c := a.Change; c != nil {
		p.line("since the baseline: %d new differences, %d gone", len(c.New), len(c.Gone))
		for _, r := range c.Releases {
			p.line("  %s", r)
		}
		for _, id := range c.New {
			p.line("  new  : %s", id)
		}
		for _, id := range c.Gone {
			p.line("  gone : %s", id)
		}
	}
	for _, l := range a.Libraries {
		for _, s := range l.New {
			p.line("  new  : %s in %s: not in any table", s, l.Name)
		}
	}
	return p.err
}

// countDifferences writes the numbers of compatible differences.
func (a *Answer) countDifferences(p *printer) {
	all := 0
	count := func(where string, n int) {
		if all += n; n > 0 {
			p.line("  fine : %s: %s", where, plural(n, "difference"))
		}
	}
	for _, h := range a.Headers {
		n := 0
		for _, d := range h.Differences {
			if d.Compatible {
				n++
			}
		}
		count(h.Source.noun()+" of "+h.Project, n)
	}
	for _, l := range a.Libraries {
		count(l.Name, len(l.Problems)-l.Wrong())
	}
	if all > 0 {
		p.line("-v lists compatible differences")
	}
}

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// printer keeps the first write error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// headersOfPackage returns the name for missing headers of a package in an answer.
func headersOfPackage(name string) string {
	for _, p := range rules.Packages {
		if p.Name == name {
			return "headers of " + p.Project()
		}
	}
	return ""
}

// Require returns an error that names the packages, libraries and types that were not checked.
func (a *Answer) Require(names []string) error {
	checked := map[string]bool{}
	for _, h := range a.Headers {
		for _, p := range h.Packages {
			checked[p] = true
		}
		if h.checked != nil {
			for _, r := range h.checked.records {
				checked[r.rec.Tag] = true
			}
			for _, e := range h.checked.enums {
				checked[e.Tag] = true
			}
		}
	}
	for _, l := range a.Libraries {
		checked[l.Name] = true
	}
	var missing []error
	for _, name := range names {
		if !checked[name] {
			why := a.unrequested(name)
			for _, h := range a.Headers {
				if slices.ContainsFunc(h.NotChecked, func(t string) bool { return t[strings.LastIndexByte(t, ' ')+1:] == name }) {
					why = h.Dir + " has no debug information of it"
					if h.Source == FromBTF {
						why += "; load its kernel module, such as ib_uverbs, or add the module's file to -btf"
					}
				}
			}
			for _, n := range a.NotInstalled {
				if n.Name == name || n.Name == headersOfPackage(name) || n.Name == debugOf(libraries[name].name) {
					why = n.Why
				}
			}
			missing = append(missing, fmt.Errorf("%s is required and was not checked: %s", name, why))
		}
	}
	return errors.Join(missing...)
}

// unrequested returns why something was not checked that is neither absent nor without debug information.
func (a *Answer) unrequested(name string) string {
	for _, p := range rules.Packages {
		called := p.Verbs != nil && p.Verbs.SOName == name
		switch i := slices.IndexFunc(a.NotChecked, func(n Absent) bool { return n.Name == "layouts of "+p.Project() }); {
		case p.Name == name && i >= 0:
			return a.NotChecked[i].Why
		case called && a.Program != nil:
			return "the program calls none of its functions"
		case p.Name == name || called:
			return "not requested"
		}
	}
	for _, r := range a.primary {
		for i := range r.Headers {
			h := &r.Headers[i]
			if slices.ContainsFunc(h.Records, func(r model.Record) bool { return r.Tag == name }) ||
				slices.ContainsFunc(h.Enums, func(e model.Enum) bool { return e.Tag == name }) {
				return "single types are checked in debug information only; use -dwarf, or -btf for types of the kernel"
			}
		}
	}
	return "no package, library or type has this name"
}
