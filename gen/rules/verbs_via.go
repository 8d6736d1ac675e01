// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// via determines how Go reaches the code of a function.
func (r *verbResolver) via(fn *VerbFunc, f *model.Func) {
	in := f.Inline
	switch {
	case fn.Convention == ReturnsSpecial || fn.Routed < 0 && !fn.Free && !r.pkg.Verbs.Alone:
		fn.Via = Written
	case in == nil:
		fn.Via = Exported
	case in.Kind == model.Slot && r.plainArgs(f):
		fn.Via = ObjectSlot
		r.slot(fn, f, in.Object, in.Struct)
	case in.Kind == model.ContextOp && r.plainArgs(f):
		fn.Via = ContextOp
		r.slot(fn, f, in.Object, in.Struct)
	case in.Kind == model.ExtendedOp && r.plainArgs(f):
		fn.Via = ExtendedOp
		r.slot(fn, f, in.Object, in.Struct)
	case in.Kind == model.Call && r.forwardable(f):
		fn.Via = Forward
		r.calls = append(r.calls, func() { r.forward(fn, in) })
	default:
		fn.Via = Written
	}
}

// plainArgs reports whether an inline function passes on its parameters unchanged.
func (r *verbResolver) plainArgs(f *model.Func) bool {
	if len(f.Inline.Args) != len(f.Params) {
		return false
	}
	for i, a := range f.Inline.Args {
		if a != f.Params[i].Name {
			return false
		}
	}
	return true
}

// slot follows a path like "qp->context" from a parameter to the structure that holds the slot.
func (r *verbResolver) slot(fn *VerbFunc, f *model.Func, object, holder string) {
	steps := strings.Split(strings.ReplaceAll(object, "->", "."), ".")
	i := slices.IndexFunc(fn.Params, func(p VerbParam) bool { return p.C == steps[0] })
	if i < 0 {
		r.fail(fn.C, "%s does not start with a parameter", object)
		return
	}
	fn.Object = []Step{{Go: fn.Params[i].Go, C: steps[0]}}
	for j, s := range steps[1:] {
		fn.Object = append(fn.Object, Step{Go: FieldName(s), C: strings.Join(steps[:j+2], ".")})
	}
	name, ok := r.goOf["struct "+holder]
	if !ok {
		r.fail(fn.C, "no Go type for struct %s", holder)
	}
	if name.Import == "" {
		name.Import = r.resolver.plan.Import
	}
	fn.Holder = GoType{Import: name.Import, Name: name.Name}
	fn.Slot = FieldName(f.Inline.Slot)
}

// forwardable reports whether an inline function only calls one other function of the package, with parameters and
// sizes.
func (r *verbResolver) forwardable(f *model.Func) bool {
	declared := slices.ContainsFunc(r.headers, func(h *model.Header) bool {
		return slices.ContainsFunc(h.Funcs, func(g model.Func) bool { return g.Name == f.Inline.Calls[0] })
	})
	return declared && !slices.ContainsFunc(f.Inline.Args, func(a string) bool {
		_, size := strings.CutPrefix(a, "sizeof(")
		return !size && !slices.ContainsFunc(f.Params, func(p model.Param) bool { return p.Name == a })
	})
}

// forwards links the functions that call others, after all of them have been named.
func (r *verbResolver) forwards() {
	for _, link := range r.calls {
		link()
	}
}

func (r *verbResolver) forward(fn *VerbFunc, in *model.Inline) {
	i := slices.IndexFunc(r.plan.Funcs, func(f *VerbFunc) bool { return f.C == in.Calls[0] })
	if i < 0 || len(in.Args) != len(r.plan.Funcs[i].Params) {
		r.fail(fn.C, "it calls %s, which has no matching Go function", in.Calls[0])
		return
	}
	fn.Callee = r.plan.Funcs[i]
	if fn.Callee.Free != fn.Free || fn.Callee.Convention != fn.Convention {
		r.fail(fn.C, "its rows differ from those of %s, which it calls", fn.Callee.C)
	}
	for _, a := range in.Args {
		if of, ok := strings.CutPrefix(a, "sizeof("); ok {
			fn.Args = append(fn.Args, "sizeof "+r.sized(fn, strings.TrimSuffix(of, ")")))
			continue
		}
		j := slices.IndexFunc(fn.Params, func(p VerbParam) bool { return p.C == a })
		fn.Args = append(fn.Args, fn.Params[j].Go)
	}
}

// sized returns the Go expression for an operand of sizeof in C: "*entry" or "struct x".
func (r *verbResolver) sized(fn *VerbFunc, c string) string {
	if name, ok := strings.CutPrefix(c, "*"); ok {
		return "*" + paramName(name)
	}
	name, ok := r.goOf[c]
	if !ok {
		r.fail(fn.C, "no Go type for %s", c)
	}
	if name.Import == "" {
		name.Import = r.resolver.plan.Import
	}
	return path.Base(name.Import) + "." + name.Name + "{}"
}
