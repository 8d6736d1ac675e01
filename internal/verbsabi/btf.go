// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Kinds of BTF, the type information of Linux kernels (Documentation/bpf/btf.rst).
const (
	btfInt = iota + 1
	btfPointer
	btfArray
	btfStruct
	btfUnion
	btfEnum
	btfForward
	btfTypedef
	btfVolatile
	btfConst
	btfRestrict
	btfFunc
	btfFuncProto
	btfVar
	btfDataSection
	btfFloat
	btfDeclTag
	btfTypeTag
	btfEnum64
)

const (
	btfMagic   = 0xeb9f
	maxBTF     = 1 << 22 // types
	maxModules = 1 << 10
)

// KernelBTF is the directory of the type information of the running kernel and its modules.
const KernelBTF = "/sys/kernel/btf"

// btfFile is the type information of a kernel, or of a module if it has a base.
type btfFile struct {
	order   binary.ByteOrder
	types   []byte
	starts  []uint32 // of each type in types
	text    []byte   // names
	base    *btfFile
	first   uint32 // number of the first type
	strings uint32 // offset of the first name
	cache   map[uint32]*cType
}

// askBTF compares the types of a kernel with the Go packages.
func (a *Answer) askBTF(q Question) error {
	packages := slices.DeleteFunc(slices.Clone(rules.Packages), func(p rules.Package) bool { return p.Verbs != nil })
	if len(q.Packages) > 0 {
		chosen := slices.DeleteFunc(slices.Clone(q.Packages), func(p rules.Package) bool { return p.Verbs != nil })
		if len(chosen) > 0 {
			packages = chosen
		}
	}
	var files []string
	for _, name := range q.BTF {
		names, err := btfFiles(name)
		if err != nil {
			return err
		}
		files = append(files, names...)
	}
	want := wanted(q.Primary, q.Recorded)
	found := &definitions{named: map[string][]*cType{}}
	var kernel *btfFile
	for _, name := range files {
		err := noPanic(func() error {
			read, err := readBTF(name, kernel, q.Target)
			if err != nil {
				return err
			}
			if kernel == nil {
				kernel = read
			}
			return read.scan(want, found)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return a.askTypes(q, FromBTF, files, found, map[string]string{}, packages)
}

// btfFiles lists the files in a directory such as /sys/kernel/btf, the kernel's first, or returns the file itself.
func btfFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("%w; a kernel has %s if it was built with CONFIG_DEBUG_INFO_BTF", err, KernelBTF)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := fs.ReadDir(bounded.Dir(name), ".")
	if err != nil {
		return nil, err
	}
	files := []string{filepath.Join(name, "vmlinux")}
	for _, e := range entries {
		if e.Name() != "vmlinux" && e.Type().IsRegular() {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	if len(files) > maxModules {
		return nil, fmt.Errorf("%s: more than %d files", name, maxModules)
	}
	return files, nil
}

// readBTF reads type information from a raw file or from a section of an ELF file. kernel is the base of a module.
func readBTF(path string, kernel *btfFile, target string) (*btfFile, error) {
	file, err := bounded.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	start := make([]byte, 4)
	if _, err := file.ReadAt(start, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(start) != elf.ELFMAG {
		data, err := bounded.All(file, path)
		if err != nil {
			return nil, err
		}
		return parseBTF(data, kernel, target)
	}
	e, err := elf.NewFile(file)
	if err != nil {
		return nil, err
	}
	if m := machines[target]; e.Machine != m.machine || e.Data != m.order {
		return nil, fmt.Errorf("the file is for %s, not for %s", e.Machine, target)
	}
	section := func(name string) ([]byte, error) {
		s := e.Section(name)
		switch {
		case s == nil || s.Type == elf.SHT_NOBITS:
			return nil, nil
		case s.Size > bounded.MaxFile:
			return nil, fmt.Errorf("section %s exceeds %d MiB", name, bounded.MaxFile>>20)
		}
		return s.Data()
	}
	own, err := section(".BTF.base") // of a module for several kernels
	if err != nil {
		return nil, err
	}
	if own != nil {
		if kernel, err = parseBTF(own, nil, target); err != nil {
			return nil, fmt.Errorf("section .BTF.base: %w", err)
		}
	}
	data, err := section(".BTF")
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, errors.New("no section .BTF; build the kernel with CONFIG_DEBUG_INFO_BTF")
	}
	return parseBTF(data, kernel, target)
}

// parseBTF parses type information. If it continues that of base, which may be nil, it belongs to a module.
func parseBTF(data []byte, base *btfFile, target string) (*btfFile, error) {
	if len(data) < 24 {
		return nil, errNoBTF
	}
	var order binary.ByteOrder = binary.LittleEndian
	if slices.Contains(bigEndian, target) {
		order = binary.BigEndian
	}
	switch {
	case order.Uint16(data) == btfMagic:
	case bytes.Equal(data[:2], []byte{0xeb, 0x9f}) || bytes.Equal(data[:2], []byte{0x9f, 0xeb}):
		return nil, fmt.Errorf("the byte order is not that of %s", target)
	default:
		return nil, errNoBTF
	}
	header := uint64(order.Uint32(data[4:]))
	part := func(at int) ([]byte, error) {
		from, size := header+uint64(order.Uint32(data[at:])), uint64(order.Uint32(data[at+4:]))
		if data[2] != 1 || header < 24 || from+size > uint64(len(data)) {
			return nil, errors.New("corrupt header of the type information")
		}
		return data[from : from+size], nil
	}
	types, err := part(8)
	if err != nil {
		return nil, err
	}
	text, err := part(16)
	if err != nil {
		return nil, err
	}
	f := &btfFile{order: order, types: types, text: text, first: 1, cache: map[uint32]*cType{}}
	if err := f.index(); err != nil {
		return nil, err
	}
	// A kernel's names start with an empty name, and a module's do not.
	if len(text) > 0 && text[0] == 0 {
		return f, nil
	}
	if base == nil {
		return nil, errors.New("the file belongs to a module and needs the kernel's types; name vmlinux before it, as in " +
			KernelBTF + "/vmlinux," + KernelBTF + "/ib_uverbs")
	}
	f.base, f.first, f.strings = base, base.first+uint32(len(base.starts)), base.strings+uint32(len(base.text))
	return f, nil
}

var errNoBTF = errors.New("no type information (BTF); name an uncompressed file such as " + KernelBTF +
	"/vmlinux, vmlinux or a .ko file")

// index finds the start of each type.
func (f *btfFile) index() error {
	for at := uint64(0); at < uint64(len(f.types)); {
		if at+12 > uint64(len(f.types)) {
			return errors.New("the last type is incomplete")
		}
		kind, n, _ := f.info(at)
		size := uint64(0)
		switch kind {
		case btfInt, btfVar, btfDeclTag:
			size = 4
		case btfArray:
			size = 12
		case btfStruct, btfUnion, btfDataSection, btfEnum64:
			size = 12 * n
		case btfEnum, btfFuncProto:
			size = 8 * n
		case btfPointer, btfForward, btfTypedef, btfVolatile, btfConst, btfRestrict, btfFunc, btfFloat, btfTypeTag:
		default:
			return fmt.Errorf("unknown kind %d of type %d", kind, f.first+uint32(len(f.starts)))
		}
		if at+12+size > uint64(len(f.types)) {
			return errors.New("the last type is incomplete")
		}
		if len(f.starts) >= maxBTF {
			return fmt.Errorf("more than %d types", maxBTF)
		}
		f.starts = append(f.starts, uint32(at))
		at += 12 + size
	}
	return nil
}

// info returns the kind of a type, the number of its members, and its flag.
func (f *btfFile) info(at uint64) (kind uint32, n uint64, flag bool) {
	info := f.order.Uint32(f.types[at+4:])
	return info >> 24 & 0x1f, uint64(info & 0xffff), info>>31 != 0
}

// name returns a name.
func (f *btfFile) name(at uint32) (string, error) {
	for f.base != nil && at < f.strings {
		f = f.base
	}
	if at -= f.strings; uint64(at) >= uint64(len(f.text)) {
		return "", errors.New("corrupt reference to a name, or the module belongs to a different kernel")
	}
	text := f.text[at:]
	end := bytes.IndexByte(text, 0)
	if end < 0 || end > maxStr {
		return "", errors.New("unterminated name")
	}
	return string(text[:end]), nil
}

// scan finds the wanted types.
func (f *btfFile) scan(want map[string]bool, found *definitions) error {
	for i, start := range f.starts {
		kind, _, _ := f.info(uint64(start))
		if !slices.Contains([]uint32{btfStruct, btfUnion, btfEnum, btfEnum64}, kind) {
			continue
		}
		name, err := f.name(f.order.Uint32(f.types[start:]))
		if err != nil {
			return err
		}
		if kind == btfEnum && f.order.Uint32(f.types[start+8:]) > 4 {
			continue // older versions of pahole truncate its values to 32 bits
		}
		enum := kind == btfEnum || kind == btfEnum64
		if name == "" && !enum || name != "" && !want["struct "+name] && !want["union "+name] && !want["enum "+name] {
			continue
		}
		t, err := f.at(f.first+uint32(i), 0)
		if err != nil {
			return err
		}
		if err := found.add(t, want); err != nil {
			return err
		}
	}
	return nil
}

// at returns a type by its number, nil for void.
func (f *btfFile) at(id uint32, depth int) (*cType, error) {
	for f.base != nil && id != 0 && id < f.first {
		f = f.base
	}
	if id == 0 {
		return nil, nil
	}
	if t := f.cache[id]; t != nil {
		return t, nil
	}
	if depth > maxTypeDepth {
		return nil, errNested
	}
	i := uint64(id) - uint64(f.first)
	if i >= uint64(len(f.starts)) {
		return nil, fmt.Errorf("corrupt reference to type %d, or the module belongs to a different kernel", id)
	}
	start := f.starts[i]
	kind, n, flag := f.info(uint64(start))
	name, err := f.name(f.order.Uint32(f.types[start:]))
	if err != nil {
		return nil, err
	}
	size := f.order.Uint32(f.types[start+8:]) // or another type
	more := f.types[start+12:]
	t := &cType{name: name}
	follows := false
	switch kind {
	case btfInt, btfFloat:
		t.kind, t.size = baseKind, int64(size)
	case btfStruct, btfUnion:
		t.kind, t.size = structKind, int64(size)
		if kind == btfUnion {
			t.kind = unionKind
		}
		t.load = func(t *cType) error { return f.members(t, more[:12*n], flag) }
	case btfEnum:
		t.kind, t.size = enumKind, int64(size)
		t.load = func(t *cType) error { return f.enumerators(t, more[:8*n], 8, flag) }
	case btfEnum64:
		t.kind, t.size = enumKind, int64(size)
		t.load = func(t *cType) error { return f.enumerators(t, more[:12*n], 12, flag) }
	case btfForward:
		t.kind = structKind
		if flag {
			t.kind = unionKind
		}
	case btfFuncProto:
		t.kind, follows = functionKind, true
		t.load = func(t *cType) error { return f.parameters(t, more[:8*n]) }
	case btfPointer:
		t.kind, t.size, follows = pointerKind, 8, true
	case btfTypedef:
		t.kind, follows = typedefKind, true
	case btfConst:
		t.kind, follows = constKind, true
	case btfVolatile, btfRestrict, btfTypeTag:
		t.kind, follows = qualifierKind, true
	case btfArray:
		t.kind, t.count = arrayKind, int64(f.order.Uint32(more[8:]))
		size, follows = f.order.Uint32(more), true
	default:
		return nil, fmt.Errorf("type %d of kind %d is not a type of C", id, kind)
	}
	if follows {
		if t.elem, err = f.at(size, depth+1); err != nil {
			return nil, err
		}
	}
	f.cache[id] = t
	return t, nil
}

func (f *btfFile) members(t *cType, data []byte, flag bool) error {
	for ; len(data) > 0; data = data[12:] {
		name, err := f.name(f.order.Uint32(data))
		if err != nil {
			return err
		}
		m := cMember{name: name}
		if m.typ, err = f.at(f.order.Uint32(data[4:]), 0); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		first := f.order.Uint32(data[8:])
		if flag {
			m.width = int64(first >> 24)
			first &= 1<<24 - 1
		}
		m.first = int64(first)
		t.members = append(t.members, m)
	}
	return nil
}

func (f *btfFile) enumerators(t *cType, data []byte, size int, signed bool) error {
	for ; len(data) > 0; data = data[size:] {
		name, err := f.name(f.order.Uint32(data))
		if err != nil {
			return err
		}
		bits := uint64(f.order.Uint32(data[4:]))
		if size == 12 {
			bits |= uint64(f.order.Uint32(data[8:])) << 32
		} else if signed {
			bits = uint64(int64(int32(bits)))
		}
		value := model.Int(strconv.FormatUint(bits, 10))
		if signed {
			value = model.Int(strconv.FormatInt(int64(bits), 10))
		}
		t.values = append(t.values, model.Enumerator{Name: name, Value: value})
	}
	return nil
}

func (f *btfFile) parameters(t *cType, data []byte) error {
	for ; len(data) > 0; data = data[8:] {
		id := f.order.Uint32(data[4:])
		if id == 0 && len(data) == 8 {
			t.variadic = true
			return nil
		}
		param, err := f.at(id, 0)
		if err != nil {
			return err
		}
		t.params = append(t.params, param)
	}
	return nil
}
