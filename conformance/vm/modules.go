// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ulikunitz/xz"
)

// modules maps the names of kernel modules to files. File names may have dashes where module names have underscores.
type modules map[string]string

func findModules(dir string) (modules, error) {
	found := modules{}
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if name, kind, ok := strings.Cut(filepath.Base(file), ".ko"); ok && (kind == "" || kind == ".xz") {
			found[moduleName(name)] = file
		}
		return nil
	})
	return found, err
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// decompress returns the uncompressed content of a module's file.
func decompress(file string, data []byte) ([]byte, error) {
	if path.Ext(file) != ".xz" {
		return data, nil
	}
	r, err := xz.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return plain, nil
}

// modinfo returns the values that a module records for a key.
func modinfo(module []byte, key string) (values []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(info), "\x00") {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			values = append(values, value)
		}
	}
	return values, nil
}

// needs lists the modules that must be loaded before a module: hard ones have symbols that it uses, soft ones are its
// soft dependencies. The latter may be missing, because they are built in or alternatives.
func needs(module []byte) (hard, soft []string, err error) {
	depends, err := modinfo(module, "depends")
	if err != nil {
		return nil, nil, err
	}
	for _, value := range depends {
		hard = append(hard, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
	}
	softdep, err := modinfo(module, "softdep")
	if err != nil {
		return nil, nil, err
	}
	for _, value := range softdep {
		if before, ok := strings.CutPrefix(value, "pre: "); ok {
			before, _, _ = strings.Cut(before, " post:")
			soft = append(soft, strings.Fields(before)...)
		}
	}
	return hard, soft, nil
}

// loadOrder lists wanted modules and their dependencies in an order in which they can be loaded. Built-in modules are
// omitted, and a missing one is an error. get returns the content of a module's file.
func (m modules) loadOrder(wanted []string, builtin map[string]bool, get func(file string) ([]byte, error)) ([]string,
	error) {
	var order, above []string
	done := map[string]bool{}
	var visit func(name string, must bool) error
	visit = func(name string, must bool) error {
		name = moduleName(name)
		if done[name] || builtin[name] {
			return nil
		}
		if slices.Contains(above, name) {
			return fmt.Errorf("modules need each other: %s", strings.Join(append(above, name), " → "))
		}
		file, ok := m[name]
		if !ok {
			if !must {
				return nil
			}
			return fmt.Errorf("no module %s (wanted by %s)", name,
				strings.Join(append([]string{"this program"}, above...), " → "))
		}
		data, err := get(file)
		if err != nil {
			return err
		}
		hard, soft, err := needs(data)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		above = append(above, name)
		for _, n := range soft {
			if err := visit(n, false); err != nil {
				return err
			}
		}
		for _, n := range hard {
			if err := visit(n, true); err != nil {
				return err
			}
		}
		above = above[:len(above)-1]
		done[name] = true
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := visit(name, true); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// builtins parses modules.builtin, which lists the modules that are built into the kernel.
func builtins(list string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(list) {
		all[moduleName(strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return all
}
