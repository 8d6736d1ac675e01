// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// written holds support.go, which is copied to every package of functions, and a directory for each package with its
// hand-written functions, which rules cannot generate. These Go files build only in the packages to which they are
// copied.
//
//go:embed internal/verbs
var written embed.FS

const (
	writtenDir  = "internal/verbs"
	runtimePath = rules.Module + "/runtime"
)

// Verbs prints a package of functions.
func Verbs(p *rules.VerbsPlan) (Files, error) {
	base := &emitter{out: Files{}, plan: &rules.Plan{
		Package: rules.Package{Name: p.Verbs.Name,
			Imports: append([]string{p.Noun.Package.Name}, p.Noun.Package.Imports...)},
		Import: p.Import, Project: p.Noun.Project, Release: p.Noun.Release, Shared: p.Noun.Shared,
	}}
	if base.plan.Shared == "" {
		base.plan.Shared = p.Noun.Import
	}
	e := &verbsEmitter{emitter: base, verbs: p}
	e.writtenFiles()
	e.verbsDoc()
	e.file("library.go", "", e.library)
	e.file("function.go", "", e.variables)
	e.file("extern.go", "", func(f *jen.File) { e.functions(f, rules.Exported) })
	e.file("slot.go", "", func(f *jen.File) { e.functions(f, rules.ObjectSlot, rules.ContextOp) })
	e.file("extended.go", "", func(f *jen.File) { e.functions(f, rules.ExtendedOp) })
	e.file("call.go", "", func(f *jen.File) { e.functions(f, rules.Forward) })
	return e.out, e.err
}

type verbsEmitter struct {
	*emitter
	verbs       *rules.VerbsPlan
	handwritten string // source text of the hand-written functions
}

func (e *verbsEmitter) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// marker precedes the C prototype in the comment of a hand-written function.
const marker = "//verbs:c "

// writtenFiles copies the support file and the hand-written functions, and completes the comments of the latter.
func (e *verbsEmitter) writtenFiles() {
	found := map[string]*rules.VerbFunc{}
	for _, dir := range []string{"support", e.plan.Package.Name} {
		entries, err := written.ReadDir(path.Join(writtenDir, dir))
		if err != nil {
			continue // the package has no hand-written functions
		}
		for _, entry := range entries {
			source, err := written.ReadFile(path.Join(writtenDir, dir, entry.Name()))
			if err != nil {
				e.fail("%w", err)
				return
			}
			e.copyWritten(entry.Name(), dir, string(source), found)
		}
	}
	for _, fn := range e.verbs.Funcs {
		if fn.Via == rules.Written && found[fn.C] == nil {
			e.fail("%s: %s: no rule can generate it; write it in gen/emit/%s/%s, under the line %s%s", fn.Doc.Header,
				fn.C, writtenDir, e.plan.Package.Name, marker, fn.Prototype)
		}
	}
}

func (e *verbsEmitter) copyWritten(name, dir, source string, found map[string]*rules.VerbFunc) {
	clause := "package " + dir + "\n"
	_, body, ok := strings.Cut(source, clause)
	if !ok {
		e.fail("%s/%s has an unexpected package clause", dir, name)
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, generated+"\n\npackage %s\n", e.plan.Source(), e.plan.Package.Name)
	previous := false
	for line := range strings.Lines(body) {
		prototype, marked := strings.CutPrefix(line, marker)
		if !marked {
			if previous && strings.HasPrefix(line, "//go:") {
				b.WriteString("//\n")
			}
			previous = false
			b.WriteString(line)
			continue
		}
		previous = true
		fn := e.byPrototype(strings.TrimSpace(prototype))
		if fn == nil {
			e.fail("%s/%s: stale: no header declares %s", dir, name, strings.TrimSpace(prototype))
			return
		}
		if fn.Via != rules.Written {
			e.fail("%s/%s: stale: a rule generates %s", dir, name, fn.C)
			return
		}
		found[fn.C] = fn
		for l := range strings.SplitSeq(facts(fn.Doc), "\n") {
			b.WriteString(strings.TrimSpace("// "+l) + "\n")
		}
	}
	e.handwritten += body
	e.out[name] = []byte(b.String())
}

func (e *verbsEmitter) byPrototype(prototype string) *rules.VerbFunc {
	for _, fn := range e.verbs.Funcs {
		if fn.Prototype == prototype {
			return fn
		}
	}
	return nil
}

// library prints the variable for the shared library.
func (e *verbsEmitter) library(f *jen.File) {
	v := e.verbs.Verbs
	comment(f, fmt.Sprintf("Library is %s. It is opened when its first function is called; GOVERBS_%s or "+
		"Library.SetPath selects the file.", v.SOName, strings.ToUpper(v.Name)))
	d := jen.Dict{jen.Id("Name"): jen.Lit(v.Name), jen.Id("SOName"): jen.Lit(v.SOName),
		jen.Id("Check"): jen.Id("check")}
	d[jen.Id("Project")] = jen.Lit(e.verbs.Noun.Project)
	if v.Needs != "" {
		d[jen.Id("Needs")] = jen.Qual(path.Join(path.Dir(e.verbs.Import), v.Needs), "Library")
	}
	f.Var().Id("Library").Op("=").Op("&").Qual(runtimePath, "Library").Values(d)
	if t := e.verbs.Errors; t.Name != "" {
		comment(f, "code returns the error for an error number.")
		f.Func().Id("code").Params(jen.Id("n").Int32()).Error().Block(
			jen.Return(qualified(t.Import, t.Name).Call(jen.Id("n"))))
	}
	if !e.hasFree() {
		return
	}
	comment(f, "From calls the functions that have no object parameter to select a backend: those of a software "+
		"backend, or those\nof the native library if Backend is nil.")
	f.Type().Id("From").Struct(jen.Id("Backend").Qual(runtimePath, "Backend"))
}

func (e *verbsEmitter) hasFree() bool {
	for _, fn := range e.verbs.Funcs {
		if fn.Free && fn.Via != rules.Written {
			return true
		}
	}
	return strings.Contains(e.handwritten, "(from From)")
}

// variables prints a runtime.Function for each C function, and the tables of exported functions and of new slots.
func (e *verbsEmitter) variables(f *jen.File) {
	var all, exported, newer []jen.Code
	for _, fn := range e.verbs.Funcs {
		name := "fn" + fn.Go
		used := fn.Via != rules.Forward && (fn.Via != rules.Written || strings.Contains(e.handwritten, name+"."))
		if !used {
			continue
		}
		d := jen.Dict{jen.Id("Library"): jen.Id("Library"), jen.Id("Name"): jen.Lit(fn.C)}
		if since := fn.Doc.Since; !strings.HasSuffix(since, "or earlier") {
			d[jen.Id("Since")] = jen.Lit(since)
		}
		if fn.With != "" {
			d[jen.Id("With")] = jen.Lit(fn.With)
		}
		if fn.Routed >= 0 {
			d[jen.Id("Pointers")] = jen.Lit(1).Op("<<").Lit(fn.Routed)
		}
		all = append(all, jen.Id(name).Op("=").Op("&").Qual(runtimePath, "Function").Values(d))
		if fn.Extern {
			exported = append(exported, jen.Line().Id(name))
		}
		if fn.With != "" {
			newer = append(newer, jen.Line().Id(name))
		}
	}
	f.Var().Defs(all...)
	comment(f, "Functions lists the functions that the headers declare and the library exports, in order; Available "+
		"reports whether\nthe loaded library has one. It must not be modified.")
	f.Var().Id("Functions").Op("=").Index().Op("*").Qual(runtimePath,
		"Function").Values(append(exported, jen.Line())...)
	if newer == nil {
		return
	}
	comment(f, "NewSlots lists, in order, the functions in slots that objects of older libraries are too short for; "+
		"Has reports\nwhether an object has one, for callers that do not use the functions of this package. It must not "+
		"be modified.")
	f.Var().Id("NewSlots").Op("=").Index().Op("*").Qual(runtimePath, "Function").Values(append(newer, jen.Line())...)
}

// verbsDoc prints the package documentation.
func (e *verbsEmitter) verbsDoc() {
	v, noun := e.verbs.Verbs, e.verbs.Noun.Package
	var b strings.Builder
	fmt.Fprintf(&b, generated+"\n\n", e.plan.Source())
	fmt.Fprintf(&b, "// Package %s calls %s. It has one Go function for each C function, exported or inline, with the "+
		"types of package %s.\n", v.Name, v.SOName, noun.Name)
	b.WriteString(verbsRules)
	if t := e.verbs.Errors; t.Name != "" {
		fmt.Fprintf(&b, verbsCodes, noun.Name, t.Name)
	}
	if v.Alone {
		b.WriteString(verbsAlone)
	} else {
		b.WriteString(verbsBackend)
	}
	if e.hasFree() {
		b.WriteString(verbsFrom)
	}
	fmt.Fprintf(&b, "package %s\n", v.Name)
	e.out["doc.go"] = []byte(b.String())
}

const verbsRules = `//
// A function has the name and parameters of the C function, without the prefix. int is int, other integers keep C's
// size, a pointer to a structure is a pointer, and a pointer to a pointer is a pointer to an ibv.Ptr. const char * is a
// string; "" is NULL. void * is uintptr, since it may point to memory that Go does not manage, to device memory, or
// nowhere. Convert the address of Go memory in the argument list, uintptr(unsafe.Pointer(&b[0])): this keeps the memory
// alive and in place until the call returns.
//
// An error is a *runtime.CallError with the errno of that C call, a *runtime.NotSupportedError if the library, symbol,
// slot or operation is missing, or a *runtime.NilError for a nil pointer that Go would have to follow. Other pointers
// are passed to C unchecked; an invalid one crashes the program as in C. A C result that only reports failure is
// returned as the error alone.
//
// A function is safe for concurrent use if the C function is thread-safe. It may block its thread; the scheduler
// accounts for this. Objects belong to the library until the function that destroys them is called.
`

const verbsCodes = `//
// Where C returns an error number of the library, the error is a *runtime.CodeError; errors.Is matches its %[1]s.%[2]s.
`

const verbsBackend = `//
// A call goes to the backend of the object: the native library or a software device (runtime.Space).
`

const verbsAlone = `//
// Software devices do not implement these functions: a call with an object of one returns a *runtime.NotSupportedError.
`

const verbsFrom = `// Functions without an object call the native library; [From] calls them for a backend.
`
