// SPDX-License-Identifier: BSD-2-Clause

// Package api lists what programs can name of this module's packages, one line each, and compares two lists.
//
// It is golang.org/x/exp/apidiff for packages whose types are aliases of types in internal packages: there, apidiff
// calls every type that moved behind an alias changed, with every function that takes one. Here a type has the name
// that users write, wherever it is declared.
package api

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/tools/go/packages"
)

// Entry is a name that programs can use.
type Entry struct {
	Name string // "rdma.Device.AllocPD", "cm.Event.Type"
	Is   string // "func() (*rdma.PD, error)", "const 3", "field int"
	Kind Kind
}

// Kind is what sort of name it is.
type Kind int

// Values of Kind.
const (
	Declared Kind = iota // of the package, or a method of a type's own
	Promoted             // a method that an embedded field brings
	Field
)

// List is the exported names of the packages that patterns name in dir, but for internal packages and programs:
// constants, variables, functions and types of a package, the methods of its types, and the exported fields of its
// structures.
func List(dir string, patterns ...string) ([]Entry, error) {
	const mode = packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax
	config := &packages.Config{Dir: dir, Mode: mode}
	loaded, err := packages.Load(config, patterns...)
	if err != nil {
		return nil, err
	}
	l := lister{public: map[*types.TypeName]string{}}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		for _, name := range p.Types.Scope().Names() {
			t, ok := p.Types.Scope().Lookup(name).(*types.TypeName)
			if ok && t.Exported() && t.IsAlias() {
				named, ok := types.Unalias(t.Type()).(*types.Named)
				if ok && strings.Contains(named.Obj().Pkg().Path(), "/internal/") {
					l.public[named.Obj()] = p.Name + "." + name
				}
			}
		}
	}
	for _, p := range loaded {
		if p.Name != "main" && !strings.Contains(p.PkgPath+"/", "/internal/") {
			l.list(p.Types)
		}
	}
	slices.SortFunc(l.entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return l.entries, nil
}

type lister struct {
	public  map[*types.TypeName]string // names of internal types that are aliases' targets
	entries []Entry
}

func (l *lister) add(name, format string, args ...any) {
	l.entries = append(l.entries, Entry{Name: name, Is: fmt.Sprintf(format, args...)})
}

func (l *lister) list(p *types.Package) {
	for _, name := range p.Scope().Names() {
		if !token.IsExported(name) {
			continue
		}
		full := p.Name() + "." + name
		switch o := p.Scope().Lookup(name).(type) {
		case *types.Const:
			l.add(full, "const %s = %s", l.text(o.Type()), o.Val())
		case *types.Var:
			l.add(full, "var %s", l.text(o.Type()))
		case *types.Func:
			l.add(full, "%s", l.text(o.Type()))
		case *types.TypeName:
			l.listType(full, o)
		}
	}
}

func (l *lister) listType(full string, o *types.TypeName) {
	named, ok := types.Unalias(o.Type()).(*types.Named)
	if !ok || o.IsAlias() && l.public[named.Obj()] != full {
		l.add(full, "= %s", l.text(o.Type()))
		return
	}
	switch u := named.Underlying().(type) {
	case *types.Struct:
		l.add(full, "struct%s", l.parameters(named))
		for f := range u.Fields() {
			if f.Exported() {
				l.add(full+"."+f.Name(), "field %s", l.text(f.Type()))
				l.entries[len(l.entries)-1].Kind = Field
			}
		}
	case *types.Interface:
		l.add(full, "interface%s", l.parameters(named))
	default:
		l.add(full, "%s%s", l.text(u), l.parameters(named))
	}
	methods := types.NewMethodSet(named)
	if !types.IsInterface(named) {
		methods = types.NewMethodSet(types.NewPointer(named))
	}
	for m := range methods.Methods() {
		if m.Obj().Exported() {
			l.add(full+"."+m.Obj().Name(), "%s", l.text(m.Type()))
			if len(m.Index()) > 1 {
				l.entries[len(l.entries)-1].Kind = Promoted
			}
		}
	}
}

func (l *lister) parameters(named *types.Named) string {
	var all []string
	for p := range named.TypeParams().TypeParams() {
		all = append(all, p.String()+" "+l.text(p.Constraint()))
	}
	if len(all) == 0 {
		return ""
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// text is a type as users write it, without the names of parameters.
func (l *lister) text(t types.Type) string {
	if s, ok := t.(*types.Signature); ok {
		t = types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())
	}
	text := types.TypeString(t, func(p *types.Package) string { return "\"" + p.Path() + "\"" })
	for o, public := range l.public {
		text = replaceName(text, "\""+o.Pkg().Path()+"\"."+o.Name(), public)
	}
	for { // what is left has the names of its packages
		begin := strings.Index(text, "\"")
		if begin < 0 {
			return text
		}
		end := begin + 1 + strings.Index(text[begin+1:], "\"")
		path := text[begin+1 : end]
		text = text[:begin] + path[strings.LastIndex(path, "/")+1:] + text[end+1:]
	}
}

// replaceName replaces a whole identifier.
func replaceName(text, from, to string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, from)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if after != "" && token.IsIdentifier("x"+after[:1]) { // it goes on
			b.WriteString(from)
		} else {
			b.WriteString(to)
		}
		text = after
	}
}

func unnamed(t *types.Tuple) *types.Tuple {
	var all []*types.Var
	for v := range t.Variables() {
		all = append(all, types.NewParam(token.NoPos, nil, "", v.Type()))
	}
	return types.NewTuple(all...)
}

// Diff is what changed from one list to another: a line for each name, those that are gone or changed first.
func Diff(before, after []Entry) (lines []string) {
	old, now := byName(before), byName(after)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if is, ok := now[name]; !ok {
			lines = append(lines, fmt.Sprintf("- %s %s", name, old[name]))
		} else if is != old[name] {
			lines = append(lines, fmt.Sprintf("! %s %s → %s", name, old[name], is))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, ok := old[name]; !ok {
			lines = append(lines, fmt.Sprintf("+ %s %s", name, now[name]))
		}
	}
	return lines
}

// Unlisted is the lines of a Diff whose names a text does not have as words. A new type that it names stands for its
// members.
func Unlisted(lines []string, text string) (missing []string) {
	words, types := map[string]bool{}, map[string]bool{}
	between := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for _, w := range strings.FieldsFunc(text, between) {
		words[w] = true
	}
	for _, line := range lines {
		of := strings.Split(strings.Fields(line)[1], ".")
		name := of[len(of)-1]
		types[strings.Join(of, ".")] = words[name]
		if !words[name] && !types[strings.Join(of[:len(of)-1], ".")] {
			missing = append(missing, line)
		}
	}
	return missing
}

func byName(all []Entry) map[string]string {
	m := map[string]string{}
	for _, e := range all {
		m[e.Name] = e.Is
	}
	return m
}
