// SPDX-License-Identifier: BSD-2-Clause

// Package ioctl reads the methods of RDMA_VERBS_IOCTL and their attributes from the kernel modules that implement them.
//
// The kernel checks every request against constant tables before a method runs: which attributes a method has, their
// kinds and sizes, which are mandatory, which object a handle must name. No header has these facts. ib_uverbs.ko has the
// tables of the core, and the module of a driver those of its own methods, and of its attributes of the core's methods.
// The symbols of a module name the tables, and its relocations connect them.
package ioctl

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// The names of symbols. Tables of objects have names of different forms, but the arrays of their methods have one.
const (
	arrayPrefix = "_object_methods_" // then the object and a line number: _object_methods_UVERBS_OBJECT_PD242
	methodInfix = "_method_"         // between module and method: ib_uverbs_method_UVERBS_METHOD_PD_DESTROY
)

// Sizes of the kernel's structures uverbs_object_def, uverbs_method_def and uverbs_attr_def on 64-bit targets, and
// offsets of their fields. The sizes of the symbols confirm the first two; the predictions of the schema, which are
// tested against kernels, confirm the rest.
const (
	objectSize, objectCount, objectMethods = 32, 16, 24
	methodSize, methodCount, methodAttrs   = 32, 8, 16
	attrSize, attrSpec                     = 24, 8
	specSize, specElements                 = 16, 8 // uverbs_attr_spec
	most                                   = 256   // methods of an object, attributes of a method
)

// Bits of an attribute's second byte.
const (
	zeroTrailing = 1 << iota
	allocAndCopy
	mandatory
	driver
)

// place is a position in a section.
type place struct {
	section elf.SectionIndex
	offset  uint64
}

// module is a parsed kernel module.
type module struct {
	sections [][]byte
	pointers map[place]place        // by relocations
	names    map[place][]elf.Symbol // of objects
	symbols  []elf.Symbol
}

// Read returns the attributes of the methods that a module implements, in the order of [Compare], and the module's
// kernel: "6.1.0-43-amd64".
func Read(file []byte) ([]model.IoctlAttr, string, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, "", err
	}
	if f.Type != elf.ET_REL || f.Machine != elf.EM_X86_64 {
		return nil, "", fmt.Errorf("a %v for %v; want a kernel module (ET_REL) for EM_X86_64", f.Type, f.Machine)
	}
	m, err := parse(f)
	if err != nil {
		return nil, "", err
	}
	var all []model.IoctlAttr
	read := map[string]bool{}
	for _, s := range m.symbols {
		array := m.arrayOf(s)
		if array == "" {
			continue
		}
		read[array] = true
		name := strings.TrimRight(strings.TrimPrefix(array, arrayPrefix), "0123456789")
		if all, err = m.object(all, name, s); err != nil {
			return nil, "", fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	for _, s := range m.symbols {
		if strings.HasPrefix(s.Name, arrayPrefix) && s.Size > 0 && !read[s.Name] {
			return nil, "", fmt.Errorf("%s: no table of %d bytes points to it, which is the size of "+
				"uverbs_object_def in every kernel so far", s.Name, objectSize)
		}
	}
	slices.SortStableFunc(all, Compare)
	return all, kernelOf(f), nil
}

// Compare orders attributes by module, the core first, then object, method and attribute.
func Compare(a, b model.IoctlAttr) int {
	core := func(a model.IoctlAttr) string { return strings.TrimPrefix(a.Module, model.IoctlCore) }
	return cmp.Or(strings.Compare(core(a), core(b)),
		slices.Compare([]uint16{a.ObjectID, a.MethodID, a.ID}, []uint16{b.ObjectID, b.MethodID, b.ID}))
}

func parse(f *elf.File) (*module, error) {
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	m := &module{pointers: map[place]place{}, names: map[place][]elf.Symbol{}, symbols: symbols,
		sections: make([][]byte, len(f.Sections))}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_OBJECT {
			at := place{s.Section, s.Value}
			m.names[at] = append(m.names[at], s)
		}
	}
	for i, s := range f.Sections {
		switch {
		case s.Type == elf.SHT_PROGBITS && strings.HasPrefix(s.Name, ".rodata"):
			if m.sections[i], err = s.Data(); err != nil {
				return nil, err
			}
		case s.Type == elf.SHT_RELA && strings.HasPrefix(s.Name, ".rela.rodata"):
			relocations, err := s.Data()
			if err != nil {
				return nil, err
			}
			for r := range slices.Chunk(relocations, 24) {
				if len(r) < 24 {
					return nil, fmt.Errorf("section %s: %d trailing bytes", s.Name, len(r))
				}
				info := f.ByteOrder.Uint64(r[8:])
				if elf.R_X86_64(uint32(info)) != elf.R_X86_64_64 {
					continue
				}
				n := info >> 32
				if n == 0 || n > uint64(len(symbols)) {
					return nil, fmt.Errorf("section %s: relocation by symbol %d of %d", s.Name, n, len(symbols))
				}
				to := symbols[n-1]
				m.pointers[place{elf.SectionIndex(s.Info), f.ByteOrder.Uint64(r)}] =
					place{to.Section, to.Value + f.ByteOrder.Uint64(r[16:])}
			}
		}
	}
	return m, nil
}

// arrayOf returns the name of the array of methods that a table of an object points to, and "" for other symbols.
func (m *module) arrayOf(s elf.Symbol) string {
	if elf.ST_TYPE(s.Info) != elf.STT_OBJECT || s.Size != objectSize {
		return ""
	}
	for _, array := range m.names[m.pointers[place{s.Section, s.Value + objectMethods}]] {
		if strings.HasPrefix(array.Name, arrayPrefix) {
			return array.Name
		}
	}
	return ""
}

// object appends the attributes of an object's methods.
func (m *module) object(all []model.IoctlAttr, name string, s elf.Symbol) ([]model.IoctlAttr, error) {
	at := place{s.Section, s.Value}
	def, err := m.bytes(at, objectSize)
	if err != nil {
		return nil, err
	}
	methods, err := m.list(at, objectMethods, binary.LittleEndian.Uint64(def[objectCount:]))
	if err != nil {
		return nil, err
	}
	for _, at := range methods {
		module, method, err := m.method(at)
		if err != nil {
			return nil, err
		}
		def, err := m.bytes(at, methodSize)
		if err != nil {
			return nil, err
		}
		attrs, err := m.list(at, methodAttrs, binary.LittleEndian.Uint64(def[methodCount:]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		a := model.IoctlAttr{Module: module, Object: name, Method: method, ObjectID: m.id(s),
			MethodID: binary.LittleEndian.Uint16(def)}
		if len(attrs) == 0 {
			all = append(all, a)
		}
		for _, at := range attrs {
			b, err := m.bytes(at, attrSize)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", method, err)
			}
			a := a
			if err := m.decode(&a, at, b); err != nil {
				return nil, fmt.Errorf("%s: attribute %d: %w", method, a.ID, err)
			}
			all = append(all, a)
		}
	}
	return all, nil
}

// id returns the number of an object.
func (m *module) id(s elf.Symbol) uint16 {
	return binary.LittleEndian.Uint16(m.sections[s.Section][s.Value:])
}

// method returns the module and the name of the method whose table is at a place.
func (m *module) method(at place) (module, method string, err error) {
	for _, s := range m.names[at] {
		if module, method, ok := strings.Cut(s.Name, methodInfix); ok && s.Size == methodSize {
			return module, method, nil
		}
	}
	return "", "", fmt.Errorf("no symbol …%s… of %d bytes at section %d, offset %#x", methodInfix, methodSize, at.section,
		at.offset)
}

// list returns the places that an array of pointers has. The pointer to the array is a field of a structure.
func (m *module) list(structure place, field, count uint64) ([]place, error) {
	if count == 0 {
		return nil, nil
	}
	if count > most {
		return nil, fmt.Errorf("array of %d pointers; at most %d are expected", count, most)
	}
	array, ok := m.pointers[place{structure.section, structure.offset + field}]
	if !ok {
		return nil, errors.New("the pointer to its array has no relocation")
	}
	var all []place
	for i := range count {
		to, ok := m.pointers[place{array.section, array.offset + 8*i}]
		if !ok {
			return nil, fmt.Errorf("element %d of its array has no relocation", i)
		}
		all = append(all, to)
	}
	return all, nil
}

func (m *module) bytes(at place, size uint64) ([]byte, error) {
	if int(at.section) >= len(m.sections) {
		return nil, fmt.Errorf("table in section %v", at.section)
	}
	s := m.sections[at.section]
	if at.offset > uint64(len(s)) || uint64(len(s))-at.offset < size {
		return nil, fmt.Errorf("%d bytes at %#x exceed section %v of %d bytes", size, at.offset, at.section, len(s))
	}
	return s[at.offset:][:size], nil
}

// decode fills in an attribute from its uverbs_attr_def, which is at a place.
func (m *module) decode(a *model.IoctlAttr, at place, b []byte) error {
	a.ID = binary.LittleEndian.Uint16(b)
	spec := b[attrSpec:]
	a.Kind = model.IoctlKind(spec[0])
	flags := spec[1]
	if flags&^(zeroTrailing|allocAndCopy|mandatory|driver) != 0 {
		return fmt.Errorf("unknown flags %#x", flags)
	}
	a.ZeroTrailing, a.Copied = flags&zeroTrailing != 0, flags&allocAndCopy != 0
	a.Mandatory, a.Driver = flags&mandatory != 0, flags&driver != 0
	first, second := binary.LittleEndian.Uint16(spec[2:]), binary.LittleEndian.Uint16(spec[4:])
	switch a.Kind {
	case model.IoctlIn, model.IoctlOut:
		a.Max, a.Min = first, second
	case model.IoctlHandle, model.IoctlFD:
		a.Target, a.Access = first, model.IoctlAccess(spec[4])
	case model.IoctlRawFD:
	case model.IoctlEnum:
		array, ok := m.pointers[place{at.section, at.offset + attrSpec + specElements}]
		if !ok {
			return errors.New("the pointer to the elements of its enumeration has no relocation")
		}
		for i := range uint64(spec[2]) {
			element, err := m.bytes(place{array.section, array.offset + specSize*i}, specSize)
			if err != nil {
				return err
			}
			if kind := model.IoctlKind(element[0]); kind != model.IoctlIn || element[1] != 0 {
				return fmt.Errorf("element %d of its enumeration has kind %v and flags %#x", i, kind, element[1])
			}
			a.Elements = append(a.Elements, model.IoctlRange{Min: binary.LittleEndian.Uint16(element[4:]),
				Max: binary.LittleEndian.Uint16(element[2:])})
		}
	case model.IoctlHandles:
		spec = spec[specElements:]
		a.Target, a.Min = binary.LittleEndian.Uint16(spec), binary.LittleEndian.Uint16(spec[2:])
		a.Max, a.Access = binary.LittleEndian.Uint16(spec[4:]), model.IoctlAccess(spec[6])
	default:
		return fmt.Errorf("unknown kind %d", spec[0])
	}
	return nil
}

// kernelOf returns the release of a module's kernel, or "an unknown kernel".
func kernelOf(f *elf.File) string {
	if s := f.Section(".modinfo"); s != nil {
		info, _ := s.Data()
		for _, line := range strings.Split(string(info), "\x00") {
			if magic, ok := strings.CutPrefix(line, "vermagic="); ok {
				release, _, _ := strings.Cut(magic, " ")
				return release
			}
		}
	}
	return "an unknown kernel"
}
