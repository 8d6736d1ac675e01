// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDir is where a guest has all its shared libraries; providers are in a directory below, whose name is compiled
// in.
const libraryDir = "usr/lib/x86_64-linux-gnu"

// searched are the directories of an unpacked root that libraries are looked for in.
var searched = []string{libraryDir, "lib/x86_64-linux-gnu", "usr/lib64", "lib64"}

// opened are the libraries that programs open by name, so that no program's headers mention them. glibc opens libgcc_s
// when a thread is cancelled or ends itself.
var opened = []string{"libibverbs.so.1", "librdmacm.so.1", "libgcc_s.so.1", "libmlx5.so.1",
	"libmlx4.so.1", "libefa.so.1"}

// openedIfThere are those of optionalPackages.
var openedIfThere = []string{"librpma.so.0"}

// closure finds in an unpacked root the shared libraries that files need, and those of more by name, with all that they
// need: by name, where they are. files are paths on the host; a library among them needs not be in the root.
func closure(root string, files, more []string) (map[string]string, error) {
	found := map[string]string{}
	missing := map[string]string{}
	var need func(name, by string) error
	read := func(file string) error {
		libraries, err := imported(file)
		if err != nil {
			return err
		}
		for _, name := range libraries {
			if err := need(name, filepath.Base(file)); err != nil {
				return err
			}
		}
		return nil
	}
	need = func(name, by string) error {
		if found[name] != "" || slices.ContainsFunc(files, func(f string) bool { return filepath.Base(f) == name }) {
			return nil
		}
		for _, dir := range searched {
			file, err := resolve(root, path.Join(dir, name))
			if err == nil {
				found[name] = file
				return read(file)
			}
		}
		missing[name] = by
		return nil
	}
	for _, file := range files {
		if err := read(file); err != nil {
			return nil, err
		}
	}
	for _, name := range more {
		if err := need(name, "every guest"); err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 {
		var all []string
		for name, by := range missing {
			all = append(all, name+" (needed by "+by+")")
		}
		slices.Sort(all)
		return nil, fmt.Errorf("the guest's packages lack shared libraries: %s", strings.Join(all, ", "))
	}
	return found, nil
}

// imported lists what an ELF file needs: libraries, and the loader it asks for. A static program needs nothing.
func imported(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("%s is for %s: guests are amd64", file, f.Machine)
	}
	libraries, err := f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		libraries = append(libraries, path.Base(strings.TrimRight(string(name), "\x00")))
	}
	return libraries, nil
}

// resolve follows the symbolic links of an unpacked root, absolute ones too, to a file on the host.
func resolve(root, name string) (string, error) {
	for range 8 {
		file := filepath.Join(root, name)
		info, err := os.Lstat(file)
		if err != nil {
			return "", err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			return file, nil
		}
		to, err := os.Readlink(file)
		if err != nil {
			return "", err
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(name), to)
		}
		name = to
	}
	return "", fmt.Errorf("%s: too many symbolic links", name)
}
