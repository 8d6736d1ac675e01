// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

func (w *Witness) add(c check) { w.checks = append(w.checks, c) }

// number asserts the value of a C expression of type size_t.
func (w *Witness) number(item Item, expr string, want int64) {
	item.Want = fmt.Sprint(want)
	w.add(check{item: item, value: expr, code: fmt.Sprintf("_Static_assert(%s == %d, %q);", expr, want, item)})
}

// pointer asserts the type of a C pointer expression. Qualifiers such as const are compared in pointed-to types only.
func (w *Witness) pointer(item Item, expr, want string) {
	item.Want = want
	w.add(check{item: item, typed: expr,
		code: fmt.Sprintf("_Static_assert(__builtin_types_compatible_p(__typeof__(%s), %s), %q);", expr, want, item)})
}

// integer asserts the value of an integer expression.
func (w *Witness) integer(item Item, expr string, want model.Int) {
	item.Want = string(want)
	w.add(check{item: item, value: expr, code: fmt.Sprintf("_Static_assert(%s, %q);", equals(expr, want), item)})
}

func (w *Witness) record(rec *model.Record) error {
	if rec.Kind == model.Incomplete { // incomplete types have no size
		return nil
	}
	name := rec.CName()
	item := func(kind Kind, path, fact string) Item {
		return Item{Kind: kind, Name: rec.Tag, Path: path, Fact: fact}
	}
	w.Counts.Structs++
	w.number(item(RecordItem, "", "size"), "sizeof("+name+")", rec.Size.On(w.Target))
	w.number(item(RecordItem, "", "alignment"), "_Alignof("+name+")", rec.Align.On(w.Target))
	for _, m := range members(rec, w.Target) {
		w.Counts.Fields++
		if m.field.Bits != nil {
			w.bitfield(rec, m, item(FieldItem, m.path, "bits"))
			continue
		}
		w.number(item(FieldItem, m.path, "offset"), fmt.Sprintf("__builtin_offsetof(%s, %s)", name, m.path), m.offset)
		value := fmt.Sprintf("((%s *)0)->%s", name, m.path)
		if m.field.Record != nil {
			element := value + strings.Repeat("[0]", len(m.field.Dims))
			w.Counts.Structs++
			w.number(item(FieldItem, m.path, "alignment"), "_Alignof(__typeof__("+element+"))",
				m.field.Record.Align.On(w.Target))
		} else {
			want, _, err := fieldType(m.field, "*")
			if err != nil {
				return fmt.Errorf("%s: %w", m.path, err)
			}
			w.pointer(item(FieldItem, m.path, "type"), "&"+value, want)
		}
		if flexible(m.field) {
			w.flexibleArray(item(FieldItem, m.path, "size"), value)
			continue
		}
		w.number(item(FieldItem, m.path, "size"), "sizeof("+value+")", m.size)
	}
	return nil
}

// flexibleArray asserts that an array has no length. Only an array of length 0 is compatible with it.
func (w *Witness) flexibleArray(item Item, value string) {
	item.Want = "no length"
	code := fmt.Sprintf("_Static_assert(__builtin_types_compatible_p(__typeof__(%s), "+
		"__typeof__(__typeof__((%[1]s)[0])[0])), %q);",
		value, item)
	w.add(check{item: item, typed: "&" + value, code: code})
}

func (w *Witness) enum(e *model.Enum) {
	name := "-"
	if e.Tag != "" {
		name = e.Tag
		w.number(Item{Kind: EnumItem, Name: name, Fact: "size"}, "sizeof(enum "+name+")", e.Size)
		signed := int64(0)
		if e.Signed {
			signed = 1
		}
		w.number(Item{Kind: EnumItem, Name: name, Fact: "signed"}, "((enum "+name+")-1 < 0)", signed)
		w.complete(e)
	}
	for _, n := range e.Enumerators {
		w.Counts.Enumerators++
		w.integer(Item{Kind: EnumeratorItem, Name: name, Path: n.Name, Fact: "value"}, n.Name, n.Value)
	}
}

// complete asserts that the enumeration has no enumerators that the model lacks: -Wall warns about enumerators that a
// switch does not handle.
func (w *Witness) complete(e *model.Enum) {
	item := Item{Kind: EnumItem, Name: e.Tag, Fact: "complete", Want: fmt.Sprintf("%d enumerators", len(e.Enumerators))}
	seen := map[model.Int]bool{}
	var cases strings.Builder
	for _, n := range e.Enumerators {
		if !seen[n.Value] {
			cases.WriteString(" case " + n.Name + ":")
		}
		seen[n.Value] = true
	}
	w.add(check{item: item, code: fmt.Sprintf("static inline void goverbs_%d(enum %s e) { switch (e) {%s break; } }",
		len(w.checks), e.Tag, cases.String())})
}

func (w *Witness) macro(m *model.Macro, names *names) {
	item := func(kind Kind, fact string) Item { return Item{Kind: kind, Name: "-", Path: m.Name, Fact: fact} }
	defined := item(MacroItem, "defined")
	defined.Want = "a macro"
	w.add(check{item: defined, code: fmt.Sprintf("#ifndef %s\n#error %q\n#endif\n", m.Name, defined)})
	switch m.Kind {
	case model.Constant:
		w.Counts.Constants++
		value := item(ConstantItem, "value")
		if strings.HasSuffix(m.Type, "*") {
			// __builtin_constant_p makes the compiler fold the value, which is not strictly a constant expression
			bits := "(__UINTPTR_TYPE__)(" + m.Name + ")"
			w.integer(value, fmt.Sprintf("__builtin_constant_p(%s) ? (%[1]s) : 0", bits),
				model.UintOf(m.Value.Uint64()))
		} else {
			w.integer(value, m.Name, *m.Value)
		}
		if m.Type != "" {
			w.pointer(item(ConstantItem, "type"), fmt.Sprintf("(__typeof__(%s) *)0", m.Name), pointerTo(m.Type))
		}
	case model.Alias:
		w.Counts.Constants++
		alias := item(AliasItem, "target")
		alias.Want = m.Target
		expr := fmt.Sprintf("__builtin_strcmp(GOVERBS_TEXT(%s), %q) == 0", m.Name, m.Target)
		w.add(check{item: alias, code: fmt.Sprintf("_Static_assert(%s, %q);", expr, alias)})
		w.alias(m, names)
	}
}

// alias asserts that the target of a macro is declared and that the macro and the target are the same.
func (w *Witness) alias(m *model.Macro, names *names) {
	item := Item{Kind: AliasItem, Name: "-", Path: m.Name}
	if kind := names.tags[m.Target]; kind != "" {
		item.Fact = "type"
		w.pointer(item, fmt.Sprintf("(%s %s *)0", kind, m.Name), kind+" "+m.Target+" *")
	}
	if v, ok := names.enumerators[m.Target]; ok {
		item.Fact = "value"
		w.integer(item, m.Name, v)
	}
	if names.functions[m.Target] {
		item.Fact, item.Want = "function", m.Target
		w.add(check{item: item,
			code: fmt.Sprintf("_Static_assert(__builtin_types_compatible_p(__typeof__(%s), __typeof__(%s)), %q);",
				m.Name, m.Target, item)})
	}
}

// function asserts a prototype by assigning the function to a pointer of the recorded type. A function-like macro of
// the same name is not expanded, because no parenthesis follows the name.
func (w *Witness) function(f *model.Func) error {
	decl, err := protoType(&f.Proto, fmt.Sprintf("(*goverbs_%d)", len(w.checks)))
	if err != nil {
		return err
	}
	want, _ := protoType(&f.Proto, "(*)")
	w.Counts.Prototypes++
	w.add(check{
		item: Item{Kind: FuncItem, Name: f.Name, Fact: "prototype", Want: want},
		code: decl + " = " + f.Name + ";",
	})
	return nil
}

// funcType asserts the target of a function typedef, through a pointer to it.
func (w *Witness) funcType(f *model.Func) error {
	want, err := protoType(&f.Proto, "(*)")
	if err != nil {
		return err
	}
	w.Counts.Prototypes++
	w.pointer(Item{Kind: FuncItem, Name: f.Name, Fact: "type"}, "("+f.Name+" *)0", want)
	return nil
}

func pointerTo(spelled string) string {
	t, err := model.ParseType(spelled)
	if err != nil {
		return spelled + " *" // the compiler reports the problem
	}
	return t.Declare("*")
}

// names holds the possible targets of macros.
type names struct {
	tags        map[string]string // to struct, union or enum
	enumerators map[string]model.Int
	functions   map[string]bool
}

func newNames(r *model.Release) *names {
	n := &names{tags: map[string]string{}, enumerators: map[string]model.Int{}, functions: map[string]bool{}}
	for _, h := range r.Headers {
		for _, rec := range h.Records {
			if rec.Kind != model.Opaque {
				kind, _, _ := strings.Cut(rec.CName(), " ")
				n.tags[rec.Tag] = kind
			}
		}
		for _, e := range h.Enums {
			n.tags[e.Tag] = "enum"
			for _, v := range e.Enumerators {
				n.enumerators[v.Name] = v.Value
			}
		}
		for _, f := range h.Funcs {
			n.functions[f.Name] = true
		}
	}
	delete(n.tags, "") // untagged enumerations
	return n
}
