// SPDX-License-Identifier: BSD-2-Clause

// Package record makes a model of one release from its headers, man pages and libraries.
package record

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/gen/symbols"
	"github.com/goverbs/goverbs/gen/tables"
)

// Release reads include and man, the directories of a release of a project, and gives its model. The names stand in
// errors. Without a directory of man pages (nil) the model has no tables and names no pages.
func Release(of *project.Project, release string, include fs.FS, includeName string, man fs.FS,
	manName string) (*model.Release, error) {
	r, err := parse.Read(parse.Source{Release: release, Include: include, Name: includeName,
		Headers: rules.PublicHeaders(of.Name)})
	if err != nil {
		return nil, err
	}
	if man == nil {
		return r, nil
	}
	if of.Tables {
		if r.Tables, r.Flags, err = tables.Read(man); err != nil {
			return nil, fmt.Errorf("%s: %w", manName, err)
		}
	}
	pages, err := tables.ReadPages(man)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manName, err)
	}
	pages.Explain(r)
	return r, nil
}

// FromCache reads a pinned release from a cache directory that gen/fetch has filled. The primary release of the project
// whose headers it includes is read from primaries, which is such a directory, too. Of a library that the cache lacks,
// which fetch.Verify tells, the symbols are those of recorded, the release's model of before, or nil.
func FromCache(cache, primaries string, lock *fetch.Lock, pinned *fetch.Release,
	recorded *model.Release) (*model.Release, error) {
	of := project.Named(pinned.Project)
	dir := filepath.Join(cache, pinned.File())
	include, man := filepath.Join(dir, "include"), filepath.Join(dir, "man")
	files, err := Beside(bounded.Dir(include), primaries, lock, of)
	if err != nil {
		return nil, err
	}
	var pages fs.FS
	if of.Pages() {
		pages = bounded.Dir(man)
	}
	r, err := Release(of, pinned.Name, files, include, pages, man)
	if err != nil {
		return nil, err
	}
	if r.Libraries, err = libraries(filepath.Join(dir, "lib"), pinned, recorded); err != nil {
		return nil, err
	}
	if lent := pinned.StandIns(); len(lent) > 0 {
		r.StandIns = lent
	}
	public := rules.PublicHeaders(of.Name)
	for _, pattern := range of.Headers() {
		found, err := bounded.Glob(include, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			if !slices.Contains(public, name) {
				r.Unread = append(r.Unread, name)
			}
		}
	}
	return r, nil
}

// libraries reads those of a release that a directory has, and takes the others from its model of before.
func libraries(dir string, pinned *fetch.Release, recorded *model.Release) (all []model.Library, err error) {
	for _, p := range pinned.Packages {
		for _, f := range p.Libraries {
			data, err := bounded.Read(filepath.Join(dir, f.Name))
			var lib *model.Library
			if errors.Is(err, fs.ErrNotExist) && recorded != nil {
				lib = recorded.Library(f.Name)
			}
			if err == nil {
				lib, err = symbols.Read(f.Name, bytes.NewReader(data))
			}
			if lib == nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
			all = append(all, *lib)
		}
	}
	return all, nil
}

// Beside gives an include directory of a project as the C reader has to see it: with the headers that it includes of
// another project's primary release.
func Beside(include fs.FS, cache string, lock *fetch.Lock, of *project.Project) (fs.FS, error) {
	if of.Includes == "" {
		return include, nil
	}
	primary := lock.Primary(of.Includes)
	if primary == nil {
		return nil, fmt.Errorf("headers of %s include those of %s, of which headers.lock pins no release", of.Name,
			of.Includes)
	}
	dir := filepath.Join(cache, primary.File(), "include")
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("headers of %s include those of %s: %w; make headers brings them", of.Name, primary, err)
	}
	return both{include, bounded.Dir(dir)}, nil
}

// both is two directories as one. A file that the first has hides that of the second.
type both [2]fs.FS

func (b both) Open(name string) (fs.File, error) {
	f, err := b[0].Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return b[1].Open(name)
	}
	return f, err
}
