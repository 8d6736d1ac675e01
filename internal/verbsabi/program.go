// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/runtime"
)

// Program describes a compiled Go program: its build, and the C functions that it can call.
type Program struct {
	Path      string            `json:"path"`
	Main      string            `json:"main"`      // import path of package main
	Go        string            `json:"go"`        // release of Go
	Module    string            `json:"module"`    // version of this module in the program
	Target    string            `json:"target"`    // GOARCH
	Static    bool              `json:"static"`    // the build or target cannot open C libraries
	Loader    string            `json:"loader"`    // path of the dynamic loader; empty if linked statically
	Linked    []string          `json:"linked"`    // libraries that the loader loads at program start
	Libraries []ProgramLibrary  `json:"libraries"` // libraries that the program opens on first use
	Problems  []ProgramProblem  `json:"problems"`  // missing on the host; each makes the answer incompatible
	needs     map[string]string // required versions of linked libraries: version → library
}

// ProgramLibrary is a library whose functions a program can call.
type ProgramLibrary struct {
	Name      string   `json:"name"` // "libibverbs.so.1"
	Package   string   `json:"package"`
	Functions []string `json:"functions"`
	since     map[string]string
}

// ProgramProblem is a requirement of the program that the host lacks.
type ProgramProblem struct {
	ID   string `json:"id"`
	Rule string `json:"rule"`
	Text string `json:"text"`
}

// missing returns how many of the program's problems no policy or baseline accepts.
func (p *Program) missing(findings []Finding) (n int) {
	if p == nil {
		return 0
	}
	for _, f := range findings {
		if f.Fails() && slices.ContainsFunc(p.Problems, func(d ProgramProblem) bool { return d.ID == f.ID }) {
			n++
		}
	}
	return n
}

// maxImage limits the parts of a program that are read into memory.
const maxImage = uint64(2 << 30)

// readProgram reads a Go program for Linux, which may be stripped. The functions are those whose descriptions
// (runtime.Function) the Go linker kept; it drops those to which no reachable code refers. Some of them may never be
// called. Other functions of these libraries cannot be called, except by name through a runtime.Function that the
// program defines.
func readProgram(path string) (*Program, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file; name a compiled Go program", path))
	}
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not a program for Linux (%w); name a compiled Go program", path, err)
	}
	info, err := readBuildInfo(f)
	if err != nil {
		return nil, fmt.Errorf("%s has no build information of Go (%w); name a program built by go build", path, err)
	}
	p := &Program{Path: path, Main: info.Path, Go: info.GoVersion, Linked: []string{}, Libraries: []ProgramLibrary{},
		Problems: []ProgramProblem{}}
	if p.Module = moduleVersion(info); p.Module == "" {
		return nil, fmt.Errorf("%s does not contain %s; name a program that uses it", path, rules.Module)
	}
	if p.Target, err = targetOf(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p.Static = !opensLibraries(info, p.Target)
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			text, err := io.ReadAll(io.LimitReader(s.Open(), maxPath))
			if err != nil {
				return nil, fmt.Errorf("%s: reading the name of the loader: %w", path, err)
			}
			p.Loader = strings.TrimRight(string(text), "\x00")
		}
	}
	if p.Linked, err = f.ImportedLibraries(); err != nil {
		return nil, fmt.Errorf("%s: reading the linked libraries: %w", path, err)
	}
	if p.needs, err = versionsNeeded(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if p.Static {
		return p, nil
	}
	m, err := readImage(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p.Libraries = m.libraries()
	return p, nil
}

// readBuildInfo reads what Go's linker writes about a build: to an address divisible by 16, 14 bytes of magic, the size
// of a pointer and flags; 16 more bytes; and the version of Go and the modules, each with its length before it. Package
// debug/buildinfo does the same, but also for other systems, which adds 180 KB to the command.
func readBuildInfo(f *elf.File) (*debug.BuildInfo, error) {
	const align, size, inline = 16, 32, 2
	magic := []byte("\xff Go buildinf:")
	for _, s := range f.Progs {
		if s.Type != elf.PT_LOAD || s.Flags&elf.PF_W == 0 || s.Filesz > maxImage {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(s.Open(), int64(s.Filesz)))
		if err != nil {
			return nil, err
		}
		for ; len(data) >= size; data = data[align:] {
			if !bytes.HasPrefix(data, magic) || data[len(magic)+1]&inline == 0 {
				continue
			}
			version, rest := lengthPrefixed(data[size:])
			modules, _ := lengthPrefixed(rest)
			if n := len(modules); n > 2*align { // markers around it
				modules = modules[align : n-align]
			}
			if len(version) == 0 || len(modules) == 0 {
				return nil, errors.New("it is damaged")
			}
			info, err := debug.ParseBuildInfo(string(modules))
			if err != nil {
				return nil, err
			}
			info.GoVersion = string(version)
			return info, nil
		}
	}
	return nil, errors.New("none found")
}

// lengthPrefixed cuts off bytes and the length before them.
func lengthPrefixed(data []byte) (value, rest []byte) {
	n, used := binary.Uvarint(data)
	if used <= 0 || n > uint64(len(data)-used) {
		return nil, nil
	}
	return data[used : used+int(n)], data[used+int(n):]
}

// moduleVersion returns the version of this module in a program, or "".
func moduleVersion(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == rules.Module {
			if m.Replace != nil {
				return cmp.Or(m.Replace.Version, unversioned)
			}
			return cmp.Or(m.Version, unversioned)
		}
	}
	return ""
}

// unversioned is the version of a module that was built from a directory.
const unversioned = "(devel)"

// ownVersion returns the version of this module in this program.
func ownVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(moduleVersion(info), unversioned)
	}
	return unversioned
}

// opensLibraries reports whether a program can open C libraries; see runtime.OpensLibraries.
func opensLibraries(info *debug.BuildInfo, target string) bool {
	for _, s := range info.Settings {
		if s.Key == "-tags" && slices.Contains(strings.FieldsFunc(s.Value, func(r rune) bool {
			return r == ',' || r == ' '
		}), "goverbs_static") || s.Key == "GOOS" && s.Value != "linux" {
			return false
		}
	}
	return slices.Contains([]string{"amd64", "arm64", "loong64", "ppc64le", "riscv64"}, target)
}

// targetOf returns the GOARCH of an ELF file.
func targetOf(f *elf.File) (string, error) {
	for target, m := range machines {
		if f.Class == elf.ELFCLASS64 && f.Machine == m.machine && f.Data == m.order {
			return target, nil
		}
	}
	return "", fmt.Errorf("the file is for %v, %v; the Go packages have layouts for %s", f.Machine, f.Class,
		strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
}

// versionsNeeded returns the symbol versions that a file needs, as "LIBRARY VERSION", with the library of each.
func versionsNeeded(f *elf.File) (map[string]string, error) {
	if f.SectionByType(elf.SHT_GNU_VERNEED) == nil || f.SectionByType(elf.SHT_GNU_VERSYM) == nil {
		return nil, nil // Go's linker writes no versions
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return nil, fmt.Errorf("reading the required symbol versions: %w", err)
	}
	all := map[string]string{}
	for _, n := range needs {
		for _, v := range n.Needs {
			if v.Flags&elf.VER_FLG_WEAK == 0 {
				all[n.Name+" "+v.Dep] = n.Name
			}
		}
	}
	return all, nil
}

// image is the memory of a program after relocation and before it starts.
type image struct {
	f     *elf.File
	parts []imagePart
}

type imagePart struct {
	start uint64
	data  []byte
}

// relative contains, by machine, the type of relocations that add the load address, which is assumed to be 0.
var relative = map[elf.Machine]uint32{
	elf.EM_X86_64: uint32(elf.R_X86_64_RELATIVE), elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE),
	elf.EM_RISCV: uint32(elf.R_RISCV_RELATIVE), elf.EM_PPC64: 22, elf.EM_LOONGARCH: 3,
}

// readImage reads the memory of a program. Relocations matter in position-independent programs only.
func readImage(f *elf.File) (*image, error) {
	m := &image{f: f}
	total := uint64(0)
	for _, s := range f.Progs {
		if s.Type != elf.PT_LOAD || s.Filesz == 0 {
			continue
		}
		if total += s.Filesz; total > maxImage || s.Filesz > maxImage {
			return nil, fmt.Errorf("the segments exceed %d bytes", maxImage)
		}
		data, err := io.ReadAll(io.LimitReader(s.Open(), int64(s.Filesz)))
		if err != nil {
			return nil, fmt.Errorf("reading segments: %w", err)
		}
		m.parts = append(m.parts, imagePart{s.Vaddr, data})
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || s.Size > maxImage {
			continue
		}
		rows, err := s.Data()
		if err != nil {
			return nil, fmt.Errorf("reading relocations: %w", err)
		}
		for ; len(rows) >= 24; rows = rows[24:] {
			place := m.at(f.ByteOrder.Uint64(rows), 8)
			if place != nil && uint32(f.ByteOrder.Uint64(rows[8:])) == relative[f.Machine] {
				copy(place, rows[16:24])
			}
		}
	}
	return m, nil
}

// at returns n bytes at an address, or nil.
func (m *image) at(address, n uint64) []byte {
	for _, p := range m.parts {
		if at := address - p.start; address >= p.start && at <= uint64(len(p.data)) && n <= uint64(len(p.data))-at {
			return p.data[at : at+n]
		}
	}
	return nil
}

// text returns the Go string whose header is at an address. It returns false if there is none.
func (m *image) text(address uint64) (string, bool) {
	header := m.at(address, 16)
	if header == nil {
		return "", false
	}
	n := m.f.ByteOrder.Uint64(header[8:])
	if n == 0 {
		return "", true
	}
	text := []byte(nil)
	if n <= maxName {
		text = m.at(m.f.ByteOrder.Uint64(header), n)
	}
	return string(text), text != nil
}

// words calls fn with every aligned address and the word there.
func (m *image) words(fn func(address, word uint64)) {
	for _, p := range m.parts {
		skip := -p.start & 7
		for at := skip; at+8 <= uint64(len(p.data)); at += 8 {
			fn(p.start+at, m.f.ByteOrder.Uint64(p.data[at:]))
		}
	}
}

const (
	maxName = 200  // of a function
	maxPath = 4096 // PATH_MAX
)

var (
	functionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	sinceName    = regexp.MustCompile(`^([0-9]+(\.[0-9]+)*( or earlier)?)?$`)
)

// libraries finds the descriptions of libraries (runtime.Library), and of the functions that refer to them.
func (m *image) libraries() []ProgramLibrary {
	type place struct{ name, soname uint64 }
	at := place{uint64(unsafe.Offsetof(runtime.Library{}.Name)), uint64(unsafe.Offsetof(runtime.Library{}.SOName))}
	known := map[string]rules.Package{}
	for _, p := range rules.Calling() {
		known[p.Verbs.SOName] = p
	}
	lengths := map[uint64]bool{}
	for soname := range known {
		lengths[uint64(len(soname))] = true
	}
	found := map[uint64]*ProgramLibrary{}
	m.words(func(address, word uint64) { // the length of a soname is the second word of its header
		if !lengths[word] || address < at.soname+8 {
			return
		}
		soname, _ := m.text(address - 8)
		p, ok := known[soname]
		start := address - 8 - at.soname
		if name, _ := m.text(start + at.name); ok && name == p.Verbs.Name {
			found[start] = &ProgramLibrary{Name: soname, Package: p.Name, since: map[string]string{}}
		}
	})
	var f runtime.Function
	m.words(func(address, word uint64) {
		l, start := found[word], address-uint64(unsafe.Offsetof(f.Library))
		if l == nil {
			return
		}
		name, ok := m.text(start + uint64(unsafe.Offsetof(f.Name)))
		since, also := m.text(start + uint64(unsafe.Offsetof(f.Since)))
		if ok && also && functionName.MatchString(name) && sinceName.MatchString(since) {
			l.since[name] = since
		}
	})
	all := []ProgramLibrary{}
	for _, l := range found {
		if l.Functions = slices.Sorted(maps.Keys(l.since)); len(l.Functions) > 0 {
			all = append(all, *l)
		}
	}
	slices.SortFunc(all, func(a, b ProgramLibrary) int { return strings.Compare(a.Name, b.Name) })
	return all
}
