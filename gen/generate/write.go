// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/emit"
)

// Write replaces the contents of dir with files. It writes a new directory and swaps the two, so that dir is never
// incomplete. If dir is up to date, it writes nothing.
func Write(dir string, files emit.Files) (changed bool, err error) {
	dir = filepath.Clean(dir)
	old := dir + ".old"
	// the directory is missing on the first run and after an interrupted swap
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(old, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	same, err := holds(dir, files)
	if err != nil || same {
		return false, err
	}
	aside, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".new-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(aside)
	if err := os.Chmod(aside, 0o755); err != nil {
		return false, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(aside, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return false, err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return false, err
		}
	}
	if err := os.RemoveAll(old); err != nil {
		return false, err
	}
	if err := rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := rename(aside, dir); err != nil {
		return false, errors.Join(err, rename(old, dir))
	}
	return true, os.RemoveAll(old)
}

var rename = os.Rename // replaced by tests

// Differs lists the files below dir that are changed, missing or extra.
func Differs(dir string, files emit.Files) ([]string, error) {
	var names []string
	have := map[string]bool{}
	err := bounded.Walk(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		have[name] = true
		want, ok := files[name]
		if !ok {
			names = append(names, name+" (not generated)")
			return nil
		}
		got, err := bounded.Read(path)
		if err == nil && !bytes.Equal(got, want) {
			names = append(names, name+" (differs)")
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return []string{dir + " (missing)"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", dir, err)
	}
	for name := range files {
		if !have[name] {
			names = append(names, name+" (missing)")
		}
	}
	slices.Sort(names)
	return names, nil
}

func holds(dir string, files emit.Files) (bool, error) {
	names, err := Differs(dir, files)
	return len(names) == 0, err
}
