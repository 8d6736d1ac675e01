// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/hnsdv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/ionicdv"
	"github.com/goverbs/goverbs/generated/manadv"
	"github.com/goverbs/goverbs/generated/mlx4dv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/rpma"
)

// library is the shared library of a generated package's functions.
type library struct {
	name      string // name passed to the loader
	debian    string // its Debian package
	functions []ibv.Function
}

var libraries = map[string]library{
	"ibv":     {"libibverbs.so.1", "libibverbs1", ibv.Functions},
	"rdmacm":  {"librdmacm.so.1", "librdmacm1", rdmacm.Functions},
	"mlx5dv":  {"libmlx5.so.1", "ibverbs-providers", mlx5dv.Functions},
	"mlx4dv":  {"libmlx4.so.1", "ibverbs-providers", mlx4dv.Functions},
	"efadv":   {"libefa.so.1", "ibverbs-providers", efadv.Functions},
	"hnsdv":   {"libhns.so.1", "ibverbs-providers", hnsdv.Functions},
	"manadv":  {"libmana.so.1", "ibverbs-providers", manadv.Functions},
	"ionicdv": {"libionic.so.1", "ibverbs-providers", ionicdv.Functions},
	"rpma":    {"librpma.so.0", "librpma0", rpma.Functions},
}

// Library describes an installed library and its compatibility with the function table of a generated package.
type Library struct {
	Name     string             `json:"name"` // "libibverbs.so.1"
	Package  string             `json:"package"`
	Path     string             `json:"path"`
	Project  string             `json:"project"`           // project of the library
	Release  string             `json:"release,omitempty"` // empty if unknown
	Verdict  Verdict            `json:"verdict"`
	Total    int                `json:"total"`     // functions in the table that a library exports
	Bound    []Symbol           `json:"functions"` // functions that this library has, with their default versions
	Problems []SymbolDifference `json:"differences"`
	New      []Symbol           `json:"new"` // exports for programs, missing from all tables
}

// Symbol is an exported name and its default version.
type Symbol struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// SymbolDifference is a function in the table that the library does not export as described there.
type SymbolDifference struct {
	Name       string `json:"name"`
	Since      string `json:"since,omitempty"` // release of the project
	Compatible bool   `json:"compatible"`
	Why        string `json:"why"`
}

func (d SymbolDifference) String() string {
	s := fmt.Sprintf("symbol %s: %s", d.Name, d.Why)
	if d.Since != "" {
		s += "; since " + d.Since
	}
	return s
}

// checkLibraries checks the packages' libraries. It returns missing libraries as absent. A file that is not a library
// is an error.
func checkLibraries(ctx context.Context, q Question) (found []*Library, absent []Absent, err error) {
	rows, err := symbolRows("internal/verbsabi/symbols.txt", symbolsText)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range q.packages() {
		lib, ok := libraries[p.Name]
		if !ok && p.Verbs == nil {
			continue
		}
		if !ok {
			return nil, nil, fmt.Errorf("no known library for package %s; add it to internal/verbsabi/library.go",
				p.Name)
		}
		path, err := FindLibrary(ctx, q.CC, lib.name, q.Target, q.LibraryDirs)
		if errors.Is(err, ErrNoLibrary) {
			absent = append(absent, Absent{Name: lib.name, Why: fmt.Sprintf("%v; install %s", err, lib.debian)})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		l, err := readLibrary(path, p, lib, pastFunctions(q.Recorded.Of(p.Project()), p), rows,
			q.Release[p.Project()])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		found = append(found, l)
	}
	return found, absent, nil
}

// pastFunction contains the extern functions that the headers of a recorded release declare.
type pastFunction struct {
	release string
	extern  map[string]bool
}

// pastFunctions returns the extern functions of a package's headers for every recorded release, oldest first.
func pastFunctions(recorded []*model.Release, p rules.Package) []pastFunction {
	var past []pastFunction
	for _, r := range recorded {
		extern := map[string]bool{}
		for _, h := range r.Headers {
			for _, f := range h.Funcs {
				if slices.Contains(p.Headers, h.Name) && f.Inline == nil {
					extern[f.Name] = true
				}
			}
		}
		past = append(past, pastFunction{r.Name, extern})
	}
	slices.SortFunc(past, func(a, b pastFunction) int { return compareReleases(a.release, b.release) })
	return past
}

var versionOfFile = regexp.MustCompile(`\.so\.\d+\.\d+\.(\d+\.\d+)$`)

// releaseOfFile returns the release in a library's resolved file name, such as libibverbs.so.1.14.44.0, or "".
func releaseOfFile(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	if m := versionOfFile.FindStringSubmatch(real); m != nil {
		return m[1]
	}
	return ""
}

func readLibrary(path string, p rules.Package, lib library, past []pastFunction, rows map[string]symbolRow,
	stated string) (*Library, error) {
	f, closeFile, err := openLibrary(path)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	have, err := exports(f)
	if err != nil {
		return nil, err
	}
	l := &Library{Name: lib.name, Package: p.Name, Project: p.Project(), Path: path,
		Problems: []SymbolDifference{}, New: []Symbol{}, Bound: []Symbol{}}
	l.Release = cmp.Or(releaseOfFile(path), stated, releaseOfSymbols(have, past))
	l.compare(lib.functions, have, past, rows)
	return l, nil
}

// releaseOfSymbols returns the recorded release whose functions equal the library's, or "" if there is not exactly one.
func releaseOfSymbols(have map[string]*export, past []pastFunction) string {
	found := ""
	known := map[string]bool{}
	for _, r := range past {
		for name := range r.extern {
			known[name] = true
		}
	}
	for _, r := range past {
		same := true
		for name := range known {
			same = same && r.extern[name] == (have[name] != nil && have[name].def && !have[name].private())
		}
		if same && found != "" {
			return ""
		}
		if same {
			found = r.release
		}
	}
	return found
}

// compare looks up every function in the table.
func (l *Library) compare(table []ibv.Function, have map[string]*export, past []pastFunction,
	rows map[string]symbolRow) {
	since := map[string]int{} // the first release that declares a function
	floor := 0                // newest release with a function that the library has and older releases lack
	for i, r := range past {
		for name := range r.extern {
			if _, ok := since[name]; ok {
				continue
			}
			since[name] = i
			if have[name] != nil {
				floor = i
			}
		}
	}
	for _, f := range table {
		if f.Inline != nil || rows[f.Name].action == unbound {
			continue
		}
		l.Total++
		i, declared := since[f.Name]
		d := SymbolDifference{Name: f.Name, Since: f.Since}
		older := declared && i >= floor &&
			(l.Release == "" && i > 0 || l.Release != "" && compareReleases(l.Release, past[i].release) < 0)
		switch e := have[f.Name]; {
		case e == nil && older:
			d.Compatible, d.Why = true, "not in this library, which is older"
		case e == nil:
			d.Why = "removed from this library"
		case !e.function:
			d.Why = "exported, but not a function"
		case !e.def:
			d.Why = fmt.Sprintf("only under the old version %s, which programs are not linked with by name",
				strings.Join(e.old, ", "))
		case e.private():
			d.Why = fmt.Sprintf("only under the private version %s, which may change at any time", e.version)
		default:
			l.Bound = append(l.Bound, Symbol{f.Name, e.version})
			continue
		}
		l.Problems = append(l.Problems, d)
	}
	for name, e := range have {
		if _, known := since[name]; e.def && !e.private() && !known && rows[name].action == "" {
			l.New = append(l.New, Symbol{name, e.version})
		}
	}
	slices.SortFunc(l.New, func(a, b Symbol) int { return strings.Compare(a.Name, b.Name) })
	l.Verdict = Identical
	switch {
	case l.Wrong() > 0:
		l.Verdict = Incompatible
	case len(l.Problems)+len(l.New) > 0:
		l.Verdict = Compatible
	}
}

// Wrong counts the differences that make the library incompatible.
func (l *Library) Wrong() int {
	n := 0
	for _, d := range l.Problems {
		if !d.Compatible {
			n++
		}
	}
	return n
}

// String returns the library on one line.
func (l *Library) String() string {
	s := fmt.Sprintf("%s: %s of %s %s (%s): %d of %d functions, %d mismatches", l.Verdict, l.Name,
		l.Project, cmp.Or(l.Release, "unknown"), l.Path, len(l.Bound), l.Total, l.Wrong())
	if n := len(l.New); n > 0 {
		s += fmt.Sprintf("; %d symbols not in any table", n)
	}
	return s
}

// String returns "ibv_reg_mr@@IBVERBS_1.1", the linker's spelling of a default version.
func (s Symbol) String() string {
	if s.Version == "" {
		return s.Name
	}
	return s.Name + "@@" + s.Version
}
