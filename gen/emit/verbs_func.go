// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// functions prints the functions that call C in one of the given ways.
func (e *verbsEmitter) functions(f *jen.File, ways ...rules.Via) {
	for _, fn := range e.verbs.Funcs {
		if slices.Contains(ways, fn.Via) {
			e.function(f, fn)
		}
	}
}

func (e *verbsEmitter) function(f *jen.File, fn *rules.VerbFunc) {
	comment(f, strings.Join(append(e.callDoc(fn), facts(fn.Doc)), "\n"))
	e.escapes(f, fn)
	if !fn.Free {
		f.Func().Id(fn.Go).Params(e.params(fn)...).Add(e.results(fn)).Block(e.body(fn)...)
		return
	}
	f.Func().Id(fn.Go).Params(e.params(fn)...).Add(e.results(fn)).Block(
		jen.Return(jen.Id("From").Values().Dot(fn.Go).Call(names(fn)...)))
	comment(f, fmt.Sprintf("%s is like [%[1]s], for the backend.", fn.Go))
	e.escapes(f, fn)
	f.Func().Params(jen.Id("from").Id("From")).Id(fn.Go).Params(e.params(fn)...).Add(e.results(fn)).Block(e.body(fn)...)
}

// escapes prints the directive that keeps Go memory alive and in place while its address is an argument.
func (e *verbsEmitter) escapes(f *jen.File, fn *rules.VerbFunc) {
	if slices.ContainsFunc(fn.Params, func(p rules.VerbParam) bool { return p.Kind == rules.ForeignParam }) {
		f.Comment("//")
		f.Comment("//go:uintptrescapes")
	}
}

// callDoc returns the sentences about the call.
func (e *verbsEmitter) callDoc(fn *rules.VerbFunc) []string {
	s := fn.Go + " calls " + fn.C
	switch fn.Via {
	case rules.ObjectSlot, rules.ContextOp:
		s += ", a slot of " + fn.Object[len(fn.Object)-1].C
	case rules.ExtendedOp:
		s += ", an operation that not every library and device supports"
	case rules.Forward:
		s += " with the sizes of Go's records"
	}
	s += ". "
	switch fn.Convention {
	case rules.ReturnsErrno:
		s += "The error is the errno that C returns."
	case rules.ReturnsStatus:
		s += "The error is errno."
	case rules.ReturnsMinusOne:
		s += "After -1 the error is errno."
	case rules.ReturnsNegativeErrno:
		s += "The error is a negative errno that C returns."
	case rules.ReturnsCode:
		s += "The error is the number that C returns."
	case rules.ReturnsNull:
		s += "After NULL the error is errno."
	case rules.ReturnsNullOK:
		s += "NULL is a valid result; the C function cannot fail."
	default:
		s += "The C function cannot fail."
	}
	if fn.Blocks != "" {
		s += " It may block " + fn.Blocks + "."
	}
	if strings.HasPrefix(fn.Prototype, "const char *") {
		s += " The text is copied."
	}
	if fn.Locks == "" {
		return []string{s, ""}
	}
	return []string{s, "", fmt.Sprintf("Providers hold a lock from here to %s. A goroutine that is preempted in "+
		"between blocks every thread that", fn.Locks),
		"waits for the lock, including Go's own: call the functions of a region through a program.Program, which " +
			"does " +
			"not return to",
		"the scheduler between its calls.", ""}
}

func (e *verbsEmitter) paramType(t rules.GoType) *jen.Statement {
	if t.Pointers == 0 {
		return qualified(t.Import, t.Name)
	}
	t.Pointers--
	return jen.Op("*").Add(e.goType(t))
}

func (e *verbsEmitter) params(fn *rules.VerbFunc) []jen.Code {
	var all []jen.Code
	for _, p := range fn.Params {
		all = append(all, jen.Id(p.Go).Add(e.paramType(p.Type)))
	}
	return all
}

func names(fn *rules.VerbFunc) []jen.Code {
	var all []jen.Code
	for _, p := range fn.Params {
		all = append(all, jen.Id(p.Go))
	}
	return all
}

// results prints the results of the Go function.
func (e *verbsEmitter) results(fn *rules.VerbFunc) *jen.Statement {
	if t := e.result(fn); t != nil {
		return jen.Parens(jen.List(t, jen.Error()))
	}
	return jen.Error()
}

// result returns the type of the result other than the error, or nil.
func (e *verbsEmitter) result(fn *rules.VerbFunc) *jen.Statement {
	switch fn.Convention {
	case rules.ReturnsVoid, rules.ReturnsErrno, rules.ReturnsStatus, rules.ReturnsCode:
		return nil
	case rules.ReturnsBool:
		return jen.Bool()
	}
	return e.paramType(fn.Result)
}

// zero returns the result that is returned together with an error.
func zero(fn *rules.VerbFunc) jen.Code {
	switch {
	case fn.Convention == rules.ReturnsBool:
		return jen.False()
	case fn.Result.Pointers > 0:
		return jen.Nil()
	case fn.Result.Name == "string":
		return jen.Lit("")
	}
	return jen.Lit(0)
}

func (e *verbsEmitter) body(fn *rules.VerbFunc) []jen.Code {
	variable := jen.Id("fn" + fn.Go)
	switch fn.Via {
	case rules.Exported:
		if fn.Free {
			return []jen.Code{e.returned(fn, variable.Dot("From").Call(jen.Id("from").Dot("Backend")))}
		}
		return []jen.Code{e.returned(fn, variable.Dot("Exported").Call())}
	case rules.Forward:
		return []jen.Code{e.forward(fn)}
	}
	return e.throughObject(fn)
}

// throughObject follows the pointers to the structure with the slot, and calls the slot.
func (e *verbsEmitter) throughObject(fn *rules.VerbFunc) []jen.Code {
	var code []jen.Code
	at := jen.Id(fn.Object[0].Go)
	for i, step := range fn.Object {
		if i > 0 {
			next := jen.Id(strings.ToLower(step.Go))
			code = append(code, next.Clone().Op(":=").Add(at.Clone()).Dot(step.Go).Dot("Deref").Call())
			at = next
		}
		refused := []jen.Code{jen.Id("fn" + fn.Go).Dot("Nil").Call(jen.Lit(step.C))}
		if e.result(fn) != nil {
			refused = append([]jen.Code{zero(fn)}, refused...)
		}
		code = append(code, jen.If(at.Clone().Op("==").Nil()).Block(jen.Return(refused...)))
	}
	slot := jen.Uintptr().Call(at.Clone().Dot(fn.Slot))
	switch fn.Via {
	case rules.ContextOp:
		slot = jen.Uintptr().Call(at.Clone().Dot("Ops").Dot(fn.Slot))
	case rules.ExtendedOp:
		slot = jen.Id("extended").Call(at.Clone(),
			jen.Qual("unsafe", "Offsetof").Call(qualified(fn.Holder.Import, fn.Holder.Name).Values().Dot(fn.Slot)))
	}
	return append(code, e.returned(fn, jen.Id("fn"+fn.Go).Dot("Slot").Call(slot)))
}

// returned prints the call according to the function's convention, and converts its result.
func (e *verbsEmitter) returned(fn *rules.VerbFunc, call *jen.Statement) jen.Code {
	long := ""
	if fn.CResult.Base != "int" {
		long = "Long"
	}
	method := map[rules.Convention]string{
		rules.ReturnsVoid: "Void", rules.ReturnsErrno: "Errno", rules.ReturnsMinusOne: "MinusOne" +
			long, rules.ReturnsStatus: "Status", rules.ReturnsCode: "Code",
		rules.ReturnsNegativeErrno: "NegativeErrno" +
			long, rules.ReturnsNull: "Null", rules.ReturnsNullOK: "NullOK", rules.ReturnsValue: "Value",
		rules.ReturnsBool: "Value",
	}[fn.Convention]
	if method == "Status" && len(fn.Params) == 3 {
		method = "Status3"
	}
	var args []jen.Code
	if fn.Convention == rules.ReturnsCode {
		args = append(args, jen.Id("code"))
	}
	for i, p := range fn.Params {
		args = append(args, argument(p))
		if p.Wide() {
			call = call.Dot("Wide").Call(jen.Lit(i), sixtyFour(p))
		}
	}
	if method == "Value" && fn.CResult.Pointers > 0 {
		method = "NullOK"
	}
	call = call.Dot(method).Call(args...)
	switch {
	case fn.Convention == rules.ReturnsBool:
		size := "uint32"
		if fn.CResult.Base == "_Bool" {
			size = "uint8"
		}
		call = jen.Id("asBool").Types(jen.Id(size)).Call(call)
	case method != "Null" && method != "NullOK" && method != "Value":
	case fn.Result.Name == "string":
		call = jen.Id("asString").Call(call)
	case fn.Result.Pointers > 0:
		t := fn.Result
		t.Pointers--
		call = jen.Id("asObject").Types(e.goType(t)).Call(call)
	case fn.Result.Name == "int":
		call = jen.Id("asInt").Call(call)
	case fn.Result.Name != "uintptr":
		call = jen.Id("asNumber").Types(e.paramType(fn.Result)).Call(call)
	}
	return jen.Return(call)
}

// argument converts a parameter to an argument of the C call.
func argument(p rules.VerbParam) jen.Code {
	switch p.Kind {
	case rules.AddressParam:
		return jen.Uintptr().Call(jen.Qual("unsafe", "Pointer").Call(jen.Id(p.Go)))
	case rules.TextParam:
		return jen.Uintptr().Call(jen.Qual("unsafe", "Pointer").Call(jen.Id("text").Call(jen.Id(p.Go))))
	case rules.TruthParam:
		return jen.Id("truth").Call(jen.Id(p.Go))
	case rules.ForeignParam:
		return jen.Id(p.Go)
	case rules.IntParam:
		return jen.Uintptr().Call(jen.Int32().Call(jen.Id(p.Go)))
	case rules.WordParam:
		return jen.Qual(rules.Module+"/runtime", "Word").Call(jen.Uint32().Call(jen.Id(p.Go)))
	}
	return jen.Uintptr().Call(jen.Id(p.Go))
}

// sixtyFour returns a 64-bit parameter as a uint64.
func sixtyFour(p rules.VerbParam) jen.Code {
	if p.Type.Name == "uint64" {
		return jen.Id(p.Go)
	}
	return jen.Uint64().Call(jen.Id(p.Go))
}

// forward prints a call to another function of the package.
func (e *verbsEmitter) forward(fn *rules.VerbFunc) jen.Code {
	var args []jen.Code
	for i, a := range fn.Args {
		if of, ok := strings.CutPrefix(a, "sizeof "); ok {
			args = append(args, e.paramType(fn.Callee.Params[i].Type).Call(jen.Qual("unsafe",
				"Sizeof").Call(jen.Op(of))))
			continue
		}
		args = append(args, jen.Id(a))
	}
	if fn.Free {
		return jen.Return(jen.Id("from").Dot(fn.Callee.Go).Call(args...))
	}
	return jen.Return(jen.Id(fn.Callee.Go).Call(args...))
}
