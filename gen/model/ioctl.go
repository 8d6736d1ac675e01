// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// IoctlSchema holds the methods that a kernel accepts through RDMA_VERBS_IOCTL: a file headers/ioctls/KERNEL.csv.
type IoctlSchema struct {
	Kernel string // "6.1"
	Source string // "Linux 6.1.0-43-amd64"
	Attrs  []IoctlAttr
}

// IoctlCore is the module of the methods that all devices may have.
const IoctlCore = "ib_uverbs"

// IoctlAttr is one attribute of a method, as the kernel checks it before the method runs.
type IoctlAttr struct {
	Module             string // IoctlCore, or a driver's: "mlx5_ib"
	Object, Method     string // C names: "UVERBS_OBJECT_CQ", "UVERBS_METHOD_CQ_CREATE"
	ObjectID, MethodID uint16
	ID                 uint16
	Kind               IoctlKind
	// Access and Target describe handles: the access to the object, and its type.
	Access IoctlAccess
	Target uint16
	// Min and Max bound the bytes of a buffer, or the number of handles in an array.
	Min, Max uint16
	// Elements bound the bytes of the data that belongs to each value of an enumeration.
	Elements     []IoctlRange
	Mandatory    bool
	ZeroTrailing bool // longer buffers are accepted if the bytes after Max are zero
	Copied       bool // the kernel copies the buffer before the method runs
	Driver       bool // the driver interprets the buffer
}

// IoctlRange bounds a number of bytes.
type IoctlRange struct{ Min, Max uint16 }

// String returns the range as the file spells it: "0-4".
func (r IoctlRange) String() string { return fmt.Sprintf("%d-%d", r.Min, r.Max) }

// IoctlKind is the kind of an attribute.
type IoctlKind uint8

// The kinds, in the kernel's numbering. A method without attributes is recorded as one of kind IoctlNone.
const (
	IoctlNone IoctlKind = iota
	IoctlIn
	IoctlOut
	IoctlHandle
	IoctlFD
	IoctlRawFD
	IoctlEnum
	IoctlHandles
)

// IoctlAccess is the access of a method to an object.
type IoctlAccess uint8

// The kinds of access, in the kernel's numbering.
const (
	IoctlRead IoctlAccess = iota
	IoctlWrite
	IoctlNew
	IoctlDestroy
)

var (
	ioctlKinds    = []string{"none", "in", "out", "handle", "fd", "raw_fd", "enum", "handles"}
	ioctlAccesses = []string{"read", "write", "new", "destroy"}
	ioctlName     = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	ioctlFile     = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)*)\.csv$`)
	ioctlModule   = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	ioctlColumns  = []string{"module", "object", "object_id", "method", "method_id", "attr", "kind", "access", "target", "min", "max",
		"elements", "flags"}
	ioctlFlags = []struct {
		name string
		of   func(*IoctlAttr) *bool
	}{
		{"mandatory", func(a *IoctlAttr) *bool { return &a.Mandatory }},
		{"zero_trailing", func(a *IoctlAttr) *bool { return &a.ZeroTrailing }},
		{"copied", func(a *IoctlAttr) *bool { return &a.Copied }},
		{"driver", func(a *IoctlAttr) *bool { return &a.Driver }},
	}
)

// String returns the kind as the file spells it.
func (k IoctlKind) String() string {
	if int(k) >= len(ioctlKinds) {
		return fmt.Sprintf("IoctlKind(%d)", uint8(k))
	}
	return ioctlKinds[k]
}

// IsObject reports whether attributes of the kind name objects.
func (k IoctlKind) IsObject() bool { return k == IoctlHandle || k == IoctlFD || k == IoctlHandles }

// String returns the access as the file spells it.
func (a IoctlAccess) String() string {
	if int(a) >= len(ioctlAccesses) {
		return fmt.Sprintf("IoctlAccess(%d)", uint8(a))
	}
	return ioctlAccesses[a]
}

// File returns the name of its file.
func (s *IoctlSchema) File() string { return s.Kernel + ".csv" }

// Check rejects data that could not be parsed again.
func (s *IoctlSchema) Check() error {
	if !ioctlFile.MatchString(s.File()) {
		return fmt.Errorf("%q is not KERNEL.csv, such as 6.1.csv", s.File())
	}
	if s.Source == "" || s.Source != strings.TrimSpace(s.Source) || strings.Contains(s.Source, "\n") {
		return fmt.Errorf("%q does not name the kernel, such as Linux 6.1.0-43-amd64", s.Source)
	}
	if len(s.Attrs) == 0 {
		return errors.New("no attributes")
	}
	type key struct {
		module             string
		object, method, id uint16
	}
	seen := map[key]bool{}
	var errs []error
	for _, a := range s.Attrs {
		k := key{a.Module, a.ObjectID, a.MethodID, a.ID}
		switch {
		case !ioctlModule.MatchString(a.Module):
			errs = append(errs, fmt.Errorf("%q: not the name of a module", a.Module))
		case !ioctlName.MatchString(a.Object) || !ioctlName.MatchString(a.Method):
			errs = append(errs, fmt.Errorf("%q, %q: not names of an object and a method", a.Object, a.Method))
		case int(a.Kind) >= len(ioctlKinds):
			errs = append(errs, fmt.Errorf("%s, attribute %d: unknown kind %d", a.Method, a.ID, a.Kind))
		case int(a.Access) >= len(ioctlAccesses):
			errs = append(errs, fmt.Errorf("%s, attribute %d: unknown access %d", a.Method, a.ID, a.Access))
		case a.Min > a.Max:
			errs = append(errs, fmt.Errorf("%s, attribute %d: minimum %d exceeds maximum %d", a.Method, a.ID, a.Min, a.Max))
		case seen[k]:
			errs = append(errs, fmt.Errorf("%s: duplicate attribute %d", a.Method, a.ID))
		}
		seen[k] = true
	}
	return errors.Join(errs...)
}

// Encode returns the text of the file.
func (s *IoctlSchema) Encode() []byte {
	var b strings.Builder
	b.WriteString("# " + s.Source + "\n")
	w := csv.NewWriter(&b)
	w.Write(ioctlColumns)
	for _, a := range s.Attrs {
		var flags []string
		for _, f := range ioctlFlags {
			if *f.of(&a) {
				flags = append(flags, f.name)
			}
		}
		var elements []string
		for _, r := range a.Elements {
			elements = append(elements, r.String())
		}
		access, target := "-", "-"
		if a.Kind.IsObject() {
			access, target = a.Access.String(), number(a.Target)
		}
		w.Write([]string{a.Module, a.Object, number(a.ObjectID), a.Method, number(a.MethodID), number(a.ID), a.Kind.String(),
			access, target, number(a.Min), number(a.Max), cmp.Or(strings.Join(elements, "|"), "-"),
			cmp.Or(strings.Join(flags, "|"), "-")})
	}
	w.Flush() // a strings.Builder does not fail
	return []byte(b.String())
}

func number(n uint16) string { return strconv.Itoa(int(n)) }

// ReadIoctls reads all schemas of a directory.
func ReadIoctls(dir fs.FS) ([]*IoctlSchema, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var all []*IoctlSchema
	var errs []error
	for _, e := range entries {
		text, err := fs.ReadFile(dir, e.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s, err := ParseIoctls(e.Name(), text)
		all, errs = append(all, s), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// ParseIoctls parses a file of that name.
func ParseIoctls(name string, text []byte) (*IoctlSchema, error) {
	parts := ioctlFile.FindStringSubmatch(name)
	if parts == nil {
		return nil, fmt.Errorf("%s: want a name KERNEL.csv, such as 6.1.csv", name)
	}
	s := &IoctlSchema{Kernel: parts[1]}
	first, rest, _ := strings.Cut(string(text), "\n")
	s.Source, _ = strings.CutPrefix(first, "# ")
	r := csv.NewReader(strings.NewReader(rest))
	r.FieldsPerRecord = len(ioctlColumns)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, row := range rows[min(1, len(rows)):] {
		a := IoctlAttr{Module: row[0], Object: row[1], Method: row[3], Kind: IoctlKind(slices.Index(ioctlKinds, row[6]))}
		if a.Kind.IsObject() {
			a.Access, a.Target = IoctlAccess(slices.Index(ioctlAccesses, row[7])), parseNumber(row[8])
		}
		a.ObjectID, a.MethodID, a.ID = parseNumber(row[2]), parseNumber(row[4]), parseNumber(row[5])
		a.Min, a.Max = parseNumber(row[9]), parseNumber(row[10])
		for _, element := range strings.Split(row[11], "|") {
			if least, most, ok := strings.Cut(element, "-"); ok && least != "" {
				a.Elements = append(a.Elements, IoctlRange{parseNumber(least), parseNumber(most)})
			}
		}
		for _, f := range ioctlFlags {
			*f.of(&a) = strings.Contains("|"+row[12]+"|", "|"+f.name+"|")
		}
		s.Attrs = append(s.Attrs, a)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// Whatever the parser reads leniently differs here.
	if string(s.Encode()) != string(text) {
		return nil, fmt.Errorf("%s: not in the format of gen ioctls; record the kernel again", name)
	}
	return s, nil
}

func parseNumber(s string) uint16 {
	n, _ := strconv.ParseUint(s, 10, 16)
	return uint16(n)
}
