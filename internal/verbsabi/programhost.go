// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/ibv"
)

// String returns the program on one line.
func (p *Program) String() string {
	s := fmt.Sprintf("program %s (%s): linux/%s, goverbs %s", p.Path, p.Main, p.Target, p.Module)
	switch {
	case p.Static:
		return s + ", cannot open C libraries (goverbs_static or another target)"
	case len(p.Libraries) == 0:
		return s + ", calls no C library"
	}
	var all []string
	for _, l := range p.Libraries {
		all = append(all, fmt.Sprintf("%d functions of %s", len(l.Functions), l.Name))
	}
	return s + ", can call " + strings.Join(all, ", ")
}

// runProgram checks a compiled program instead of headers.
func runProgram(q Question, o Options, policy *policy, base *baseline, stdout io.Writer) (bool, error) {
	p, err := readProgram(o.Program)
	if err != nil {
		return false, err
	}
	host, err := openHost(cmp.Or(o.Host, "/"))
	if err != nil {
		return false, fmt.Errorf("the host: %w", err)
	}
	defer host.close()
	answer, err := q.askProgram(p, host)
	if err != nil {
		return false, fmt.Errorf("%s: %w", host.name, err)
	}
	o.Target = p.Target
	stale, err := o.accept(answer, policy, base)
	if err != nil {
		return false, err
	}
	err = errors.Join(answer.write(stdout, o.Format, o.Verbose), answer.writeFiles(List(o.Write), o.Verbose), stale,
		answer.Require(List(o.Required)))
	return answer.Verdict != Incompatible, err
}

// loading resolves libraries in the loader's order.
type loading struct {
	host   *hostRoot
	p      *Program
	dirs   []string
	loaded map[string]*loadedFile // by name; nil if not found
}

// loadedFile is a file that the loader finds.
type loadedFile struct {
	path string // in the host, without links
	elf  *elf.File
}

// askProgram compares a program with the libraries of a host.
func (q Question) askProgram(p *Program, host *hostRoot) (*Answer, error) {
	a := &Answer{Program: p, Headers: []*Include{}, Libraries: []*Library{}, NotInstalled: []Absent{}, primary: q.Primary}
	rows, err := symbolRows("internal/verbsabi/symbols.txt", symbolsText)
	if err != nil {
		return nil, err
	}
	l := &loading{host: host, p: p, loaded: map[string]*loadedFile{}}
	if l.dirs, err = host.loaderDirs(p.Loader, p.Target); err != nil {
		return nil, err
	}
	if p.Loader != "" {
		if err := l.load(p.Loader, "", "the loader of the program", ""); err != nil {
			return nil, err
		}
	}
	for _, name := range p.Linked {
		if err := l.load(name, "", "the program is linked with it", ""); err != nil {
			return nil, err
		}
	}
	l.versions("the program", p.needs)
	releases := map[string]string{}
	for _, need := range p.Libraries {
		at := slices.IndexFunc(rules.Packages, func(r rules.Package) bool { return r.Name == need.Package })
		pkg, lib := rules.Packages[at], libraries[need.Package]
		why := fmt.Sprintf("the program can call %d of its functions", len(need.Functions))
		if err := l.load(need.Name, "", why, lib.debian); err != nil {
			return nil, err
		}
		file := l.loaded[need.Name]
		if file == nil {
			continue
		}
		have, err := exports(file.elf)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.path, err)
		}
		past := pastFunctions(q.Recorded.Of(pkg.Project()), pkg)
		found := &Library{Name: need.Name, Package: pkg.Name, Project: pkg.Project(), Path: file.path,
			Problems: []SymbolDifference{}, New: []Symbol{}, Bound: []Symbol{}}
		installed, err := host.debianRelease(lib.debian)
		if err != nil {
			return nil, err
		}
		byName := ""
		if m := versionOfFile.FindStringSubmatch(file.path); m != nil {
			byName = m[1]
		}
		found.Release = cmp.Or(byName, q.Release[pkg.Project()], installed, releaseOfSymbols(have, past))
		found.compare(need.table(lib.functions), have, past, rows)
		found.compareVersions(q.Recorded.Of(pkg.Project()))
		a.Libraries = append(a.Libraries, found)
		releases[pkg.Project()] = cmp.Or(releases[pkg.Project()], found.Release)
	}
	a.layouts(q, p, releases)
	a.Findings = a.findings()
	a.judge()
	return a, nil
}

// table returns the rows for functions that the program can call. Functions without a row are from another version of
// this module.
func (l ProgramLibrary) table(all []ibv.Function) []ibv.Function {
	var some []ibv.Function
	for _, name := range l.Functions {
		i := slices.IndexFunc(all, func(f ibv.Function) bool { return f.Name == name })
		if i >= 0 {
			some = append(some, all[i])
		}
	}
	return some
}

// compareVersions checks that each function has a version from a recorded release: a different version may have
// different arguments.
func (l *Library) compareVersions(recorded []*model.Release) {
	versions := map[string][]string{}
	for _, r := range recorded {
		if lib := r.Library(l.Name); lib != nil {
			for _, s := range lib.Symbols {
				if !s.Old {
					versions[s.Name] = append(versions[s.Name], s.Version)
				}
			}
		}
	}
	for _, s := range l.Bound {
		if known := versions[s.Name]; len(known) > 0 && !slices.Contains(known, s.Version) {
			l.Problems = append(l.Problems, SymbolDifference{Name: s.Name, Why: fmt.Sprintf(
				"its version is %s, which may have different arguments than %s of the recorded releases",
				cmp.Or(s.Version, "none"), cmp.Or(known[0], "none"))})
			l.Verdict = Incompatible
		}
	}
}

// problem adds a requirement that the host lacks.
func (l *loading) problem(rule, id, format string, args ...any) {
	d := ProgramProblem{rule + " " + id, rule, fmt.Sprintf(format, args...)}
	if !slices.ContainsFunc(l.p.Problems, func(have ProgramProblem) bool { return have.ID == d.ID }) {
		l.p.Problems = append(l.p.Problems, d)
	}
}

// maxLoaded limits the libraries that one program loads.
const maxLoaded = 1000

// load finds a library and, recursively, its dependencies. by is the reason why it is needed, and runpath contains the
// directories in its user's RUNPATH. Like the loader, load skips files for other targets.
func (l *loading) load(name, runpath, by, debian string) error {
	if _, ok := l.loaded[name]; ok || len(l.loaded) >= maxLoaded {
		return nil
	}
	l.loaded[name] = nil
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, dir := range append(strings.FieldsFunc(runpath, func(r rune) bool { return r == ':' }), l.dirs...) {
			candidates = append(candidates, path.Join(dir, name))
		}
	}
	var others []string
	for _, candidate := range candidates {
		data, real, err := l.host.read(candidate)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			others = append(others, fmt.Sprintf("%s is not a library (%v)", real, err))
			continue
		}
		if !forTarget(f, l.p.Target) {
			if other := fmt.Sprintf("%s is for %v", real, f.Machine); !slices.Contains(others, other) {
				others = append(others, other)
			}
			continue
		}
		l.loaded[name] = &loadedFile{real, f}
		return l.linked(name, l.loaded[name])
	}
	text := fmt.Sprintf("%s: no such library for %s, but %s", name, l.p.Target, by)
	if len(others) > 0 {
		text += "; " + strings.Join(others, "; ")
	}
	if debian != "" {
		text += "; install " + debian
	}
	l.problem(libraryRule, name, "%s", text)
	return nil
}

// linked loads a library's dependencies and looks up the versions that it needs.
func (l *loading) linked(name string, file *loadedFile) error {
	names, err := file.elf.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", file.path, err)
	}
	var runpath string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if paths, err := file.elf.DynString(tag); err == nil && len(paths) > 0 {
			runpath = strings.NewReplacer("$ORIGIN", path.Dir(file.path), "${ORIGIN}", path.Dir(file.path)).
				Replace(strings.Join(paths, ":"))
		}
	}
	for _, other := range names {
		if err := l.load(other, runpath, name+" is linked with it", ""); err != nil {
			return err
		}
	}
	needs, err := versionsNeeded(file.elf)
	if err != nil {
		return fmt.Errorf("%s: %w", file.path, err)
	}
	l.versions(name, needs)
	return nil
}

// versions looks up symbol versions in the libraries that define them.
func (l *loading) versions(by string, needs map[string]string) {
	for _, id := range slices.Sorted(func(yield func(string) bool) {
		for id := range needs {
			if !yield(id) {
				return
			}
		}
	}) {
		file := l.loaded[needs[id]]
		if file == nil { // reported
			continue
		}
		version := strings.TrimPrefix(id, needs[id]+" ")
		defined, err := file.elf.DynamicVersions()
		if err == nil && slices.ContainsFunc(defined, func(v elf.DynamicVersion) bool { return v.Name == version }) {
			continue
		}
		if len(defined) == 0 && file.elf.SectionByType(elf.SHT_GNU_VERDEF) == nil {
			continue // the loader accepts a library without versions
		}
		l.problem(versionRule, by+" "+version, "%s needs version %s of %s, which %s lacks: the host is older than the "+
			"build host", by, version, needs[id], file.path)
	}
}

// versionOfPackage matches the release in a Debian package's version: 65.0 in 65.0-1.1.
var versionOfPackage = regexp.MustCompile(`^(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)+)(?:[-+~]|$)`)

// debianRelease returns the release of an installed package from dpkg's database, or "".
func (h *hostRoot) debianRelease(pkg string) (string, error) {
	files := []string{"/var/lib/dpkg/status"}
	more, err := h.glob("/var/lib/dpkg/status.d/*") // of images without dpkg
	if err != nil {
		return "", err
	}
	for _, name := range append(files, more...) {
		text, _, err := h.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, len(text)+1)
		for ours := false; lines.Scan(); {
			if at, ok := strings.CutPrefix(lines.Text(), "Package: "); ok {
				at, _, _ = strings.Cut(at, "t64")
				ours = at == pkg
			}
			version, ok := strings.CutPrefix(lines.Text(), "Version: ")
			if m := versionOfPackage.FindStringSubmatch(version); ours && ok && m != nil {
				return m[1], nil
			}
		}
	}
	return "", nil
}

// layouts compares the layouts that the program was built for with the recorded layouts of the host's releases.
func (a *Answer) layouts(q Question, p *Program, releases map[string]string) {
	skip := func(of, format string, args ...any) {
		a.NotChecked = append(a.NotChecked, Absent{"layouts of " + of, fmt.Sprintf(format, args...)})
	}
	var packages []rules.Package
	for _, l := range a.Libraries {
		for _, r := range rules.Packages {
			if r.Name == l.Package {
				packages = append(packages, r)
			}
		}
	}
	projects, by := projectsOf(packages)
	for _, of := range projects {
		release, ours := releases[of.Name], q.Primary.Of(of.Name)[0]
		if own := ownVersion(); p.Module != own {
			skip(of.Name, "the program contains version %s of %s, and this command %s; use the same version", p.Module,
				rules.Module, own)
			continue
		}
		recorded := q.Recorded.Of(of.Name)
		i := slices.IndexFunc(recorded, func(r *model.Release) bool { return r.Name == release })
		if i < 0 {
			skip(of.Name, "the host has release %s; its layouts are known for %s", cmp.Or(release, "unknown"),
				strings.Join(namesOfReleases(recorded), ", "))
			continue
		}
		if p.Module == unversioned {
			a.NotChecked = append(a.NotChecked, Absent{"version of " + rules.Module,
				"the program and this command were built from directories; their layouts are taken to be the same"})
		}
		var past []*model.Release
		for _, r := range recorded {
			past = append(past, restrict(r, by[of.Name]))
		}
		theirs := restrict(recorded[i], by[of.Name])
		w, err := NewWitness(theirs, p.Target)
		if err != nil {
			skip(of.Name, "%v", err)
			continue
		}
		h := &Include{Project: of.Name, Packages: namesOf(by[of.Name]), Dir: "the recorded model", Release: release,
			Primary: ours.Name, Report: &Report{Project: of.Name, Release: release, Target: p.Target, Counts: w.Counts,
				Mismatches: []Mismatch{}}, Differences: []Difference{}}
		h.Differences = append(h.Differences, Compare(restrict(ours, by[of.Name]), theirs, past, p.Target)...)
		h.Verdict = h.verdict()
		a.Headers = append(a.Headers, h)
	}
}

func namesOfReleases(all []*model.Release) []string {
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	slices.SortFunc(names, compareReleases)
	return names
}
