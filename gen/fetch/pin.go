// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/project"
)

// Pin fills in the checksums of rel, which has a name, role, suites and package versions, from the files in dir: a
// directory of unpacked packages (see [Unpack]), or an include directory with man pages. gen/project defines which
// files are read.
func Pin(dir string, rel *Release) error {
	src, err := openSource(rel.Project, dir)
	if err != nil {
		return err
	}
	if src.tree && project.Named(rel.Project).Pages() {
		return fmt.Errorf("pin %s: %s is a source tree without the man pages that the build creates; unpack "+
			"the packages", rel, dir)
	}
	for _, p := range rel.Packages {
		of := project.Named(rel.Project)
		spec := of.Package(p.Name)
		if spec == nil {
			return fmt.Errorf("pin %s: unknown package %s; add it to gen/project", rel, p.Name)
		}
		if err := pinPackage(src, p, spec, of.Later); err != nil {
			return fmt.Errorf("pin %s: package %s: %w", rel, p.Name, err)
		}
	}
	return nil
}

// pinPackage fills in the sums of a package; later are the patterns of pages that it may lack.
func pinPackage(src *source, p *Package, spec *project.Package, later []string) error {
	p.Headers, p.Pages, p.Links, p.Libraries = nil, nil, nil, nil
	headers, err := src.headerNames(spec.Headers)
	if err != nil {
		return err
	}
	for _, h := range headers {
		data, err := src.header(h)
		if err != nil {
			return err
		}
		p.Headers = append(p.Headers, File{Name: h, Sum: sum(data)})
	}
	names, err := src.pageNames(spec.Pages)
	if err != nil {
		return err
	}
	for _, name := range names {
		pg, err := src.page(name)
		if err != nil {
			return err
		}
		if pg.link != "" {
			p.Links = append(p.Links, Link{Name: name, Target: pg.link})
			continue
		}
		data, err := pg.read()
		if err != nil {
			return err
		}
		p.Pages = append(p.Pages, File{Name: name, Sum: sum(data)})
	}
	for _, pattern := range spec.Pages {
		matches := func(n string) bool { ok, _ := path.Match(pattern, n); return ok }
		if !slices.ContainsFunc(names, matches) && !slices.Contains(later, pattern) {
			return fmt.Errorf("no man page %s in %s", pattern, strings.Join(src.pageDirs, ", "))
		}
	}
	for _, k := range p.Links {
		if !slices.ContainsFunc(p.Pages, func(f File) bool { return f.Name == k.Target }) {
			return fmt.Errorf("man page %s is a link to %s, which is not among the pages of this package", k.Name,
				k.Target)
		}
	}
	for _, name := range spec.Libraries {
		data, err := src.library(name)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("no library %s in %s", name, strings.Join(src.libraryDirs, ", "))
		}
		if err != nil {
			return err
		}
		p.Libraries = append(p.Libraries, File{Name: name, Sum: sum(data)})
	}
	return nil
}

// headerNames returns the headers of an include directory that match the patterns. Each pattern must match at least one
// header.
func (s *source) headerNames(patterns []string) ([]string, error) {
	var names []string
	for _, pattern := range patterns {
		if s.tree && slices.ContainsFunc(s.find(pattern), isFile) { // a tree has other paths than an include directory
			names = append(names, pattern)
			continue
		}
		found, err := bounded.Glob(s.dir, pattern)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no header %s in %s: %w", pattern, s.dir, fs.ErrNotExist)
		}
		names = append(names, found...)
	}
	return names, nil
}

// Detect returns the pinned release of a project whose headers are all in dir, an include directory or a source tree.
// If several match, it returns the one with the most matching man pages; if none does, nil.
func (l *Lock) Detect(of, dir string) *Release {
	src, err := openSource(of, dir)
	if err != nil {
		return nil
	}
	var found *Release
	most := -1
	for _, r := range l.Releases {
		if r.Project == of && r.headersMatch(src) {
			if n := r.pagesMatch(src); n > most {
				found, most = r, n
			}
		}
	}
	return found
}

// pagesMatch counts the man pages of the source that match their pins.
func (r *Release) pagesMatch(src *source) int {
	n := 0
	for _, p := range r.Packages {
		for _, f := range p.Pages {
			if text, err := src.pageText(f.Name); err == nil && sum(text) == f.Sum {
				n++
			}
		}
	}
	return n
}

// Has reports whether a directory is an include directory or a source tree of a project.
func Has(of, dir string) bool {
	_, err := openSource(of, dir)
	return err == nil
}

func (r *Release) headersMatch(src *source) bool {
	found := false
	for _, p := range r.Packages {
		for _, h := range p.Headers {
			data, err := src.header(h.Name)
			if err != nil || sum(data) != h.Sum {
				return false
			}
			found = true
		}
	}
	return found
}

// pageNames returns the sorted names of the source's man pages that match any of the patterns, without compression
// suffixes.
func (s *source) pageNames(patterns []string) ([]string, error) {
	var names []string
	for _, dir := range s.pageDirs {
		all, err := fs.ReadDir(bounded.Dir(dir), ".")
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			name := strings.TrimSuffix(e.Name(), ".gz")
			for _, pattern := range patterns {
				if ok, err := path.Match(pattern, name); err != nil {
					return nil, fmt.Errorf("pattern %q: %w", pattern, err)
				} else if ok {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
