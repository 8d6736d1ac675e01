// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// convention applies the row with a function's error convention, and determines the Go results.
func (r *verbResolver) convention(fn *VerbFunc, f *model.Func) {
	row := r.rows.conventions.Find(fn.C)
	if row == nil {
		r.fail(fn.C, "no row defines how it reports errors; add one to gen/rules/conventions.txt")
		return
	}
	fn.Convention = Convention(row.Columns[1])
	if fn.Convention == ReturnsSpecial {
		for _, like := range []struct {
			words string
			kind  Convention
		}{{"as errno", ReturnsErrno}, {"as negative", ReturnsNegativeErrno}} {
			if strings.HasSuffix(row.Rest(2), like.words) {
				fn.Convention = like.kind
			}
		}
	}
	t, err := model.ParseType(f.Result)
	if err != nil {
		r.fail(fn.C, "%v", err)
		return
	}
	fn.CResult = t
	integer := t.Pointers == 0 && slices.Contains([]string{"int", "ssize_t", "off_t", "size_t"}, t.Base)
	fits, known := map[Convention]bool{
		ReturnsVoid: t.IsVoid(), ReturnsErrno: t.String() == "int", ReturnsMinusOne: integer, ReturnsStatus: integer,
		ReturnsNegativeErrno: integer,
		ReturnsNull:          t.Pointers > 0, ReturnsNullOK: t.Pointers > 0, ReturnsValue: !t.IsVoid(),
		ReturnsBool: integer || t.Base == "_Bool", ReturnsCode: t.String() == "int", ReturnsSpecial: true,
	}[fn.Convention]
	switch {
	case !known:
		r.fail(fn.C, "%s: unknown convention %q", row.At, fn.Convention)
	case !fits:
		r.fail(fn.C, "%s: a result of type %s cannot be %s", row.At, f.Result, fn.Convention)
	}
	if fn.Convention == ReturnsCode {
		r.errorsType(fn)
	}
	switch {
	case t.IsVoid():
	case t.Base == "char" && t.Pointers == 1:
		fn.Result = GoType{Name: "string"}
	case integer && t.Base != "int" && fn.Convention != ReturnsValue:
		fn.Result = GoType{Name: "int64"}
	default:
		if fn.Result, err = r.verbType(t); err != nil {
			r.fail(fn.C, "result: %v", err)
		}
	}
	if holds := r.rows.verbs.Find("holds", fn.C+".return"); holds != nil {
		fn.Result = r.holds(fn.C, holds)
	}
}

// errorsType records the type of the errors that functions return as numbers.
func (r *verbResolver) errorsType(fn *VerbFunc) {
	i := slices.IndexFunc(r.resolver.plan.Enums, func(e Enum) bool { return e.Errors })
	if i < 0 {
		r.fail(fn.C, "it returns error numbers of the library, but no row names their macros; add an errors row "+
			"to gen/rules/exceptions.txt")
		return
	}
	r.plan.Errors = GoType{Import: r.resolver.plan.Import, Name: r.resolver.plan.Enums[i].Go}
}

// route determines the backend of a call: that of the first pointer to a structure, unless a row overrides it.
func (r *verbResolver) route(fn *VerbFunc) {
	row := r.rows.routing.Find(fn.C)
	if row == nil {
		fn.Routed = slices.IndexFunc(fn.Params, func(p VerbParam) bool {
			return p.Kind == AddressParam && p.Type.Pointers == 1 && p.Type.Import != ""
		})
		if fn.Routed < 0 && !r.pkg.Verbs.Alone {
			r.fail(fn.C, "no argument is an object that selects its backend; add a row to "+
				"gen/rules/routing.txt")
		}
		return
	}
	switch row.Columns[1] {
	case "none":
		fn.Free = true
	case "arg":
		n, err := -1, error(nil)
		if len(row.Columns) > 2 {
			n, err = strconv.Atoi(row.Columns[2])
		}
		if err != nil || n < 0 || n >= len(fn.Params) || fn.Params[n].Kind != AddressParam {
			r.fail(fn.C, "%s: want arg N, a parameter that is an address", row.At)
			return
		}
		fn.Routed = n
	case "event":
	default:
		r.fail(fn.C, "%s: want none, arg N or event", row.At)
	}
}
