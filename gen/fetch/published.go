// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/project"
)

// published matches the list of installed headers in build files: publish_headers(infiniband verbs.h …).
var published = regexp.MustCompile(`(?m)^\s*publish_headers\s*\(\s*(infiniband|rdma)\s([^)]*)\)`)

// Published lists, by package, the headers of dir that a pin of the project would include. In a source tree, build
// files distinguish installed headers from internal ones.
func Published(of, dir string) (map[string][]string, error) {
	src, err := openSource(of, dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	p := project.Named(of)
	for _, spec := range p.Packages {
		var names []string
		switch {
		case src.tree && p.GOOS != "": // its build files are not read, and the patterns are names
			names = slices.DeleteFunc(slices.Clone(spec.Headers), func(h string) bool {
				return !slices.ContainsFunc(src.find(h), isFile)
			})
		case src.tree:
			names, err = src.publishedFor(spec)
		default:
			names, err = src.matching(spec.Headers)
		}
		if err != nil {
			return nil, err
		}
		all[spec.Name] = names
	}
	return all, nil
}

// matching returns the headers of an include directory that match any of the patterns.
func (s *source) matching(patterns []string) (names []string, err error) {
	for _, pattern := range patterns {
		found, err := bounded.Glob(s.dir, pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	return names, nil
}

// publishedFor parses the build files of a source tree. Headers that librdmacm installs among those of libibverbs
// belong to neither package.
func (s *source) publishedFor(spec project.Package) ([]string, error) {
	var names []string
	for _, pattern := range s.folders {
		if pattern == "kernel-headers/rdma" {
			pattern = path.Dir(pattern)
		}
		files, err := filepath.Glob(filepath.Join(s.dir, pattern, "CMakeLists.txt"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := bounded.Read(file)
			if err != nil {
				return nil, err
			}
			for _, m := range published.FindAllStringSubmatch(string(text), -1) {
				if pattern == "librdmacm" && m[1] != "rdma" {
					continue
				}
				for _, word := range strings.Fields(m[2]) {
					name := path.Join(m[1], path.Base(word))
					if slices.ContainsFunc(spec.Headers,
						func(h string) bool { ok, _ := path.Match(h, name); return ok }) {
						names = append(names, name)
					}
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Locate returns the file of a header (infiniband/verbs.h), or "" if dir lacks it.
func Locate(dir, header string) string {
	p := project.Of(header)
	if p == nil {
		return ""
	}
	if src, err := openSource(p.Name, dir); err == nil {
		for _, file := range src.find(header) {
			if isFile(file) {
				return file
			}
		}
	}
	return ""
}
