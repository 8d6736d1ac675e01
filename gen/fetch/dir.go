// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// FromDir fills the cache of rel from dir: an include directory (with man pages in ../share/man/man3, compressed or
// not, and libraries in ../lib/x86_64-linux-gnu), a directory of unpacked packages, or a source tree. If a header is
// missing, or a header or man page differs, the error is a [*MismatchError]. FromDir returns the names of missing man
// pages and libraries, which the caller reports: in a source tree, most pages exist only as Markdown until they are
// built. A library from another build differs and counts as missing.
func FromDir(dir string, rel *Release, cacheDir string, log Logf) (missing []string, err error) {
	src, err := openSource(rel.Project, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rel, err)
	}
	c, err := collect(src, rel, "FROM is another release; check it, or omit it to use the archive")
	if err != nil {
		return nil, err
	}
	if err := c.put(cacheDir, rel); err != nil {
		return nil, err
	}
	log.printf("%s: %d files from %s agree with headers.lock", rel, len(c.files), src.dir)
	return c.missing, nil
}

// collection is the verified content of a release's cache.
type collection struct {
	files   map[string][]byte // path in the cache → content
	links   map[string]string
	missing []string // names of man pages and libraries
	rebuilt []Diff   // libraries from another build, which also count as missing
}

// collect reads every pinned file of a source once, verifies it, and returns the verified content.
func collect(src *source, rel *Release, hint string) (*collection, error) {
	c := &collection{files: map[string][]byte{}, links: map[string]string{}}
	var diffs []Diff
	var damaged []error
	note := func(name, want, found string, err error) {
		switch {
		case err != nil:
			damaged = append(damaged, err)
		case want != found:
			diffs = append(diffs, Diff{name, want, found})
		}
	}
	for _, p := range rel.Packages {
		for _, h := range p.Headers {
			data, err := src.header(h.Name)
			if errors.Is(err, fs.ErrNotExist) {
				note(h.Name, h.Sum, "<missing>", nil)
				continue
			}
			note(h.Name, h.Sum, sum(data), err)
			c.files[headerPath(h.Name)] = data
		}
		for _, f := range p.Pages {
			data, err := src.pageText(f.Name)
			if errors.Is(err, fs.ErrNotExist) {
				c.missing = append(c.missing, f.Name)
				continue
			}
			note(f.Name, f.Sum, sum(data), err)
			c.files[pagePath(f.Name)] = data
		}
		for _, k := range p.Links {
			if c.files[pagePath(k.Target)] == nil {
				c.missing = append(c.missing, k.Name)
				continue
			}
			found, err := src.linkTarget(k, sum(c.files[pagePath(k.Target)]))
			note(k.Name, linkWords(k.Target), found, err)
			c.links[pagePath(k.Name)] = k.Target
		}
		for _, f := range p.Libraries {
			data, err := src.library(f.Name)
			found := sum(data)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				c.missing = append(c.missing, f.Name)
			case err == nil && f.Sum != "" && f.Sum != found:
				c.missing = append(c.missing, f.Name)
				c.rebuilt = append(c.rebuilt, Diff{f.Name, f.Sum, found})
			default:
				note(f.Name, f.Sum, found, err)
				c.files[libraryPath(f.Name)] = data
			}
		}
	}
	slices.Sort(c.missing)
	if len(diffs) > 0 {
		mismatch := &MismatchError{Release: rel.String(), Dir: src.dir, Diffs: diffs, Hint: hint}
		damaged = append([]error{mismatch}, damaged...)
	}
	if len(damaged) > 0 {
		return nil, errors.Join(damaged...)
	}
	return c, nil
}

func linkWords(target string) string { return "<link to " + target + ">" }

// Markdown returns the Markdown source of a man page that only the build creates. The error matches fs.ErrNotExist if
// dir lacks it.
func Markdown(of, dir, page string) ([]byte, error) {
	src, err := openSource(of, dir)
	if err != nil {
		return nil, err
	}
	return src.pageText(page + ".md")
}

func (s *source) pageText(name string) ([]byte, error) {
	pg, err := s.page(name)
	if err != nil {
		return nil, err
	}
	return pg.read()
}

// linkTarget describes the file that the source has in place of a link. It accepts the pinned link to a verified page
// if the source is a source tree, whose links the build creates, or an archive without symlinks.
func (s *source) linkTarget(k Link, targetSum string) (string, error) {
	pg, err := s.page(k.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return linkWords(k.Target), nil
	}
	if err != nil || pg.link != "" {
		return linkWords(pg.link), err
	}
	data, err := pg.read()
	if err != nil {
		return "", err
	}
	if sum(data) == targetSum {
		return linkWords(k.Target), nil
	}
	return sum(data), nil
}
