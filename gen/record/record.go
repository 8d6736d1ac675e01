// SPDX-License-Identifier: BSD-2-Clause

// Package record creates the model of a release from its headers, man pages and libraries.
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

// Release parses the directories include and man of a release and returns its model. includeName and manName appear in
// errors. If man is nil, the model has no tables and no page names.
func Release(of *project.Project, release string, include fs.FS, includeName string, man fs.FS,
	manName string) (*model.Release, error) {
	r, err := parse.Read(parse.Source{Project: of.Name, Release: release, Include: include, Name: includeName,
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

// FromCache reads a pinned release from a cache directory filled by gen/fetch. Headers that belong to another project
// come from that project's primary release in primaries, another such directory. For libraries that the cache lacks,
// the symbols come from recorded, the previous model of the release, or nil.
func FromCache(cache, primaries string, lock *fetch.Lock, pinned *fetch.Release,
	recorded *model.Release) (*model.Release, error) {
	of := project.Named(pinned.Project)
	dir := filepath.Join(cache, pinned.File())
	include, man := filepath.Join(dir, "include"), filepath.Join(dir, "man")
	files, err := WithIncludes(bounded.Dir(include), primaries, lock, of)
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

// libraries reads the libraries in a directory. The symbols of missing ones come from the previous model.
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

// WithIncludes returns the include directory of a project, merged with the headers that it includes from the primary
// release of another project.
func WithIncludes(include fs.FS, cache string, lock *fetch.Lock, of *project.Project) (fs.FS, error) {
	if of.Includes == "" {
		return include, nil
	}
	primary := lock.Primary(of.Includes)
	if primary == nil {
		return nil, fmt.Errorf("headers of %s include those of %s, but headers.lock pins no release of that "+
			"project", of.Name, of.Includes)
	}
	dir := filepath.Join(cache, primary.File(), "include")
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("headers of %s include those of %s: %w; run make headers", of.Name, primary, err)
	}
	return merged{include, bounded.Dir(dir)}, nil
}

// merged is the union of two directories. A file of the first hides the file of the same name in the second.
type merged [2]fs.FS

func (b merged) Open(name string) (fs.File, error) {
	f, err := b[0].Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return b[1].Open(name)
	}
	return f, err
}
