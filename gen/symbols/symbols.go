// SPDX-License-Identifier: BSD-2-Clause

// Package symbols reads the exported symbols of a shared library, with their versions.
package symbols

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// Read reads an ELF shared library, whose soname must be name.
func Read(name string, file io.ReaderAt) (*model.Library, error) {
	lib, err := read(name, file)
	if err != nil {
		return nil, fmt.Errorf("symbols of %s: %w", name, err)
	}
	return lib, nil
}

func read(name string, file io.ReaderAt) (*model.Library, error) {
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sonames, err := f.DynString(elf.DT_SONAME)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(sonames, []string{name}) {
		return nil, fmt.Errorf("unexpected soname %q", sonames)
	}
	lib := &model.Library{Name: name}
	versioned := f.SectionByType(elf.SHT_GNU_VERSYM) != nil
	var versions []elf.DynamicVersion
	if versioned {
		if versions, err = f.DynamicVersions(); err != nil {
			return nil, err
		}
	}
	for _, v := range versions {
		if v.Flags&elf.VER_FLG_BASE == 0 { // the base version has the library's name
			lib.Versions = append(lib.Versions, model.Version{Name: v.Name, After: v.Deps})
		}
	}
	all, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		// A linker defines a symbol for each version name; programs do not use it.
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS && lib.Defines(s.Name) {
			continue
		}
		symbol, err := defined(s)
		if err == nil && versioned && !s.HasVersion {
			err = errors.New("the library does not define its version")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		lib.Symbols = append(lib.Symbols, symbol)
	}
	slices.SortFunc(lib.Symbols, model.Symbol.Compare)
	return lib, nil
}

// defined converts a symbol that the library defines.
func defined(s elf.Symbol) (model.Symbol, error) {
	symbol := model.Symbol{Name: s.Name, Version: s.Version, Old: s.HasVersion && s.VersionIndex.IsHidden()}
	switch kind := elf.ST_TYPE(s.Info); kind {
	case elf.STT_FUNC:
	case elf.STT_OBJECT:
		symbol.Object, symbol.Size = true, int64(s.Size)
	default:
		return symbol, fmt.Errorf("a symbol of type %s, which is neither a function nor an object", kind)
	}
	if bind := elf.ST_BIND(s.Info); bind != elf.STB_GLOBAL && bind != elf.STB_WEAK {
		return symbol, fmt.Errorf("a symbol with binding %s, to which other files cannot link", bind)
	}
	return symbol, nil
}
