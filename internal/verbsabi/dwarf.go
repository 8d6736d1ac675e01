// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/model"
)

// Limits of the debug information of one file. Those of libmlx5, the largest library, are a twentieth of these.
const (
	maxDebug  = 256 << 20 // bytes of all sections, decompressed
	maxAbbrev = 1 << 20   // attributes in all abbreviations
	maxReads  = 1 << 24   // entries that are read
	maxStr    = 16 << 10  // bytes of a string
)

// debugTimeout limits the time for all files.
const debugTimeout = 2 * time.Minute

// definitions contains the types in debug information that a model has, too, by cType.key. A type can have several
// definitions, one for each source file that uses it.
type definitions struct {
	named    map[string][]*cType
	untagged []*cType // enumerations without a tag
	count    int
}

// maxDefinitions limits the definitions of all types. Each source file of a library has some hundreds.
const maxDefinitions = 1 << 18

// add adds a type if it is wanted.
func (d *definitions) add(t *cType, want map[string]bool) error {
	if d.count++; d.count > maxDefinitions {
		return fmt.Errorf("more than %d definitions", maxDefinitions)
	}
	switch key := t.key(); {
	case t.kind == enumKind && t.name == "":
		d.untagged = append(d.untagged, t)
	case want[key]:
		d.named[key] = append(d.named[key], t)
	}
	return nil
}

// errNoDebug is the error for a file that has no debug information.
var errNoDebug = errors.New("no debug information")

// dwarfFile is a file with DWARF.
type dwarfFile struct {
	path  string
	data  *dwarf.Data
	str   []byte     // .debug_str, for references from another file
	alt   *dwarfFile // file to which dwz moved common entries, or nil
	types map[dwarf.Offset]*cType
	big   bool
	ctx   context.Context
	reads int
}

// readDWARF adds the wanted types of a file to found. Their members are read from the file later.
func readDWARF(ctx context.Context, path, target, debugDir string, want map[string]bool, found *definitions) error {
	d, err := openDWARF(ctx, path, target, debugDir, true)
	if err != nil {
		return err
	}
	for ; d != nil; d = d.alt {
		if err := d.scan(want, found); err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
	}
	return nil
}

// openDWARF opens a file with debug information. If path has none, its build ID identifies the file that has it.
func openDWARF(ctx context.Context, path, target, debugDir string, follow bool) (*dwarfFile, error) {
	f, closeFile, err := openLibrary(path)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	if !forTarget(f, target) {
		return nil, fmt.Errorf("%s, %s, is not a shared library for %s", f.Type, f.Machine, target)
	}
	if f.Section(".debug_info") == nil {
		if f.Section(".zdebug_info") != nil {
			return nil, errors.New("sections are compressed in the old GNU format; decompress them with objcopy " +
				"--decompress-debug-sections")
		}
		if f.Section(".debug_info.dwo") != nil {
			return nil, errors.New("split debug information is not supported; compile without " +
				"-gsplit-dwarf")
		}
		id := buildID(f)
		if !follow || id == "" {
			return nil, fmt.Errorf("%w, and no build ID to find it by; install the debug package, or name its file",
				errNoDebug)
		}
		name := debugFile(debugDir, id)
		d, err := openDWARF(ctx, name, target, debugDir, false)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w in it, and no file %s; install the debug package, or name its directory with "+
				"-debug-dir", errNoDebug, name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return d, nil
	}
	d := &dwarfFile{path: path, types: map[dwarf.Offset]*cType{}, big: f.Data == elf.ELFDATA2MSB, ctx: ctx}
	if err := d.read(f); err != nil {
		return nil, err
	}
	d.alt, err = openAlt(ctx, f, path, target, debugDir)
	return d, err
}

// read reads the sections of a file.
func (d *dwarfFile) read(f *elf.File) error {
	total := uint64(0)
	section := func(name string) []byte {
		s := f.Section(name)
		if s == nil || s.Type == elf.SHT_NOBITS {
			return nil
		}
		if total += s.Size; s.Size > maxDebug || total > maxDebug {
			return nil
		}
		data, err := s.Data()
		if err != nil {
			return nil
		}
		return data
	}
	info, abbrev := section(".debug_info"), section(".debug_abbrev")
	d.str = section(".debug_str")
	lineStr := section(".debug_line_str")
	more := map[string][]byte{".debug_line_str": lineStr}
	for _, name := range []string{".debug_str_offsets", ".debug_addr", ".debug_rnglists"} {
		more[name] = section(name)
	}
	switch {
	case total > maxDebug:
		return fmt.Errorf("the debug information exceeds %d MiB", maxDebug>>20)
	case len(info) == 0 || len(abbrev) == 0:
		return errors.New("the sections .debug_info and .debug_abbrev cannot be read")
	case f.Section(".debug_sup") != nil:
		return errors.New("a DWARF 5 supplementary file is not supported; run dwz without --dwarf-5")
	}
	for _, text := range [][]byte{info, d.str, lineStr} {
		if len(text) > 0 && longestRun(text) > maxStr && &text[0] != &info[0] {
			return fmt.Errorf("a string exceeds %d bytes", maxStr)
		}
	}
	if err := checkUnits(f.ByteOrder, info, abbrev); err != nil {
		return err
	}
	var err error
	if d.data, err = dwarf.New(abbrev, nil, nil, info, nil, nil, nil, d.str); err != nil {
		return err
	}
	for name, data := range more {
		if err := d.data.AddSection(name, data); err != nil {
			return err
		}
	}
	return nil
}

// longestRun returns the length of the longest string.
func longestRun(text []byte) int {
	longest := 0
	for len(text) > 0 {
		i := bytes.IndexByte(text, 0)
		if i < 0 {
			i = len(text) - 1
		}
		longest = max(longest, i)
		text = text[i+1:]
	}
	return longest
}

// checkUnits limits the number of abbreviations in all units, because dwarf.New stores them for each unit.
func checkUnits(order binary.ByteOrder, info, abbrev []byte) error {
	corrupt := errors.New("corrupt unit header")
	seen := map[uint64]bool{}
	attributes := 0
	for len(info) > 0 {
		if len(info) < 12 {
			return corrupt
		}
		length, size := uint64(order.Uint32(info)), 4
		if length == 0xffffffff {
			length, size = order.Uint64(info[4:]), 8
			info = info[8:]
		}
		info = info[4:]
		if length > uint64(len(info)) || length > 0 && length < uint64(4+size) {
			return corrupt
		}
		unit := info[:length]
		info = info[length:]
		if length == 0 {
			continue
		}
		at := unit[2:]
		if version := order.Uint16(unit); version < 2 || version > 5 {
			return fmt.Errorf("DWARF %d is not supported", version)
		} else if version == 5 {
			at = unit[4:]
		}
		if len(at) < size {
			return corrupt
		}
		offset := uint64(order.Uint32(at))
		if size == 8 {
			offset = order.Uint64(at)
		}
		if offset > uint64(len(abbrev)) {
			return corrupt
		}
		if seen[offset] {
			continue
		}
		seen[offset] = true
		n, err := countAttributes(abbrev[offset:])
		if err != nil {
			return err
		}
		if attributes += n; attributes > maxAbbrev {
			return fmt.Errorf("more than %d attributes in abbreviations", maxAbbrev)
		}
	}
	return nil
}

// countAttributes counts the attributes of a table of abbreviations.
func countAttributes(table []byte) (int, error) {
	corrupt := errors.New("corrupt abbreviations")
	number := func() uint64 {
		n, size := binary.Uvarint(table)
		if size <= 0 {
			table = nil
			return 0
		}
		table = table[size:]
		return n
	}
	count := 0
	for len(table) > 0 {
		if number() == 0 {
			return count, nil
		}
		number() // tag
		if len(table) == 0 {
			return 0, corrupt
		}
		table = table[1:] // whether it has children
		own := 0
		for {
			attribute, form := number(), number()
			if form == 0x21 { // DW_FORM_implicit_const: a signed number
				number()
			}
			if attribute == 0 && form == 0 {
				break
			}
			if own++; own > 1024 {
				return 0, errors.New("an entry has more than 1024 attributes")
			}
		}
		count += own + 1
	}
	return count, nil
}

// buildID returns the build ID of a file in hexadecimal, or "".
func buildID(f *elf.File) string {
	s := f.Section(".note.gnu.build-id")
	if s == nil || s.Size > 1<<10 || s.Type != elf.SHT_NOTE {
		return ""
	}
	note, err := s.Data()
	if err != nil || len(note) < 16 || !bytes.Equal(note[12:16], []byte("GNU\x00")) {
		return ""
	}
	size := f.ByteOrder.Uint32(note[4:])
	if f.ByteOrder.Uint32(note) != 4 || uint64(size) > uint64(len(note)-16) || size < 2 {
		return ""
	}
	return hex.EncodeToString(note[16 : 16+size])
}

// debugFile returns the path of the debug file of a build ID.
func debugFile(debugDir, id string) string {
	return filepath.Join(debugDir, ".build-id", id[:2], id[2:]+".debug")
}

// openAlt opens the file to which dwz moved common entries, or returns nil.
func openAlt(ctx context.Context, f *elf.File, path, target, debugDir string) (*dwarfFile, error) {
	s := f.Section(".gnu_debugaltlink")
	if s == nil {
		return nil, nil
	}
	if s.Size > 8<<10 {
		return nil, errors.New("corrupt section .gnu_debugaltlink")
	}
	link, err := s.Data()
	if err != nil {
		return nil, err
	}
	name, id, ok := strings.Cut(string(link), "\x00")
	if !ok || len(id) < 2 {
		return nil, errors.New("corrupt section .gnu_debugaltlink")
	}
	id = hex.EncodeToString([]byte(id))
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	// Debian names /usr/lib/debug/.dwz/…, which can be below another directory
	inDir := name
	if _, rest, ok := strings.Cut(name, "/.dwz/"); ok {
		inDir = filepath.Join(debugDir, ".dwz", rest)
	}
	for _, candidate := range []string{debugFile(debugDir, id), inDir, name} {
		g, closeFile, err := openLibrary(candidate)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", candidate, err)
		}
		defer closeFile()
		if buildID(g) != id {
			continue
		}
		if g.Section(".gnu_debugaltlink") != nil {
			return nil, fmt.Errorf("%s: a shared debug file of dwz that needs another one", candidate)
		}
		alt := &dwarfFile{path: candidate, types: map[dwarf.Offset]*cType{}, big: g.Data == elf.ELFDATA2MSB, ctx: ctx}
		if err := alt.read(g); err != nil {
			return nil, fmt.Errorf("%s: %w", candidate, err)
		}
		return alt, nil
	}
	return nil, fmt.Errorf("dwz moved types to %s with the build ID %s, which is missing; install the debug package "+
		"completely, or name its directory with -debug-dir", name, id)
}

// DW_AT_GNU_dwo_name, which debug/dwarf does not define.
const attrGNUDwoName dwarf.Attr = 0x2130

// next reads an entry. It returns nil at the end.
func (d *dwarfFile) next(r *dwarf.Reader) (*dwarf.Entry, error) {
	if d.reads++; d.reads > maxReads {
		return nil, fmt.Errorf("more than %d entries are needed", maxReads)
	}
	if d.reads%1024 == 0 && d.ctx.Err() != nil {
		return nil, context.Cause(d.ctx)
	}
	return r.Next()
}

// scan adds the wanted types to found. It skips types within functions, which are not in headers.
func (d *dwarfFile) scan(want map[string]bool, found *definitions) error {
	r := d.data.Reader()
	for {
		e, err := d.next(r)
		if err != nil || e == nil {
			return err
		}
		switch e.Tag {
		case 0:
			continue
		case dwarf.TagCompileUnit, dwarf.TagPartialUnit, dwarf.TagTypeUnit, dwarf.TagSkeletonUnit:
			name, _ := e.Val(dwarf.AttrDwoName).(string)
			if old, ok := e.Val(attrGNUDwoName).(string); ok {
				name = old
			}
			if name != "" || e.Tag == dwarf.TagSkeletonUnit {
				return fmt.Errorf("split debug information (in %q) is not supported; compile without "+
					"-gsplit-dwarf", name)
			}
			continue
		case dwarf.TagStructType, dwarf.TagUnionType, dwarf.TagEnumerationType, dwarf.TagTypedef:
			name, err := d.name(e)
			if err != nil {
				return err
			}
			if declared, _ := e.Val(dwarf.AttrDeclaration).(bool); declared {
				break
			}
			// skip unwanted types before creating them, which takes longer
			if name == "" && e.Tag != dwarf.TagEnumerationType ||
				name != "" && !want[name] && !want["struct "+name] && !want["union "+name] && !want["enum "+name] {
				break
			}
			t, err := d.entry(e, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := found.add(t, want); err != nil {
				return err
			}
		}
		r.SkipChildren()
	}
}

// name returns the name of an entry, which may be in dwz's file.
func (d *dwarfFile) name(e *dwarf.Entry) (string, error) {
	f := e.AttrField(dwarf.AttrName)
	if f == nil {
		return "", nil
	}
	if f.Class == dwarf.ClassStringAlt {
		at, _ := f.Val.(int64)
		if d.alt == nil || at < 0 || at >= int64(len(d.alt.str)) {
			return "", errors.New("corrupt reference to a string of dwz")
		}
		text, _, _ := bytes.Cut(d.alt.str[at:], []byte{0})
		return string(text), nil
	}
	name, _ := f.Val.(string)
	return name, nil
}

// number returns a constant attribute, or a default.
func number(e *dwarf.Entry, attr dwarf.Attr, missing int64) int64 {
	if n, ok := e.Val(attr).(int64); ok {
		return n
	}
	return missing
}

// typeOf returns the type that an entry refers to, or nil for void.
func (d *dwarfFile) typeOf(e *dwarf.Entry, depth int) (*cType, error) {
	f := e.AttrField(dwarf.AttrType)
	if f == nil {
		return nil, nil
	}
	switch f.Class {
	case dwarf.ClassReference:
		if at, ok := f.Val.(dwarf.Offset); ok {
			return d.at(at, depth)
		}
	case dwarf.ClassReferenceAlt:
		at, ok := f.Val.(int64)
		if ok && d.alt != nil {
			return d.alt.at(dwarf.Offset(at), depth)
		}
	case dwarf.ClassReferenceSig:
		return nil, errors.New("types in type units are not supported; compile without -fdebug-types-section")
	}
	return nil, fmt.Errorf("corrupt reference to a type in the entry at %#x", e.Offset)
}

// at returns the type at an offset.
func (d *dwarfFile) at(offset dwarf.Offset, depth int) (*cType, error) {
	if t := d.types[offset]; t != nil {
		return t, nil
	}
	r := d.data.Reader()
	r.Seek(offset)
	e, err := d.next(r)
	if err != nil {
		return nil, err
	}
	if e == nil || e.Offset != offset {
		return nil, fmt.Errorf("no type at %#x", offset)
	}
	return d.entry(e, depth)
}

// entry returns the type that an entry describes. Its members are read when they are needed.
func (d *dwarfFile) entry(e *dwarf.Entry, depth int) (*cType, error) {
	if t := d.types[e.Offset]; t != nil {
		return t, nil
	}
	if depth > maxTypeDepth {
		return nil, errNested
	}
	name, err := d.name(e)
	if err != nil {
		return nil, err
	}
	t := &cType{name: name, size: number(e, dwarf.AttrByteSize, 0), align: alignmentOf(e)}
	children := func(load func(t *cType, child *dwarf.Entry) error) {
		if e.Children {
			t.load = func(t *cType) error { return d.children(e.Offset, func(c *dwarf.Entry) error { return load(t, c) }) }
		}
	}
	follows := false
	switch e.Tag {
	case dwarf.TagBaseType:
		t.kind = baseKind
	case dwarf.TagStructType, dwarf.TagUnionType, dwarf.TagClassType:
		t.kind = structKind
		if e.Tag == dwarf.TagUnionType {
			t.kind = unionKind
		}
		children(d.addMember)
	case dwarf.TagEnumerationType:
		t.kind = enumKind
		if under, err := d.typeOf(e, depth+1); err == nil && under != nil && t.size == 0 {
			t.size, _ = under.bytes()
		}
		children(d.addEnumerator)
	case dwarf.TagSubroutineType:
		t.kind = functionKind
		follows = true
		children(d.addParameter)
	case dwarf.TagPointerType:
		t.kind, t.size = pointerKind, 8
		follows = true
	case dwarf.TagTypedef:
		t.kind, follows = typedefKind, true
	case dwarf.TagConstType:
		t.kind, follows = constKind, true
	case dwarf.TagVolatileType, dwarf.TagRestrictType, dwarf.TagAtomicType:
		t.kind, follows = qualifierKind, true
	case dwarf.TagArrayType:
		t.kind, follows = arrayKind, true
	default:
		return nil, fmt.Errorf("%s is not a type of C", e.Tag)
	}
	if follows {
		if t.elem, err = d.typeOf(e, depth+1); err != nil {
			return nil, err
		}
	}
	if t.kind == arrayKind {
		if err := d.dimensions(e, t); err != nil {
			return nil, err
		}
	}
	d.types[e.Offset] = t
	return t, nil
}

// alignmentOf returns the alignment in an entry's attribute, or 0.
func alignmentOf(e *dwarf.Entry) int64 {
	if n := number(e, dwarf.AttrAlignment, 0); n > 0 && n <= 1<<20 {
		return n
	}
	return 0
}

// children calls f for each child of the entry at an offset.
func (d *dwarfFile) children(offset dwarf.Offset, f func(child *dwarf.Entry) error) error {
	r := d.data.Reader()
	r.Seek(offset)
	if _, err := d.next(r); err != nil {
		return err
	}
	for n := 0; ; n++ {
		e, err := d.next(r)
		switch {
		case err != nil:
			return err
		case e == nil || e.Tag == 0:
			return nil
		case n > maxMembers:
			return fmt.Errorf("more than %d members", maxMembers)
		}
		if err := f(e); err != nil {
			return err
		}
		r.SkipChildren()
	}
}

func (d *dwarfFile) addMember(t *cType, e *dwarf.Entry) error {
	if e.Tag != dwarf.TagMember {
		return nil
	}
	m := cMember{align: alignmentOf(e)}
	var err error
	if m.name, err = d.name(e); err != nil {
		return err
	}
	if m.typ, err = d.typeOf(e, 0); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	location := int64(0)
	switch at := e.Val(dwarf.AttrDataMemberLoc).(type) {
	case int64:
		location = at
	case []byte: // DWARF 2: DW_OP_plus_uconst
		n, size := binary.Uvarint(at[min(1, len(at)):])
		if len(at) == 0 || at[0] != 0x23 || size != len(at)-1 {
			return fmt.Errorf("%s: the offset is an unsupported expression", m.name)
		}
		location = int64(n)
	}
	m.width = number(e, dwarf.AttrBitSize, 0)
	first := number(e, dwarf.AttrDataBitOffset, 0)
	if old := number(e, dwarf.AttrBitOffset, -1); old >= 0 && m.width > 0 { // DWARF 2 to 4
		size := number(e, dwarf.AttrByteSize, 0)
		if size == 0 {
			if size, err = m.typ.bytes(); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		if first = old; !d.big {
			first = 8*size - old - m.width
		}
	}
	if location < 0 || location > model.MaxSize || first < 0 || first > 8*model.MaxSize || m.width < 0 || m.width > 128 {
		return fmt.Errorf("%s: outside of its record", m.name)
	}
	m.first = 8*location + first
	t.members = append(t.members, m)
	return nil
}

func (d *dwarfFile) addEnumerator(t *cType, e *dwarf.Entry) error {
	if e.Tag != dwarf.TagEnumerator {
		return nil
	}
	name, err := d.name(e)
	if err != nil {
		return err
	}
	value, ok := e.Val(dwarf.AttrConstValue).(int64)
	if !ok {
		return fmt.Errorf("%s: the value is not a number", name)
	}
	t.values = append(t.values, model.Enumerator{Name: name, Value: model.Int(strconv.FormatInt(value, 10))})
	return nil
}

func (d *dwarfFile) addParameter(t *cType, e *dwarf.Entry) error {
	switch e.Tag {
	case dwarf.TagFormalParameter:
		param, err := d.typeOf(e, 0)
		if err != nil {
			return err
		}
		t.params = append(t.params, param)
	case dwarf.TagUnspecifiedParameters:
		t.variadic = true
	}
	return nil
}

// dimensions adds the lengths of an array, each as an array type.
func (d *dwarfFile) dimensions(e *dwarf.Entry, t *cType) error {
	var lengths []int64
	if e.Children {
		err := d.children(e.Offset, func(c *dwarf.Entry) error {
			if c.Tag == dwarf.TagSubrangeType {
				n := number(c, dwarf.AttrCount, model.Flexible)
				if last, ok := c.Val(dwarf.AttrUpperBound).(int64); ok {
					n = int64(uint32(last + 1)) // gcc's last index of an array without elements is -1
				}
				lengths = append(lengths, n)
			}
			if len(lengths) > maxTypeDepth {
				return errNested
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(lengths) == 0 {
		lengths = []int64{model.Flexible}
	}
	elem := t.elem
	for i := len(lengths) - 1; i > 0; i-- {
		elem = &cType{kind: arrayKind, count: lengths[i], elem: elem}
	}
	t.count, t.elem = lengths[0], elem
	return nil
}
