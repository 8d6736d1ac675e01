// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// GoType is the Go type of a member: a named type with levels of indirection and array dimensions.
type GoType struct {
	Import   string // import path of the package that defines Name; "" for the package itself and for predeclared types
	Name     string // "uint32", "SendFlags"
	Pointers int    // levels of indirection: 1 for Ptr[Name]
	Dims     []int64
}

// String returns the Go spelling: "[2]Ptr[SGE]".
func (t GoType) String() string {
	var b strings.Builder
	for _, n := range t.Dims {
		fmt.Fprintf(&b, "[%d]", n)
	}
	name := t.Name
	if t.Import != "" {
		name = path.Base(t.Import) + "." + name
	}
	b.WriteString(strings.Repeat("Ptr[", t.Pointers) + name + strings.Repeat("]", t.Pointers))
	return b.String()
}

// scalars maps C types to Go types on 64-bit Linux.
var scalars = map[string]string{
	"_Bool": "bool", "char": "byte", "signed char": "int8", "unsigned char": "uint8", "short": "int16",
	"unsigned short": "uint16",
	"int":            "int32", "unsigned int": "uint32", "long": "int64", "unsigned long": "uint64",
	"long long":          "int64",
	"unsigned long long": "uint64",
	"int8_t":             "int8", "int16_t": "int16", "int32_t": "int32", "int64_t": "int64",
	"uint8_t": "uint8", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64",
	"__s8": "int8", "__s16": "int16", "__s32": "int32", "__s64": "int64", "__u8": "uint8", "__u16": "uint16",
	"__u32": "uint32", "__u64": "uint64",
	"__be16": "BE16", "__be32": "BE32", "__be64": "BE64",
	"size_t": "uint64", "ssize_t": "int64", "off_t": "int64", "time_t": "int64", "socklen_t": "uint32",
	"sa_family_t": "uint16", "in_port_t": "uint16", "in_addr_t": "uint32", "nfds_t": "uint64", "uintptr_t": "uintptr",
	"intptr_t": "int64",
}

// foreignScalars has the C types that differ from Linux's, by system.
var foreignScalars = map[string]map[string]string{
	"freebsd": {"sa_family_t": "uint8"},
}

// scalar returns the Go type of a C type of the package's system.
func (r *resolver) scalar(c string) (name string, ok bool) {
	if name, ok = foreignScalars[r.pkg.GOOS()][c]; ok {
		return name, true
	}
	name, ok = scalars[c]
	return name, ok
}

// goType translates the C type of a member.
func (r *resolver) goType(spelled string) (GoType, error) {
	t, err := model.ParseType(spelled)
	if err != nil {
		return GoType{}, err
	}
	g := GoType{Pointers: t.Pointers, Dims: t.Dims}
	if t.Base == "void" {
		if t.Pointers == 0 {
			return g, fmt.Errorf("a member cannot be void")
		}
		g.Name, g.Pointers = "uintptr", t.Pointers-1
		return g, nil
	}
	if name, ok := r.scalar(t.Base); ok {
		g.Name = name
		if strings.HasPrefix(name, "BE") {
			g.Import = r.plan.Shared
		}
		return g, nil
	}
	name, ok := r.goOf[t.Base]
	if !ok {
		return g, fmt.Errorf("no Go type is known for %s; add it to gen/rules/gotype.go", t.Base)
	}
	g.Import, g.Name = name.Import, name.Name
	if r.isFuncType(t.Base) {
		g.Pointers-- // the Go type is already the address
	}
	return g, nil
}

// isFuncType reports whether a typedef of this package's headers is the type of a function.
func (r *resolver) isFuncType(name string) bool {
	return slices.ContainsFunc(r.plan.FuncTypes, func(t FuncType) bool { return t.C == name })
}

// storage returns an array of unsigned integers with the given size and alignment.
func storage(size, align int64) (GoType, error) {
	name, ok := map[int64]string{1: "byte", 2: "uint16", 4: "uint32", 8: "uint64"}[align]
	if !ok {
		return GoType{}, fmt.Errorf("Go has no alignment of %d bytes", align)
	}
	return GoType{Name: name, Dims: []int64{size / align}}, nil
}
