// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Record is a structure, union or opaque type.
type Record struct {
	Doc      Doc
	Uses     Uses
	Kind     model.RecordKind
	Path     string // C tag, or the path of a type defined in place: "ibv_send_wr.wr.rdma"
	Go       string
	Layouts  []Variant // one for each target of the plan, in order
	Variants []Variant // one for each group of targets with the same Go text; the first has the default target
	Access   []Access
	Paths    []Path // of a tagged record: every member that C can name
}

// Variant is the layout of a record on some targets.
type Variant struct {
	Targets []string
	Size    int64
	Align   int64
	Members []Member
}

// Bytes returns the size of the record: "120", or "120 (arm64: 128)".
func (r Record) Bytes() string {
	size := model.Same(r.Layouts[0].Size)
	for _, v := range r.Layouts {
		size.Set(v.Targets[0], v.Size)
	}
	return size.String()
}

// Member is a field of the Go struct, including padding and storage.
type Member struct {
	C      string // name in C, "" for padding and storage
	Go     string // "_" for padding
	Type   GoType
	Offset int64
	Size   int64
	Notes  []string // parts of its comment
}

// AccessKind is the reason why a C member needs a method.
type AccessKind int

const (
	Arm       AccessKind = iota // shares its bytes with others
	Trailing                    // flexible array after the record
	Unaligned                   // not aligned for a Go field of its type
	Bits                        // bitfield
)

// Access is a method for a C member that is not a Go field.
type Access struct {
	C       string
	Kind    AccessKind
	Go      string
	Type    GoType
	Storage string // the Go field that holds the bytes
	Delta   int64  // offset in Storage in bytes, or in bits for Bits; for Trailing, offset in the record
	Size    int64  // in bytes; for Bits, in bits
	Notes   []string
}

// Path is a member that C can name. Expr is the Go expression for its address, where p points to the record.
type Path struct {
	C    string // "wr.rdma.rkey"
	Expr string // "&p.WR.RDMA().RKey"
}

func (r *resolver) records() {
	for _, h := range r.headers {
		for i := range h.Records {
			rec := &h.Records[i]
			if r.skipped(rec.CName()) {
				continue
			}
			doc := r.doc(rec.CName(), h, rec.Man, r.since.of(rec.CName()))
			planned := r.record(rec, rec.Tag, r.goOf[rec.CName()].Name, doc)
			if planned != nil {
				planned.Paths = r.paths(rec, rec.Tag, "", "p")
			}
		}
	}
}

// record plans a type, followed by the types defined in place inside it.
func (r *resolver) record(rec *model.Record, path, goName string, doc Doc) *Record {
	out := Record{Doc: doc, Kind: rec.Kind, Path: path, Go: goName}
	at := len(r.plan.Records)
	r.plan.Records = append(r.plan.Records, out)
	for i, target := range r.plan.Targets {
		v, access, err := r.variant(rec, path, target)
		if err != nil {
			r.fail(path, "%v", err)
			return nil
		}
		if i == 0 {
			out.Access = access
		} else if !slices.EqualFunc(access, out.Access, func(a, b Access) bool {
			return a.Go == b.Go && a.Size == b.Size &&
				a.Delta == b.Delta && a.Storage == b.Storage
		}) {
			r.fail(path, "its accessors differ between %s and %s, which is not supported", r.plan.Targets[0],
				target)
			return nil
		}
		out.Layouts = append(out.Layouts, *v)
		if same := slices.IndexFunc(out.Variants, func(o Variant) bool { return sameText(o, *v) }); same >= 0 {
			out.Variants[same].Targets = append(out.Variants[same].Targets, target)
		} else {
			out.Variants = append(out.Variants, *v)
		}
	}
	r.checkNames(path, out)
	r.plan.Records[at] = out
	r.nested(rec, path, doc)
	return &r.plan.Records[at]
}

// sameText reports whether two variants are printed the same. Offsets may differ, since Go computes them.
func sameText(a, b Variant) bool {
	return slices.EqualFunc(a.Members, b.Members, func(x, y Member) bool {
		return x.Go == y.Go && x.Type.String() == y.Type.String()
	})
}

// checkNames rejects a record in which two members have the same Go name.
func (r *resolver) checkNames(path string, rec Record) {
	seen := map[string]bool{}
	for _, m := range rec.Variants[0].Members {
		if m.Go != "_" && seen[m.Go] {
			r.fail(path, "two members have the Go name %s", m.Go)
		}
		seen[m.Go] = true
	}
	for _, a := range rec.Access {
		names := []string{a.Go}
		if a.Kind == Bits || a.Kind == Unaligned {
			names = append(names, "Set"+a.Go)
		}
		for _, name := range names {
			if seen[name] {
				r.fail(path, "two members have the Go name %s", name)
			}
			seen[name] = true
		}
	}
}

// nested plans the types that a record defines in place.
func (r *resolver) nested(rec *model.Record, path string, doc Doc) {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		switch {
		case f.Record == nil:
		case f.Name == "":
			r.nested(f.Record, path, doc)
		default:
			inner := path + "." + f.Name
			d := doc
			d.C = fmt.Sprintf("%s %s in %s", f.Record.Kind, inner[strings.IndexByte(inner, '.')+1:],
				doc.C[:strings.IndexByte(doc.C+" in", ' ')+1]+inner[:strings.IndexByte(inner, '.')])
			d.Since = r.since.of(inner)
			goName := r.nestedName(inner)
			r.claim(goName, inner)
			r.record(f.Record, inner, goName, d)
		}
	}
}

// nestedName returns the Go name of a type defined in place: from a row, or from the names of the enclosing members.
func (r *resolver) nestedName(path string) string {
	if e := r.exceptions.find(Name, path); e != nil {
		return e.Argument
	}
	tag, rest, _ := strings.Cut(path, ".")
	name := r.pkg.TypeName(tag)
	for step := range strings.SplitSeq(rest, ".") {
		name += FieldName(step)
	}
	return name
}

// like maps the types that a row may assign to a member to the types that they replace.
var like = map[string]string{"GUID": "BE64", "MAC": "[6]uint8"}

// memberType returns the Go type of a field, and notes about its values.
func (r *resolver) memberType(f *model.Field, path string) (GoType, []string, error) {
	var notes []string
	if since := r.since.of(path); since != r.sinceRecord(path) {
		notes = append(notes, "since "+since)
	}
	switch {
	case f.Func != nil:
		return GoType{Import: r.plan.Shared, Name: "FuncPtr", Dims: f.Dims}, append(notes, f.Func.Declare("(*)")), nil
	case f.Record != nil:
		return GoType{Name: r.nestedName(path), Dims: f.Dims}, notes, nil
	}
	t, err := r.goType(f.Type)
	if err != nil {
		return t, nil, fmt.Errorf("%s: %w", path, err)
	}
	if e := r.exceptions.find(Is, path); e != nil {
		if spelled, ok := like[e.Argument]; !ok || (GoType{Name: t.Name, Dims: t.Dims}).String() != spelled {
			return t, nil, fmt.Errorf("%s: %s is %v in C, which cannot be a %s", e.At, path, t, e.Argument)
		}
		return GoType{Import: r.plan.Shared, Name: e.Argument}, notes, nil
	}
	e := r.exceptions.find(Holds, path)
	if e == nil && isInteger(t) {
		more, err := r.plainNotes(path)
		if err != nil {
			return t, nil, err
		}
		notes = append(notes, more...)
	}
	if e != nil {
		name, ok := r.plan.sized[e.Argument][f.Size.Default]
		if f.Bits != nil { // the accessor has this type, regardless of the size of the bitfield
			if name, ok = r.goOf["enum "+e.Argument]; ok {
				t.Import, t.Name = name.Import, name.Name
			}
		} else if !alone(f) {
			name, ok = r.goOf["enum "+e.Argument]
			notes = append(notes, holds+GoType{Import: name.Import, Name: name.Name}.String())
		} else if ok {
			t.Import, t.Name = name.Import, name.Name
		}
		if !ok {
			return t, nil, fmt.Errorf("%s: %s holds %s, which is not a typed enum", e.At, path, e.Argument)
		}
	}
	return t, notes, nil
}

// isInteger reports whether a member is a single integer.
func isInteger(t GoType) bool {
	return len(t.Dims) == 0 && t.Pointers == 0 && (strings.HasPrefix(t.Name, "BE") || predeclared(t.Name))
}

// plainNotes returns notes that name the enum whose values a plain member has. The enum may belong to a package that
// this one does not import.
func (r *resolver) plainNotes(path string) ([]string, error) {
	e := r.exceptions.find(Plain, path)
	if e == nil || e.Argument == "" {
		return nil, nil
	}
	key := "enum " + e.Argument
	name, ok := r.goOf[key]
	for _, p := range r.earlier {
		if of, has := p.types[key]; has && !ok {
			name, ok = goName{Import: p.Import, Name: of}, true
		}
	}
	if !ok {
		return nil, fmt.Errorf("%s: %s holds %s, which is not a typed enum", e.At, path, e.Argument)
	}
	return []string{holds + GoType{Import: name.Import, Name: name.Name}.String()}, nil
}

// sinceRecord returns the release that introduced the tagged record to which a path belongs.
func (r *resolver) sinceRecord(path string) string {
	tag, _, _ := strings.Cut(path, ".")
	return or(r.since.of("struct "+tag), r.since.of("union "+tag))
}

// paths lists the members of a record that C can name, with their Go expressions. base is the expression so far,
// without the &.
func (r *resolver) paths(rec *model.Record, path, c, base string) []Path {
	var all []Path
	for i := range rec.Fields {
		f := &rec.Fields[i]
		all = append(all, r.fieldPaths(rec.Kind == model.Union, rec, f, path, c, base)...)
	}
	return all
}

func (r *resolver) fieldPaths(shared bool, rec *model.Record, f *model.Field, path, c, base string) []Path {
	if f.Name == "" { // its members belong to the record that contains it
		var all []Path
		for i := range f.Record.Fields {
			all = append(all, r.fieldPaths(shared || f.Record.Kind == model.Union, f.Record, &f.Record.Fields[i], path,
				c, base)...)
		}
		return all
	}
	t, _ := model.ParseType(f.Type)
	if trails(t.Dims) || trails(f.Dims) || f.Bits != nil {
		return nil // it has no bytes
	}
	name := strings.TrimPrefix(c+"."+f.Name, ".")
	expr := "&" + base + "." + FieldName(f.Name)
	next := base + "." + FieldName(f.Name)
	switch {
	case shared:
		expr = base + "." + FieldName(f.Name) + "()"
		next = expr
	case r.unaligned(f, rec):
		expr = "&" + base + "." + FieldName(f.Name) + "Bytes"
	}
	all := []Path{{C: name, Expr: expr}}
	if f.Record != nil && len(f.Dims) == 0 {
		all = append(all, r.paths(f.Record, path+"."+f.Name, name, next)...)
	}
	return all
}
