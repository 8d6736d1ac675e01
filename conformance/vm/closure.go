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

// libraryDir holds all shared libraries of a guest. Providers are in a subdirectory, whose name is compiled into
// libibverbs.
const libraryDir = "usr/lib/x86_64-linux-gnu"

// searched lists the directories of an unpacked root that are searched for libraries.
var searched = []string{libraryDir, "lib/x86_64-linux-gnu", "usr/lib64", "lib64"}

// dlopened lists libraries that programs load with dlopen. ELF headers do not list them. glibc loads libgcc_s when a
// thread is cancelled or exits.
var dlopened = []string{"libibverbs.so.1", "librdmacm.so.1", "libgcc_s.so.1", "libmlx5.so.1",
	"libmlx4.so.1", "libefa.so.1"}

// dlopenedIfPresent lists the libraries of optionalPackages.
var dlopenedIfPresent = []string{"librpma.so.0"}

// closure returns the shared libraries that files need, directly or indirectly, and those named in more, as a map from
// name to path on the host. Libraries among files need not be in the root.
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

// imported lists the libraries and the loader that an ELF file needs. A static program needs none.
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

// resolve follows symbolic links, including absolute ones, in an unpacked root to a file on the host.
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
