// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Library is a shared library of the release, as seen by the dynamic linker.
type Library struct {
	Name string `json:"name"` // its soname: "libibverbs.so.1"
	// Versions lists the versions of its symbols in the library's order, without the base version.
	Versions []Version `json:"versions,omitempty"`
	Symbols  []Symbol  `json:"symbols"` // exported symbols in the order of Symbol.Compare
}

// Version is a symbol version. The dynamic linker does not load a program that requires a version that the library
// lacks.
type Version struct {
	Name  string   `json:"name"`            // "IBVERBS_1.1"
	After []string `json:"after,omitempty"` // the versions that it inherits from
}

// Symbol is an exported name. It has the same versions on every target.
type Symbol struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // "IBVERBS_1.1"; empty if it has none
	Old     bool   `json:"old,omitempty"`     // not the default version; only old programs use it
	Object  bool   `json:"object,omitempty"`  // data, not a function
	Size    int64  `json:"size,omitempty"`    // of an object, in bytes, on amd64
}

// String returns the symbol as binary tools print it: "ibv_open_device@@IBVERBS_1.1", with a single "@" before a
// version that is not the default.
func (s Symbol) String() string {
	switch {
	case s.Version == "":
		return s.Name
	case s.Old:
		return s.Name + "@" + s.Version
	}
	return s.Name + "@@" + s.Version
}

// Compare orders symbols by name, then version.
func (s Symbol) Compare(t Symbol) int {
	return cmp.Or(strings.Compare(s.Name, t.Name), strings.Compare(s.Version, t.Version))
}

// Library returns the library of that name, or nil.
func (r *Release) Library(name string) *Library {
	i := slices.IndexFunc(r.Libraries, func(l Library) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Libraries[i]
}

// Defines reports whether the library has that version.
func (l *Library) Defines(version string) bool {
	return slices.ContainsFunc(l.Versions, func(v Version) bool { return v.Name == version })
}

var (
	libraryName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_+-]*\.so\.[0-9]+$`)
	versionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
)

func isLibrary(name string) bool { return libraryName.MatchString(name) }

func (l *Library) check() error {
	if !isLibrary(l.Name) {
		return fmt.Errorf("invalid library name %q", l.Name)
	}
	if len(l.Symbols) == 0 {
		return errors.New("no exported symbols")
	}
	for i, v := range l.Versions {
		before := Library{Versions: l.Versions[:i]}
		if !versionName.MatchString(v.Name) || before.Defines(v.Name) {
			return fmt.Errorf("duplicate or invalid version %q", v.Name)
		}
		for _, other := range v.After {
			if other == v.Name || !l.Defines(other) {
				return fmt.Errorf("version %s inherits from %q, which is not another version of the library", v.Name,
					other)
			}
		}
	}
	defaults := map[string]bool{}
	for i, s := range l.Symbols {
		switch {
		case !isName(s.Name):
			return fmt.Errorf("symbol %q is not a C name", s.Name)
		case s.Version != "" && !l.Defines(s.Version), s.Version == "" && s.Old:
			return fmt.Errorf("symbol %q has a version that the library does not define", s.String())
		case i > 0 && l.Symbols[i-1].Compare(s) >= 0:
			return fmt.Errorf("symbol %q is duplicate or out of order", s.String())
		case !s.Old && defaults[s.Name]:
			return fmt.Errorf("symbol %q has two default versions", s.Name)
		case s.Size < 0, s.Size > MaxSize, s.Size > 0 && !s.Object:
			return fmt.Errorf("symbol %q cannot have %d bytes", s.String(), s.Size)
		}
		defaults[s.Name] = defaults[s.Name] || !s.Old
	}
	return nil
}
