// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// Source is the source of an installation's layouts.
type Source string

const (
	FromHeaders Source = "headers"
	FromDWARF   Source = "dwarf" // debug information of libraries
	FromBTF     Source = "btf"   // type information of a kernel
)

// noun returns the word for the source in an answer.
func (s Source) noun() string {
	if s == FromDWARF || s == FromBTF {
		return "types"
	}
	return "headers"
}

// InstalledDebug stands for the debug information of all installed libraries in Question.DWARF.
const InstalledDebug = "installed"

// DebugDir is the usual directory of debug files.
const DebugDir = "/usr/lib/debug"

// askDWARF compares the types in the debug information of libraries with the Go packages.
func (a *Answer) askDWARF(ctx context.Context, q Question) error {
	ctx, cancel := context.WithTimeoutCause(ctx, debugTimeout,
		fmt.Errorf("reading debug information timed out after %v", debugTimeout))
	defer cancel()
	want := wanted(q.Primary, q.Recorded)
	found := &definitions{named: map[string][]*cType{}}
	release := map[string]string{}
	var read []string
	for _, file := range a.debugFiles(ctx, q) {
		err := noPanic(func() error {
			return readDWARF(ctx, file.path, q.Target, cmp.Or(q.DebugDir, DebugDir), want, found)
		})
		switch {
		case file.library != "" && errors.Is(err, errNoDebug):
			a.NotInstalled = append(a.NotInstalled, Absent{Name: debugOf(file.library),
				Why: fmt.Sprintf("%s: %v", file.path, err)})
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", file.path, err)
		}
		read = append(read, file.path)
		of := project.All[0].Name
		release[of] = cmp.Or(release[of], releaseOfFile(file.path))
	}
	if len(read) == 0 {
		return nil
	}
	return noPanic(func() error { return a.askTypes(q, FromDWARF, read, found, release, q.packages()) })
}

// noPanic returns a panic as an error, since debug/elf and debug/dwarf are not designed for hostile files.
func noPanic(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("corrupt debug information: %v", r)
		}
	}()
	return f()
}

// debugSource is a file with debug information. If library is set, it is an installed library, which may have none.
type debugSource struct{ path, library string }

// debugOf returns the name for missing debug information in an answer.
func debugOf(library string) string { return "debug information of " + library }

// debugFiles lists the files that the question names.
func (a *Answer) debugFiles(ctx context.Context, q Question) []debugSource {
	var files []debugSource
	for _, name := range q.DWARF {
		if name != InstalledDebug {
			files = append(files, debugSource{path: name})
			continue
		}
		for _, p := range q.packages() {
			lib, ok := libraries[p.Name]
			if !ok {
				continue
			}
			path, err := FindLibrary(ctx, q.CC, lib.name, q.Target, q.LibraryDirs)
			if err != nil {
				a.NotInstalled = append(a.NotInstalled, Absent{Name: debugOf(lib.name), Why: err.Error()})
				continue
			}
			files = append(files, debugSource{path, lib.name})
		}
	}
	return files
}

// wanted returns the keys of the types that models have.
func wanted(all ...rules.Recorded) map[string]bool {
	want := map[string]bool{}
	for _, releases := range all {
		for _, r := range releases {
			for i := range r.Headers {
				for j := range r.Headers[i].Records {
					want[r.Headers[i].Records[j].CName()] = true
				}
				for _, e := range r.Headers[i].Enums {
					want["enum "+e.Tag] = true
				}
			}
		}
	}
	delete(want, "enum ")
	return want
}

// askTypes compares types with the Go packages, and adds an answer for each project of which some types were found.
func (a *Answer) askTypes(q Question, source Source, files []string, found *definitions, release map[string]string,
	packages []rules.Package) error {
	projects, of := projectsOf(packages)
	for _, p := range projects {
		h := &Include{Source: source, Project: p.Name, Dir: common(source, files), Files: files, Differences: []Difference{},
			NotChecked: []string{}}
		primary := q.Primary.Of(p.Name)[0]
		h.Primary = primary.Name
		ours := restrict(primary, of[p.Name])
		var recorded []*model.Release
		for _, r := range q.Recorded.Of(p.Name) {
			recorded = append(recorded, restrict(r, of[p.Name]))
		}
		theirs, conflicts, err := found.model(ours, recorded, q.Target, source)
		if err != nil {
			return fmt.Errorf("%s: %w", h.Dir, err)
		}
		have := newIndex(theirs, q.Target)
		var checked []rules.Package
		for _, pkg := range of[p.Name] {
			if n := len(newIndex(only(headersOnly(ours, pkg), have), q.Target).order); n > 0 {
				checked = append(checked, pkg)
				continue
			}
			a.NotInstalled = append(a.NotInstalled, Absent{Name: pkg.Name,
				Why: fmt.Sprintf("%s has none of its types", h.Dir)})
		}
		if len(checked) == 0 {
			continue
		}
		h.Packages = namesOf(checked)
		if len(q.Go) > 0 {
			differences, err := q.compareGo(primary, checked)
			if err != nil {
				return err
			}
			h.Differences = append(h.Differences, differences...)
		}
		h.checked = have
		h.NotChecked = append(h.NotChecked, lacking(ours, have)...)
		for i, r := range recorded {
			recorded[i] = only(r, have)
		}
		ours = only(ours, have)
		theirs.Name = cmp.Or(q.Release[p.Name], release[p.Name], onlyRelease(theirs, recorded, q.Target))
		h.Differences = append(h.Differences, conflicts...)
		h.Differences = append(h.Differences, compareAs(ours, theirs, recorded, q.Target, theseTypes)...)
		h.Release = cmp.Or(theirs.Name, place(h.Differences, recorded))
		h.Report = countTypes(theirs, p.Name, cmp.Or(theirs.Name, "?"), q.Target)
		h.Verdict = h.verdict()
		a.Headers = append(a.Headers, h)
	}
	return nil
}

// model returns the types that one of the releases has, too. conflicts lists types with several definitions.
func (d *definitions) model(ours *model.Release, recorded []*model.Release, target string, source Source) (
	theirs *model.Release, conflicts []Difference, err error) {
	mine := newIndex(ours, target)
	known := []*index{mine}
	for _, r := range recorded {
		known = append(known, newIndex(r, target))
	}
	foreign := map[string]bool{} // types of the C library or the kernel
	for _, header := range ours.Headers {
		for _, rec := range header.Records {
			foreign[rec.CName()] = header.Support
		}
	}
	h := model.Header{}
	w := &walk{}
	seen := map[string]bool{}
	for _, x := range known {
		for _, key := range x.order {
			l, e := x.records[key], x.enums[key]
			if seen[key] || l == nil && e == nil || l != nil && l.rec.Kind == model.Incomplete || d.named[key] == nil {
				continue
			}
			seen[key] = true
			texts := map[string]bool{}
			for i, t := range d.named[key] {
				w.start()
				var v any
				if e != nil {
					read, err := t.enum()
					if err != nil {
						return nil, nil, fmt.Errorf("%s: %w", key, err)
					}
					if v = read; i == 0 {
						h.Enums = append(h.Enums, *read)
					}
				} else {
					known := l
					if mine.records[key] != nil {
						known = mine.records[key]
					}
					read, err := t.recordLike(w, known, foreign[key], source)
					if err != nil {
						return nil, nil, fmt.Errorf("%s: %w", key, err)
					}
					if v = read; i == 0 {
						h.Records = append(h.Records, *read)
					}
				}
				text, err := json.Marshal(v)
				if err != nil {
					return nil, nil, err
				}
				texts[string(text)] = true
			}
			if len(texts) > 1 {
				item := Item{Kind: RecordItem, Name: strings.TrimPrefix(key[strings.IndexByte(key, ' ')+1:], " "),
					Fact: "definitions", Want: "1"}
				if e != nil {
					item.Kind = EnumItem
				}
				conflicts = append(conflicts, Difference{Item: item, Headers: fmt.Sprint(len(texts)), where: theseTypes,
					Why: "its source files disagree, and only the first definition was compared"})
			}
		}
	}
	texts := map[string]bool{}
	for _, t := range d.untagged {
		e, err := t.enum()
		if err != nil {
			return nil, nil, err
		}
		text := fmt.Sprint(e.Enumerators)
		if texts[text] || !slices.ContainsFunc(e.Enumerators, func(n model.Enumerator) bool {
			return slices.ContainsFunc(known, func(x *index) bool { v, ok := x.values[n.Name]; return ok && !v.macro })
		}) {
			continue
		}
		texts[text] = true
		h.Enums = append(h.Enums, *e)
	}
	return &model.Release{Project: ours.Project, Targets: []string{target}, Headers: []model.Header{h}}, conflicts, nil
}

// recordLike returns the model of a record. Facts that debug information does not contain are copied from known. The
// integer types of a foreign record may have other names.
func (t *cType) recordLike(w *walk, known *layout, foreign bool, source Source) (*model.Record, error) {
	if known.rec.Kind == model.Opaque {
		size, err := t.bytes()
		if err != nil {
			return nil, err
		}
		align, err := t.alignment(w)
		return &model.Record{Kind: model.Opaque, Tag: t.name, Size: model.Same(size),
			Align: model.Same(cmp.Or(align, known.align))}, err
	}
	rec, err := t.record(w)
	if err != nil {
		return nil, err
	}
	if path := kernelOnly[t.key()]; path != "" && source == FromBTF {
		deleteMember(rec, path)
	}
	computed := rec.Align.Default
	all := members(rec, "")
	complete := !slices.ContainsFunc(known.members, func(o member) bool {
		return !slices.ContainsFunc(all, func(m member) bool { return m.path == o.path })
	})
	// BTF does not contain the alignment of attributes, which can only be larger than the computed one.
	unstated := t.align == 0 && (known.rec.Packed || source == FromBTF && computed < known.align && complete)
	if computed == 0 || unstated {
		rec.Align = model.Same(known.align)
	}
	for _, m := range all {
		o, ok := known.byPath[m.path]
		if ok && foreign && m.size == o.size && isNumber(m.field) && isNumber(o.field) {
			m.field.Type = o.field.Type
		}
		if ok && m.size == 0 && o.size == 0 && noLength(spellMember(m.field)) == noLength(spellMember(o.field)) {
			m.field.Type, m.field.Dims = o.field.Type, o.field.Dims
		}
	}
	return rec, nil
}

// kernelOnly contains members of unions that the kernel's headers declare only inside the kernel.
var kernelOnly = map[string]string{"struct rxe_send_wr": "wr.reg"}

// deleteMember removes a member, given by its path, from a record.
func deleteMember(rec *model.Record, path string) {
	outer, inner, nested := strings.Cut(path, ".")
	for i, f := range rec.Fields {
		switch {
		case f.Name != outer:
		case nested && f.Record != nil:
			deleteMember(f.Record, inner)
		case !nested:
			rec.Fields = slices.Delete(rec.Fields, i, i+1)
			return
		}
	}
}

// isNumber reports whether the type of a field has a name without struct, union or enum.
func isNumber(f *model.Field) bool {
	return f.Type != "" && f.Bits == nil && !strings.ContainsAny(f.Type, "*[") && !strings.HasPrefix(f.Type, "struct ") &&
		!strings.HasPrefix(f.Type, "union ") && !strings.HasPrefix(f.Type, "enum ")
}

// noLength replaces [0] by [], which debug information does not distinguish.
func noLength(spelled string) string { return strings.ReplaceAll(spelled, "[0]", "[]") }

// headersOnly returns the headers of one package.
func headersOnly(r *model.Release, p rules.Package) *model.Release {
	some := *r
	some.Headers = slices.DeleteFunc(slices.Clone(r.Headers),
		func(h model.Header) bool { return !slices.Contains(p.Headers, h.Name) })
	return &some
}

// only returns the types of a release that an index has, too. Debug information has no macros, and functions are
// compared with the libraries.
func only(r *model.Release, have *index) *model.Release {
	some := *r
	some.Headers = nil
	for _, h := range r.Headers {
		types := model.Header{Name: h.Name, Support: h.Support}
		for _, rec := range h.Records {
			if rec.Kind != model.Incomplete && have.records[rec.CName()] != nil {
				types.Records = append(types.Records, rec)
			}
		}
		for _, e := range h.Enums {
			if have.hasEnum(&e) {
				types.Enums = append(types.Enums, e)
			}
		}
		some.Headers = append(some.Headers, types)
	}
	return &some
}

// hasEnum reports whether an index has an enumeration, or some of the enumerators if it has no tag.
func (x *index) hasEnum(e *model.Enum) bool {
	if e.Tag != "" {
		return x.enums["enum "+e.Tag] != nil
	}
	return slices.ContainsFunc(e.Enumerators, func(n model.Enumerator) bool { _, ok := x.values[n.Name]; return ok })
}

// lacking lists the types of a release that an index lacks.
func lacking(r *model.Release, have *index) []string {
	var all []string
	for _, h := range r.Headers {
		for _, rec := range h.Records {
			if rec.Kind != model.Incomplete && have.records[rec.CName()] == nil {
				all = append(all, rec.CName())
			}
		}
		for _, e := range h.Enums {
			switch {
			case have.hasEnum(&e):
			case e.Tag != "":
				all = append(all, "enum "+e.Tag)
			case len(e.Enumerators) > 0:
				all = append(all, "enum with "+e.Enumerators[0].Name)
			}
		}
	}
	return all
}

// onlyRelease returns the recorded release whose types equal those in debug information, or "" if there is not exactly
// one.
func onlyRelease(theirs *model.Release, recorded []*model.Release, target string) string {
	found := ""
	for _, r := range recorded {
		if len(Compare(r, theirs, []*model.Release{r}, target)) > 0 {
			continue
		}
		if found != "" {
			return ""
		}
		found = r.Name
	}
	return found
}

// countTypes returns a report with the number of compared types.
func countTypes(r *model.Release, of, release, target string) *Report {
	report := &Report{Project: of, Release: release, Target: target, Mismatches: []Mismatch{}}
	var fields func(rec *model.Record)
	fields = func(rec *model.Record) {
		for i := range rec.Fields {
			f := &rec.Fields[i]
			if f.Name != "" {
				report.Counts.Fields++
				report.Facts += 3 // offset, size, type
			}
			if f.Record != nil {
				if f.Name != "" {
					report.Counts.Structs++
				}
				fields(f.Record)
			}
		}
	}
	for _, h := range r.Headers {
		for i := range h.Records {
			report.Counts.Structs++
			report.Facts += 2 // size, alignment
			fields(&h.Records[i])
		}
		for _, e := range h.Enums {
			report.Counts.Enumerators += len(e.Enumerators)
			report.Facts += len(e.Enumerators)
			if e.Tag != "" {
				report.Facts++ // size
			}
		}
	}
	return report
}

// common returns the only file, the kernel's file, or the directory that contains all files.
func common(source Source, files []string) string {
	if len(files) == 1 || source == FromBTF {
		return files[0]
	}
	dir := filepath.Dir(files[0])
	for _, f := range files[1:] {
		for !strings.HasPrefix(f, strings.TrimSuffix(dir, "/")+"/") && dir != "/" && dir != "." {
			dir = filepath.Dir(dir)
		}
	}
	return dir
}
