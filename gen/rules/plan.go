// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
)

// Plan describes one Go package completely. Emitters print it.
type Plan struct {
	Package Package
	Import  string // import path
	// import path of the package that provides the byte-order and address types; "" if the package has its own
	Shared  string
	Project string // project of the headers: "librpma"
	Release string // "1.3.0"
	Model   *model.Release
	Targets []string
	Records []Record
	Enums   []Enum
	Consts  []Const
	Aliases []Alias
	Funcs   []Func
	// FuncTypes are the function types that parameters point to; Go has types for their addresses.
	FuncTypes []FuncType
	Grids     []*Grid           // the documented tables, followed by the measured ones
	Parts     []*Grid           // tables that are printed only as parts of others
	Verbs     *VerbsPlan        // the package of functions; nil for none
	Skipped   []Exception       // declarations that are not emitted, with reasons
	types     map[string]string // C type → Go name, for the packages that import this one
	enumOf    map[string]model.Enum
	sized     map[string]map[int64]goName // tag of an enumeration → size of a member that holds it → Go type
}

// Source returns the release from which the package is generated: "librpma 1.3.0".
func (p *Plan) Source() string { return p.Project + " " + p.Release }

// Doc holds the facts for the comment of a declaration.
type Doc struct {
	C      string // "struct ibv_wc"
	Header string // "verbs.h"
	Man    string // "ibv_poll_cq(3)", or ""
	Since  string // "65.0", or "44.0 or earlier"
	// Project is the project of the releases in Since: "rdma-core".
	Project string
}

// Enum is a typed enumeration.
type Enum struct {
	Doc    Doc
	Uses   Uses
	Tag    string // C tag; "" for an untagged enumeration that a rule names
	Go     string
	Size   int64 // bytes in Go
	Signed bool
	Flags  bool
	Errors bool // each value is an error
	Names  []Const
	// If members of several sizes hold an enumeration, it has a type for each size. The first type declares the
	// constants, which are Untyped; the others refer to it with Of and print the names in Shown.
	Untyped bool
	Of      string
	Shown   []Const
	Given   bool // declared by rows, not by a header
}

// Const is a constant. Enum is the C tag of its enum, or "-" for a macro.
type Const struct {
	Doc     Doc
	C       string
	Go      string
	Enum    string
	Value   model.Int
	Pointer bool   // a constant address
	AliasOf string // Go name of the constant whose value it repeats
}

// Alias is an alias of a type that a macro defines.
type Alias struct {
	Doc Doc
	C   string
	Go  string
	Of  string // Go name
}

// FuncType is the address of a C function of a named type.
type FuncType struct {
	Doc Doc // C is the declaration: "void rpma_log_function(enum rpma_log_level level, …)"
	C   string
	Go  string
}

// Func is one row of the function table.
type Func struct {
	Doc       Doc
	Name      string // C name
	Prototype string // C declaration
	Inline    *model.Inline
}

// Input is a model and its file.
type Input struct {
	Release *model.Release
	Path    string
	Text    []byte // JSON text, to find line numbers
	// Measured holds the measurements of providers.
	Measured []*model.Measured
	// Ioctls holds the methods of kernels.
	Ioctls []*model.IoctlSchema
	// Recorded are the models of all projects. "Since" is computed from those of the project of Release.
	Recorded Recorded
}

// Recorded holds models. Those of one project are in ascending order of releases.
type Recorded []*model.Release

// Of returns the models of a project.
func (all Recorded) Of(project string) Recorded {
	return slices.DeleteFunc(slices.Clone(all), func(r *model.Release) bool { return r.Project != project })
}

// Find returns the releases with a version or file name: "1.3.0", "librpma-1.3.0".
func (all Recorded) Find(name string) Recorded {
	return slices.DeleteFunc(slices.Clone(all), func(r *model.Release) bool {
		return r.Name != name && FileOf(r) != name
	})
}

// FileOf returns the base of the file names of a release.
func FileOf(r *model.Release) string {
	if p := project.Named(r.Project); p != nil {
		return p.File(r.Name)
	}
	return r.Name
}

// Module is the import path of this module.
const Module = "github.com/goverbs/goverbs"

// goName is a Go type of the package itself or of an imported one.
type goName struct{ Import, Name string }

// Resolve plans a package. earlier contains the plans of the packages that it imports.
func Resolve(p Package, in Input, exceptions *Exceptions, earlier []*Plan) (*Plan, error) {
	if p.GOOS() != "linux" {
		exceptions = exceptions.of(in.Release)
	}
	r := &resolver{
		pkg: p, in: in, exceptions: exceptions,
		since: newHistory(in.Recorded.Of(in.Release.Project)),
		plan: &Plan{Package: p, Import: Module + "/generated/" + p.Name, Project: in.Release.Project,
			Release: in.Release.Name, Model: in.Release, Targets: in.Release.Targets, types: map[string]string{},
			enumOf: map[string]model.Enum{}, sized: map[string]map[int64]goName{}},
		earlier: earlier,
		goOf:    map[string]goName{},
		owners:  map[string]string{}, enumTypes: map[string][]Enum{},
	}
	if err := r.importTypes(earlier); err != nil {
		return nil, err
	}
	r.chooseHeaders()
	for _, name := range slices.Concat(tableNames(), measuredNames(in.Measured), reserved) {
		r.owners[name] = "the generator's own " + name
	}
	r.measure()
	r.nameTypes()
	r.enums()
	r.given()
	r.macros()
	r.records()
	r.funcs()
	r.verbs()
	r.uses()
	r.tables()
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return r.plan, nil
}

// Finish reports the exceptions that no package used.
func Finish(x *Exceptions) error { return errors.Join(x.stale()...) }

// reserved lists the package-level names that do not come from a header but from the support files; see also
// tableNames.
var reserved = []string{
	"BE16", "BE32", "BE64", "ToBE16", "ToBE32", "ToBE64", "parseBE", "hostIsBigEndian", "Ptr", "PtrTo", "never",
	"escaped", "FuncPtr", "arm", "trailing", "loadUnaligned", "storeUnaligned", "loadBits", "storeBits", "layout",
	"Function", "Functions", "Inline",
	"integer", "named", "nameOf", "enumString", "enumText", "enumJSON", "parseEnum", "flagString", "parseFlags",
	"valueOf", "withoutPrefix", "fromJSON", "quoted", "textError", "listed", "trim", "appendInteger", "appendNumber",
	"parseInteger", "parseNumber", "digit",
	"GUID", "ParseGUID", "MAC", "ParseGID", "groups", "appendGroups", "bigEndian", "withoutHex", "formatGID", "mapped",
	"parseGID", "isHalf", "halves", "parseIPv4", "parseIPv6", "hex",
}

type resolver struct {
	pkg        Package
	in         Input
	exceptions *Exceptions
	since      history
	// headers of the package, and the required parts of support headers that no imported package provides
	headers   []*model.Header
	plan      *Plan
	earlier   []*Plan
	goOf      map[string]goName // C type ("struct ibv_qp", "enum ibv_mtu", "pthread_mutex_t") → Go type
	owners    map[string]string // Go identifier of the package → the C name that took it
	enumOf    map[string]model.Enum
	sizes     map[string][]int64 // tag of an enumeration → sizes of the members that hold it
	enumTypes map[string][]Enum  // key of an enumeration → its Go types
	errs      []error
}

func (r *resolver) fail(c, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s: %s", r.in.Where(c), c, fmt.Sprintf(format, args...)))
}

// claim reserves a Go identifier of the package for a C name.
func (r *resolver) claim(goName, c string) {
	if owner, taken := r.owners[goName]; taken {
		r.fail(c, "its Go name %s is taken by %s; add a name row to gen/rules/exceptions.txt", goName, owner)
		return
	}
	r.owners[goName] = c
}

// skipped reports whether a row excludes a declaration; it records the exclusion.
func (r *resolver) skipped(c string) bool {
	e := r.exceptions.find(Skip, c)
	if e != nil {
		r.plan.Skipped = append(r.plan.Skipped, *e)
	}
	return e != nil
}

func (r *resolver) doc(c string, h *model.Header, man, since string) Doc {
	return Doc{C: c, Header: path.Base(h.Name), Man: manual(man), Since: since, Project: r.in.Release.Project}
}

// manual formats a page for citation: ibv_poll_cq.3 → ibv_poll_cq(3).
func manual(page string) string {
	if ext := path.Ext(page); len(ext) > 1 {
		return page[:len(page)-len(ext)] + "(" + ext[1:] + ")"
	}
	return page
}

// own records the Go name of a type of this package.
func (r *resolver) own(c, name string) {
	r.goOf[c] = goName{Name: name}
	r.plan.types[c] = name
}

// nameTypes sets the Go names of all types before any of them is used.
func (r *resolver) nameTypes() {
	for _, h := range r.headers {
		for i := range h.Records {
			rec := &h.Records[i]
			name := r.pkg.TypeName(rec.Tag)
			if rec.Kind == model.Opaque {
				name = r.pkg.TypeName(strings.TrimSuffix(rec.Tag, "_t"))
			}
			if e := r.exceptions.find(Name, rec.Tag); e != nil {
				name = e.Argument
			}
			r.claim(name, rec.CName())
			r.own(rec.CName(), name)
		}
		for _, t := range h.FuncTypes {
			name := r.pkg.TypeName(t.Name)
			r.claim(name, t.Name)
			r.own(t.Name, name)
			r.plan.FuncTypes = append(r.plan.FuncTypes, FuncType{
				Doc: r.doc(t.Declare(t.Name), h, t.Man, r.since.of(t.Name)), C: t.Name, Go: name})
		}
		for _, e := range h.Enums {
			key := e.Tag
			name := ""
			if e.Tag == "" {
				key = e.Enumerators[0].Name
			} else {
				name = r.pkg.TypeName(e.Tag)
			}
			if x := r.exceptions.find(Name, key); x != nil {
				name = x.Argument
			}
			r.enumOf[key] = e
			r.plan.enumOf[key] = e
			if name != "" {
				r.claim(name, "enum "+key)
				r.enumTypes[key] = r.ownEnum(key, name, e.Size)
			}
		}
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}
