// SPDX-License-Identifier: BSD-2-Clause

// Package record makes a model of one release from its headers and man pages.
package record

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/gen/tables"
)

// Release reads include and man, the directories of a release, and gives its model. The names stand in errors.
// Without a directory of man pages (nil) the model has no tables and names no pages.
func Release(release string, include fs.FS, includeName string, man fs.FS, manName string) (*model.Release, error) {
	r, err := parse.Read(parse.Source{Release: release, Include: include, Name: includeName,
		Headers: rules.PublicHeaders()})
	if err != nil {
		return nil, err
	}
	if man == nil {
		return r, nil
	}
	if r.Tables, r.Flags, err = tables.Read(man); err != nil {
		return nil, fmt.Errorf("%s: %w", manName, err)
	}
	pages, err := tables.ReadPages(man)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manName, err)
	}
	pages.Explain(r)
	return r, nil
}

// FromCache reads a pinned release from a cache directory that gen/fetch has filled.
func FromCache(cache string, pinned *fetch.Release) (*model.Release, error) {
	release := pinned.Name
	dir := filepath.Join(cache, release)
	include, man := filepath.Join(dir, "include"), filepath.Join(dir, "man")
	r, err := Release(release, os.DirFS(include), include, os.DirFS(man), man)
	if err != nil {
		return nil, err
	}
	if lent := pinned.StandIns(); len(lent) > 0 {
		r.StandIns = lent
	}
	public := rules.PublicHeaders()
	for _, pattern := range []string{"infiniband/*.h", "rdma/*.h"} {
		found, err := fs.Glob(os.DirFS(include), pattern)
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
