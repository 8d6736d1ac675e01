// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"fmt"
	"strconv"
	"strings"
)

// Type is a C type that a model stores as text: a named type, pointers to it, and array dimensions.
type Type struct {
	Base     string  // "uint32_t", "unsigned int", "struct ibv_qp", "enum ibv_mtu", "void"
	Const    bool    // the base is const
	Pointers int     // levels of indirection
	Dims     []int64 // array lengths, outermost first; -1 for a flexible array
}

// Flexible is the length of a flexible array in Type.Dims.
const Flexible = -1

// Tag returns the tag of a "struct", "union" or "enum" base, or "".
func (t Type) Tag() (kind, tag string) {
	kind, tag, ok := strings.Cut(t.Base, " ")
	if !ok || (kind != "struct" && kind != "union" && kind != "enum") {
		return "", ""
	}
	return kind, tag
}

// IsVoid reports whether the type is plain void.
func (t Type) IsVoid() bool { return t.Base == "void" && t.Pointers == 0 && len(t.Dims) == 0 }

// String returns the canonical spelling, which ParseType parses.
func (t Type) String() string {
	var b strings.Builder
	if t.Const {
		b.WriteString("const ")
	}
	b.WriteString(t.Base)
	if t.Pointers > 0 {
		b.WriteString(" " + strings.Repeat("*", t.Pointers))
	}
	for _, n := range t.Dims {
		if n == Flexible {
			b.WriteString("[]")
		} else {
			fmt.Fprintf(&b, "[%d]", n)
		}
	}
	return b.String()
}

// Declare returns a C declaration of name with this type: Declare("*x") of "int[4]" is "int (*x)[4]".
func (t Type) Declare(name string) string {
	dims := t.Dims
	t.Dims = nil
	if len(dims) > 0 && strings.HasPrefix(name, "*") {
		name = "(" + name + ")"
	}
	s := t.String()
	if t.Pointers == 0 && name != "" {
		s += " "
	}
	s += name
	for _, n := range dims {
		if n == Flexible {
			s += "[]"
		} else {
			s += fmt.Sprintf("[%d]", n)
		}
	}
	return s
}

// ParseType parses the canonical spelling of a type.
func ParseType(s string) (Type, error) {
	var t Type
	rest := s
	for strings.HasSuffix(rest, "]") {
		i := strings.LastIndexByte(rest, '[')
		if i < 0 {
			return t, fmt.Errorf("type %q: no [ for the last ]", s)
		}
		n := int64(Flexible)
		if text := rest[i+1 : len(rest)-1]; text != "" {
			var err error
			if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 0 || n > MaxSize {
				return t, fmt.Errorf("type %q: array length %q is not a number up to %d", s, text, MaxSize)
			}
		}
		t.Dims = append([]int64{n}, t.Dims...)
		rest = rest[:i]
	}
	base := strings.TrimRight(rest, "*")
	t.Pointers = len(rest) - len(base)
	if t.Pointers+len(t.Dims) > maxDepth {
		return t, fmt.Errorf("type %.40q: pointers and arrays nested more than %d deep", s, maxDepth)
	}
	if t.Pointers > 0 {
		var ok bool
		if base, ok = strings.CutSuffix(base, " "); !ok {
			return t, fmt.Errorf("type %q: no space before *", s)
		}
	}
	base, t.Const = strings.CutPrefix(base, "const ")
	if base == "" {
		return t, fmt.Errorf("type %q: no name", s)
	}
	for _, word := range strings.Split(base, " ") {
		if !isIdentifier(word) {
			return t, fmt.Errorf("type %q: %q is not a C name", s, word)
		}
	}
	t.Base = base
	return t, nil
}

func isIdentifier(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// Declare returns a C declaration of a function of this type: "int ibv_post_send(struct ibv_qp *qp, …)". With a name
// such as "(*f)" it declares a pointer.
func (p *Proto) Declare(name string) string {
	params := make([]string, 0, len(p.Params)+1)
	for _, a := range p.Params {
		if a.Func != nil {
			params = append(params, a.Func.Declare("(*"+a.Name+")"))
			continue
		}
		t, _ := ParseType(a.Type)
		params = append(params, t.Declare(a.Name))
	}
	switch {
	case p.Variadic:
		params = append(params, "...")
	case len(params) == 0:
		params = append(params, "void")
	}
	list := strings.Join(params, ", ")
	result, _ := ParseType(p.Result)
	return result.Declare(name + "(" + list + ")")
}
