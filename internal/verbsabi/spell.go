// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// fieldType returns a declaration of name with a member's type: fieldType(f, "*") for an int[4] returns "int (*)[4]".
// ok is false for a structure defined in place, which has no name.
func fieldType(f *model.Field, name string) (decl string, ok bool, err error) {
	if f.Record != nil {
		return "", false, nil
	}
	if f.Func != nil {
		if len(f.Dims) > 0 && strings.HasPrefix(name, "*") {
			name = "(" + name + ")"
		}
		decl, err = protoType(f.Func, "(*"+name+dims(f.Dims)+")")
		return decl, true, err
	}
	t, err := model.ParseType(f.Type)
	if err != nil {
		return "", false, err
	}
	return t.Declare(name), true, nil
}

// protoType returns a declaration of name as a function: protoType(p, "(*f)") returns "int (*f)(struct ibv_qp *)".
// Parameters stay unnamed, because a macro could replace their names.
func protoType(p *model.Proto, name string) (string, error) {
	params := make([]string, 0, len(p.Params)+1)
	for _, a := range p.Params {
		s := a.Type
		if a.Func != nil {
			var err error
			if s, err = protoType(a.Func, "(*)"); err != nil {
				return "", err
			}
		}
		params = append(params, s)
	}
	switch {
	case p.Variadic && len(params) == 0:
		return "", fmt.Errorf("a function with only ... cannot be declared in C")
	case p.Variadic:
		params = append(params, "...")
	case len(params) == 0:
		params = append(params, "void")
	}
	return p.Result + " " + name + "(" + strings.Join(params, ", ") + ")", nil
}

func dims(lengths []int64) string {
	var b strings.Builder
	for _, n := range lengths {
		if n == model.Flexible {
			b.WriteString("[]")
		} else {
			fmt.Fprintf(&b, "[%d]", n)
		}
	}
	return b.String()
}

// flexible reports whether a member is an array without a length, which has no size in C.
func flexible(f *model.Field) bool {
	if slices.Contains(f.Dims, model.Flexible) {
		return true
	}
	t, err := model.ParseType(f.Type)
	return f.Type != "" && err == nil && slices.Contains(t.Dims, model.Flexible)
}

// equals returns a C condition that is true only for this value. A plain == with mixed types would accept -1 for
// 0xFFFFFFFF.
func equals(expr string, v model.Int) string {
	if v.Negative() {
		literal := string(v) + "LL"
		if v == "-9223372036854775808" { // C has no such literal
			literal = "(-9223372036854775807LL - 1)"
		}
		return fmt.Sprintf("(%s) < 0 && (%[1]s) == %s", expr, literal)
	}
	return fmt.Sprintf("!((%s) < 0) && (%[1]s) == %sULL", expr, v)
}
