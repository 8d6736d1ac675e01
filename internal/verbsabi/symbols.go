// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"
)

// export describes an exported name of a shared library.
type export struct {
	// version is the default version, to which programs are linked by name, or "" if the library has no versions
	version  string
	def      bool     // there is a default version
	function bool     // the default version is a function, or any version if there is no default
	old      []string // versions that only previously linked programs use
}

// private reports whether the default version is private to the library and its providers.
func (e *export) private() bool { return strings.Contains(e.version, "PRIVATE") }

// machines maps targets to ELF machines.
var machines = map[string]struct {
	machine elf.Machine
	order   elf.Data
}{
	"amd64": {elf.EM_X86_64, elf.ELFDATA2LSB}, "arm64": {elf.EM_AARCH64, elf.ELFDATA2LSB},
	"loong64": {elf.EM_LOONGARCH, elf.ELFDATA2LSB},
	"mips64":  {elf.EM_MIPS, elf.ELFDATA2MSB}, "mips64le": {elf.EM_MIPS, elf.ELFDATA2LSB},
	"ppc64": {elf.EM_PPC64, elf.ELFDATA2MSB}, "ppc64le": {elf.EM_PPC64, elf.ELFDATA2LSB},
	"riscv64": {elf.EM_RISCV, elf.ELFDATA2LSB}, "s390x": {elf.EM_S390, elf.ELFDATA2MSB},
}

// forTarget reports whether a file is a shared library that a program for the target can load.
func forTarget(f *elf.File, target string) bool {
	m, ok := machines[target]
	return ok && f.Type == elf.ET_DYN && f.Class == elf.ELFCLASS64 && f.Machine == m.machine && f.Data == m.order
}

// exports reads the exports of a shared library, by name.
func exports(f *elf.File) (map[string]*export, error) {
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("cannot read symbols: %w", err)
	}
	all := map[string]*export{}
	for _, s := range symbols {
		bind, kind := elf.ST_BIND(s.Info), elf.ST_TYPE(s.Info)
		switch {
		case s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS: // imports and version names
			continue
		case bind == elf.STB_LOCAL || s.HasVersion && s.VersionIndex.Index() == 0:
			continue
		case elf.ST_VISIBILITY(s.Other) == elf.STV_HIDDEN || elf.ST_VISIBILITY(s.Other) == elf.STV_INTERNAL:
			continue
		}
		e := all[s.Name]
		if e == nil {
			e = &export{}
			all[s.Name] = e
		}
		function := kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC
		if s.HasVersion && s.VersionIndex.IsHidden() {
			e.old = append(e.old, s.Version)
			e.function = e.function || !e.def && function
			continue
		}
		e.def, e.function, e.version = true, function, s.Version
	}
	for _, e := range all {
		slices.Sort(e.old)
	}
	return all, nil
}
