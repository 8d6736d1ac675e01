// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A model is untrusted input, like a header. Its names become Go names, comments and file names, so they must be valid.

// maxDepth limits the nesting of types.
const maxDepth = 200

var (
	plain      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~:-]*$`)
	headerName = regexp.MustCompile(`^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\.h$`)
	targetName = regexp.MustCompile(`^[a-z0-9]+$`)
	pageName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*\.[37](\.md)?$`)
	memberPath = regexp.MustCompile(`^[A-Za-z_]\w*((->|\.)[A-Za-z_]\w*)*$`)
)

// keywords are the keywords of C, which cannot be names.
var keywords = strings.Fields("auto break case char const continue default do double else enum extern float for goto " +
	"if inline int long register restrict return short signed sizeof static struct switch typedef union unsigned " +
	"void volatile while _Alignas _Alignof _Atomic _Bool _Complex _Generic _Noreturn _Static_assert")

// isName reports whether s is a valid C identifier.
func isName(s string) bool { return isIdentifier(s) && len(s) <= 200 && !slices.Contains(keywords, s) }

// isPlain reports whether s is a valid release name.
func isPlain(s string) bool { return plain.MatchString(s) }

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s,
		func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029' || r == 0xfffd })
}

// checkNames checks the names outside declarations.
func (r *Release) checkNames() error {
	for _, t := range r.Targets {
		if !targetName.MatchString(t) {
			return fmt.Errorf("%q is not a GOARCH", t)
		}
	}
	for i, h := range r.Headers {
		if !headerName.MatchString(h.Name) {
			return fmt.Errorf("header %d: %q is not a header name", i, h.Name)
		}
	}
	for _, h := range r.Unread {
		if !headerName.MatchString(h) {
			return fmt.Errorf("%q is not a header name", h)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(r.StandIns)) {
		if err := checkPage(file); err != nil && !isLibrary(file) {
			return err
		}
		if !isPlain(r.StandIns[file]) {
			return fmt.Errorf("stand-in for %s: %q is not a release name", file, r.StandIns[file])
		}
	}
	for _, f := range r.Flags {
		for _, name := range append(append([]string{f.Name}, f.QPTypes...), f.Opcodes...) {
			if !isIdentifier(name) {
				return fmt.Errorf("flag %q: %q is not a C name", f.Name, name)
			}
		}
		if f.Capability != "" && !isIdentifier(f.Capability) {
			return fmt.Errorf("flag %s: %q is not a C name", f.Name, f.Capability)
		}
		if err := checkPage(f.Page); err != nil {
			return fmt.Errorf("flag %s: %w", f.Name, err)
		}
	}
	return nil
}

// checkPage rejects an invalid man page name; "" is valid.
func checkPage(page string) error {
	if page != "" && !pageName.MatchString(page) {
		return fmt.Errorf("%q is not a man page name", page)
	}
	return nil
}

// checkPer rejects targets that the model lacks.
func (r *Release) checkPer(p Per) error {
	for _, t := range slices.Sorted(maps.Keys(p.Only)) {
		if !slices.Contains(r.Targets, t) {
			return fmt.Errorf("%q is not a target of the model", t)
		}
	}
	return nil
}

func (m *Macro) check() error {
	if !slices.Contains([]MacroKind{Constant, Alias, FuncLike, Text}, m.Kind) {
		return fmt.Errorf("unknown kind %q", m.Kind)
	}
	if m.Target != "" && !isIdentifier(m.Target) {
		return fmt.Errorf("%q is not a C name", m.Target)
	}
	if m.Type != "" {
		if _, err := ParseType(m.Type); err != nil {
			return err
		}
	}
	for _, p := range m.Params {
		if !isIdentifier(p) && p != "..." {
			return fmt.Errorf("parameter %q is not a C name", p)
		}
	}
	return nil
}

// check checks the description of an inline function, which is nil for an extern one. No Go code is generated from its
// arguments, which are C expressions.
func (in *Inline) check() error {
	if in == nil {
		return nil
	}
	if !slices.Contains(inlineKinds, in.Kind) {
		return fmt.Errorf("unknown kind of inline function %q", in.Kind)
	}
	for _, name := range append([]string{in.Struct, in.Slot, in.Absent}, in.Calls...) {
		if name != "" && !isIdentifier(name) {
			return fmt.Errorf("%q is not a C name", name)
		}
	}
	for _, path := range []string{in.Object, in.Guard} {
		if path != "" && !memberPath.MatchString(path) {
			return fmt.Errorf("%q is not a path from an object to its member", path)
		}
	}
	for _, text := range append([]string{string(in.Errors)}, in.Args...) {
		if !isPrintable(text) {
			return fmt.Errorf("%q has unprintable characters", text)
		}
	}
	return nil
}

// check checks the text of a table, which is printed in comments.
func (t *Table) check() error {
	words := slices.Clone(t.Columns)
	for _, row := range t.Rows {
		words = append(append(words, row.Name), row.Cells...)
	}
	for _, word := range words {
		if !isPrintable(word) {
			return fmt.Errorf("%q has unprintable characters", word)
		}
	}
	return checkPage(t.Page)
}
