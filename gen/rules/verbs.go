// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"go/token"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rows"
)

// Verbs describes the package of functions that belongs to a package of types.
type Verbs struct {
	Dropin bool   // a drop-in C library replaces this library with the software device
	Name   string // "libibverbs", which is also the library's name
	SOName string // "libibverbs.so.1"
	Needs  string // the library that it is linked with: "libibverbs"; or ""
	// header whose functions are C library functions with a prefixed letter: socket → rsocket
	Sockets string
	// Alone means that no software backend implements these functions: those without an object call the library, and
	// objects of a software backend are rejected.
	Alone bool
	Rows  *VerbRows // nil for the rows of this directory
}

// VerbsPlan is the plan of a package of functions.
type VerbsPlan struct {
	Verbs   Verbs
	Import  string // import path
	Noun    *Plan
	Funcs   []*VerbFunc
	Skipped []Exception // functions that cannot be called, with reasons
	Errors  GoType      // type of the numbers that functions return by the convention "code"
}

// Via is the way in which a Go function reaches the C code.
type Via string

const (
	Exported   Via = "exported"    // a symbol of the library
	ObjectSlot Via = "slot"        // a member of an object: qp.WRStart
	ContextOp  Via = "context op"  // a member of context.Ops
	ExtendedOp Via = "extended op" // a member of the structure that embeds a context, if the structure is long enough
	Forward    Via = "call"        // another Go function of the package, with more arguments
	Written    Via = "written"     // hand-written Go code
)

// Convention is the error convention of a C function.
type Convention string

const (
	ReturnsVoid          Convention = "void"
	ReturnsErrno         Convention = "errno"
	ReturnsMinusOne      Convention = "minus-one"
	ReturnsStatus        Convention = "minus-one-status"
	ReturnsNegativeErrno Convention = "negative-errno"
	ReturnsNull          Convention = "null"
	ReturnsNullOK        Convention = "null-ok"
	ReturnsValue         Convention = "value"
	ReturnsBool          Convention = "bool"
	ReturnsCode          Convention = "code"
	ReturnsSpecial       Convention = "special" // no rule: the function is hand-written
)

// VerbFunc is one C function in Go.
type VerbFunc struct {
	Doc        Doc
	C          string
	Prototype  string
	Go         string
	Params     []VerbParam
	CResult    model.Type
	Result     GoType // type of a value; unused for void, errno, minus-one-status and bool
	Convention Convention
	Via        Via
	Extern     bool   // the library exports it
	Free       bool   // has no object parameter, so the caller names a backend
	Routed     int    // index of the parameter that selects the backend, or -1
	Blocks     string // condition that the call may block for: "until …"; or ""
	Locks      string // C function that releases the lock that this one takes, or ""

	// Of slots and operations:
	Object []Step // from a parameter to the structure with the slot
	Holder GoType // that structure
	Slot   string // its Go field
	// C function that was introduced together with the slot: objects of a library without it lack the slot; or ""
	With string

	// Of Forward:
	Callee *VerbFunc
	Args   []string // Go parameter, or "sizeof X"
}

// Step is a pointer that Go follows: it must not be nil.
type Step struct {
	Go string // "qp", then "Context"
	C  string // the same in C, for messages: "qp", then "qp.context"
}

// VerbParam is a parameter.
type VerbParam struct {
	C    string
	Go   string
	Type GoType // of "*ibv.QP": Name QP, Pointers 1
	Kind ParamKind
}

// Wide reports whether the argument has 64 bits on every machine. Addresses do not count.
func (p VerbParam) Wide() bool {
	return p.Kind == NumberParam && slices.Contains([]string{"int64", "uint64", "BE64"}, p.Type.Name)
}

// ParamKind determines how a Go value is converted to an argument.
type ParamKind int

const (
	NumberParam ParamKind = iota
	IntParam              // a C int, sign-extended in the register, regardless of the Go type
	// an unsigned 32-bit integer; the calling convention determines the upper half of the register
	WordParam
	AddressParam // a Go pointer
	ForeignParam // uintptr
	TextParam    // string
	TruthParam   // bool
)

// verbs plans the package of functions.
func (r *resolver) verbs() {
	v := r.pkg.Verbs
	if v == nil {
		return
	}
	all := v.Rows
	if all == nil {
		var err error
		if all, err = DefaultVerbRows(); err != nil {
			r.errs = append(r.errs, err)
			return
		}
	}
	p := &VerbsPlan{Verbs: *v, Import: Module + "/generated/" + v.Name, Noun: r.plan}
	vr := &verbResolver{resolver: r, plan: p, rows: all,
		owners: map[string]string{"From": "the generator", "Library": "the generator", "Functions": "the generator"}}
	for _, h := range r.headers {
		for i := range h.Funcs {
			vr.function(h, &h.Funcs[i])
		}
	}
	vr.forwards()
	vr.newSlots()
	vr.stale()
	r.plan.Verbs = p
}

// newSlots determines how a program can detect slots that older recorded releases lack. An object does not store its
// size, but the library that allocated it may export functions that were introduced together with the slot.
func (r *verbResolver) newSlots() {
	for _, fn := range r.plan.Funcs {
		if fn.Via != ObjectSlot || strings.HasSuffix(fn.Doc.Since, "or earlier") {
			continue
		}
		i := slices.IndexFunc(r.plan.Funcs,
			func(other *VerbFunc) bool { return other.Extern && other.Doc.Since == fn.Doc.Since })
		if i < 0 {
			r.fail(fn.C, "objects of releases before %s lack its slot, and no function was added with it "+
				"that would reveal it", fn.Doc.Since)
			continue
		}
		fn.With = r.plan.Funcs[i].C
	}
}

type verbResolver struct {
	*resolver
	plan   *VerbsPlan
	rows   *VerbRows
	owners map[string]string
	calls  []func()
}

func (r *verbResolver) function(h *model.Header, f *model.Func) {
	if row := r.rows.verbs.Find("skip", f.Name); row != nil {
		r.plan.Skipped = append(r.plan.Skipped, Exception{C: f.Name, Action: Skip, Why: row.Rest(3), At: row.At})
		return
	}
	fn := &VerbFunc{C: f.Name, Prototype: f.Proto.Declare(f.Name), Go: r.verbName(h, f.Name), Routed: -1,
		Extern: f.Inline == nil}
	if row := r.rows.verbs.Find("blocks", f.Name); row != nil {
		var found bool
		if fn.Blocks, _, found = strings.Cut(row.Rest(3), ": "); !found {
			fn.Blocks = "indefinitely"
		}
	}
	fn.Doc = r.doc(fn.Prototype, h, f.Man, r.since.of(f.Name))
	if row := r.rows.verbs.Find("locks", f.Name); row != nil {
		fn.Locks = row.Columns[2]
	}
	if owner, taken := r.owners[fn.Go]; taken {
		r.fail(f.Name, "its Go name %s is taken by %s; add a name row to gen/rules/verbs.txt", fn.Go, owner)
	}
	r.owners[fn.Go] = f.Name
	for i, p := range f.Params {
		if strings.Trim(p.Name, "_") == "" {
			p.Name = fmt.Sprintf("arg%d", i+1)
		}
		fn.Params = append(fn.Params, r.param(f.Name, p))
		for _, before := range fn.Params[:len(fn.Params)-1] {
			if name := fn.Params[len(fn.Params)-1].Go; before.Go == name {
				r.fail(f.Name, "parameters %s and %s have the Go name %s", before.C, p.Name, name)
			}
		}
	}
	if f.Variadic {
		fn.Params = append(fn.Params, VerbParam{C: "...", Go: "arg", Type: GoType{Name: "uintptr"}, Kind: ForeignParam})
	}
	r.convention(fn, f)
	r.route(fn)
	r.via(fn, f)
	r.plan.Funcs = append(r.plan.Funcs, fn)
}

// verbName returns the Go name of a function: ibv_create_qp → CreateQP.
func (r *verbResolver) verbName(h *model.Header, c string) string {
	if row := r.rows.verbs.Find("name", c); row != nil {
		return row.Columns[2]
	}
	if h.Name == r.pkg.Verbs.Sockets {
		return strings.ToUpper(c[:1]) + camel(c[1:])
	}
	return camel(r.pkg.strip(c))
}

// param chooses the Go type of a parameter. void * is uintptr, since it need not point to Go memory. int is int; other
// integers have C's size.
func (r *verbResolver) param(function string, p model.Param) VerbParam {
	v := VerbParam{C: p.Name, Go: paramName(p.Name)}
	t, err := model.ParseType(p.Type)
	if err == nil {
		v.Type, err = r.verbType(t)
	}
	if err != nil {
		r.fail(function, "parameter %s: %v", p.Name, err)
		return v
	}
	if row := r.rows.verbs.Find("holds", function+"."+p.Name); row != nil {
		v.Type = r.holds(function, row)
	}
	if row := r.rows.verbs.Find("bytes", function+"."+p.Name); row != nil {
		return r.bytes(function, v, row)
	}
	switch {
	case t.Base == "char" && t.Const && t.Pointers == 1:
		v.Kind, v.Type = TextParam, GoType{Name: "string"}
	case v.Type.Pointers > 0:
		v.Kind = AddressParam
	case v.Type.Name == "uintptr":
		v.Kind = ForeignParam
	case v.Type.Name == "bool":
		v.Kind = TruthParam
	case t.Base == "int" || r.enumOf[strings.TrimPrefix(t.Base, "enum ")].Signed:
		v.Kind = IntParam
	case slices.Contains([]string{"uint32_t", "unsigned int", "socklen_t", "__be32"}, t.Base) ||
		strings.HasPrefix(t.Base, "enum "):
		v.Kind = WordParam
	}
	return v
}

// verbType returns the Go type of a parameter or a result.
func (r *verbResolver) verbType(t model.Type) (GoType, error) {
	if t.Base == "int" && t.Pointers == 0 {
		return GoType{Name: "int"}, nil
	}
	t.Const = false
	g, err := r.goType(t.String())
	if err == nil && len(g.Dims) > 0 {
		err = fmt.Errorf("arrays are not supported")
	}
	if _, ours := r.goOf[t.Base]; ours && g.Import == "" {
		g.Import = r.resolver.plan.Import
	}
	if g.Import == "" && strings.HasPrefix(g.Name, "BE") {
		g.Import = r.resolver.plan.Import
	}
	return g, err
}

// bytes applies a row with the number of bytes that a parameter points to.
func (r *verbResolver) bytes(function string, v VerbParam, row *rows.Row) VerbParam {
	n, err := strconv.ParseInt(row.Columns[2], 10, 32)
	if err != nil || n < 1 || v.Type.Name != "byte" || v.Type.Pointers != 1 {
		r.fail(function, "%s: want a number of bytes, and a parameter that points to bytes", row.At)
	}
	v.Kind, v.Type.Dims = AddressParam, []int64{n}
	return v
}

// holds returns the enum or support type that a row assigns to a parameter or a result.
func (r *verbResolver) holds(function string, row *rows.Row) GoType {
	if name := row.Columns[2]; like[name] != "" {
		return GoType{Import: r.resolver.plan.Import, Name: name}
	}
	name, ok := r.goOf["enum "+row.Columns[2]]
	if !ok {
		r.fail(function, "%s: no enum %s", row.At, row.Columns[2])
	}
	if name.Import == "" {
		name.Import = r.resolver.plan.Import
	}
	return GoType{Import: name.Import, Name: name.Name}
}

// paramName returns the Go name of a parameter: qp_init_attr → qpInitAttr.
func paramName(c string) string {
	first, rest, _ := strings.Cut(strings.TrimLeft(c, "_"), "_")
	name := strings.ToLower(first)
	if rest != "" {
		name += camel(rest)
	}
	switch {
	case name == "type":
		return "kind"
	case token.IsKeyword(name) || predeclared(name) ||
		slices.Contains([]string{"r", "err", "from", "runtime", "unsafe"}, name):
		return name + "Value"
	}
	return name
}

// predeclared reports whether name is a predeclared type or constant of Go, which a parameter would shadow. Package
// go/types has the same list but is large.
func predeclared(name string) bool {
	return slices.Contains(strings.Fields("any bool byte comparable complex64 complex128 error float32 float64 int "+
		"int8 "+
		"int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr true false iota nil"), name)
}

// stale reports rows without effect.
func (r *verbResolver) stale() {
	here := func(name string) bool {
		return slices.ContainsFunc(r.plan.Funcs, func(f *VerbFunc) bool { return f.C == name }) ||
			slices.ContainsFunc(r.plan.Skipped, func(e Exception) bool { return e.C == name })
	}
	past := newHistory(r.in.Recorded) // all projects, since their rows share the files
	anywhere := func(name string) bool {
		return slices.ContainsFunc(past.have, func(have map[string]bool) bool { return have[name] })
	}
	r.errs = append(r.errs, staleVerbs(r.rows.conventions, 0, here, anywhere)...)
	r.errs = append(r.errs, staleVerbs(r.rows.routing, 0, here, anywhere)...)
	r.errs = append(r.errs, staleVerbs(r.rows.verbs, 1, here, anywhere)...)
}
