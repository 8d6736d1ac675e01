// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/bounded"
)

// tests replace rename to interrupt a swap
var rename = os.Rename

const hintCache = "fetch the release again, or " + hintFrom

// put writes a release next to its final directory and then renames it. If anything fails, the cache keeps its previous
// content. If the process dies between the two renames, the release is absent, but never incomplete.
func (c *collection) put(cacheDir string, rel *Release) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: cannot write the cache: %w", rel, err)
		}
	}()
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return err
	}
	sweep(cacheDir)
	aside, err := os.MkdirTemp(cacheDir, ".put-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	fresh, stale, home := filepath.Join(aside, "new"), filepath.Join(aside, "old"), filepath.Join(cacheDir, rel.File())
	if err := c.write(fresh); err != nil {
		return err
	}
	err = rename(home, stale)
	had := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := rename(fresh, home); err != nil {
		if had {
			err = errors.Join(err, rename(stale, home))
		}
		return err
	}
	return nil
}

func (c *collection) write(dir string) error {
	for name, data := range c.files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	for name, target := range c.links {
		if err := os.Symlink(target, filepath.Join(dir, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes temporary directories of killed processes. Those of running processes are younger.
func sweep(cacheDir string) {
	left, _ := filepath.Glob(filepath.Join(cacheDir, ".put-*"))
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.RemoveAll(dir)
		}
	}
}

// Verify checks, offline, that the cache holds exactly the files of rel. The error is [ErrNotCached], a
// [*MismatchError], or an [*IncompleteError] if all that is missing are man pages or libraries that the source lacked.
func Verify(cacheDir string, rel *Release) error {
	home := filepath.Join(cacheDir, rel.File())
	if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w (%s); fetch it, or %s", rel, ErrNotCached, cacheDir, hintFrom)
	}
	want := rel.entries()
	var diffs []Diff
	err := bounded.Walk(home, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(home, file)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(below)
		found, err := describe(file, d)
		if err != nil {
			return err
		}
		w, pinned := want[name]
		delete(want, name)
		if !pinned {
			diffs = append(diffs, Diff{name, "<not pinned>", found})
		} else if found != w.words() {
			diffs = append(diffs, Diff{name, w.words(), found})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: cannot read the cache: %w", rel, err)
	}
	var missing []string
	for name, w := range want {
		if dir, file := path.Split(name); dir == "man/" || dir == "lib/" {
			missing = append(missing, file)
		} else {
			diffs = append(diffs, Diff{name, w.words(), "<missing>"})
		}
	}
	if len(diffs) > 0 {
		slices.SortFunc(diffs, func(a, b Diff) int { return strings.Compare(a.File, b.File) })
		return &MismatchError{Release: rel.String(), Dir: home, Diffs: diffs, Hint: hintCache}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return incomplete(rel, missing)
	}
	return nil
}

func (e entry) words() string {
	if e.link != "" {
		return linkWords(e.link)
	}
	return e.sum
}

// describe describes a file of the cache in the format of entry.words.
func describe(file string, d fs.DirEntry) (string, error) {
	switch {
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		return linkWords(target), err
	case d.Type().IsRegular():
		data, err := bounded.Read(file)
		return sum(data), err
	}
	return "<" + d.Type().String() + ">", nil
}
