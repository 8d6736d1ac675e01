// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/project"
)

// Role is the purpose of a pinned release.
type Role string

const (
	Primary  Role = "primary"  // the release from which generated/ is generated
	Recorded Role = "recorded" // for comparison, and to date declarations
)

// Lock is the content of headers.lock: the files to read, with their checksums.
type Lock struct {
	Releases []*Release
}

// Release is a pinned release of a project.
type Release struct {
	Project  string // name in gen/project: rdma-core
	Name     string // upstream version: 65.0
	Role     Role
	Suites   []string // archive suites to query, in this order
	Packages []*Package
}

// Package is a binary package of a release and the files read from it.
type Package struct {
	Name, Version string
	Headers       []File // paths below the include directory
	Pages         []File // man pages, uncompressed
	Links         []Link // man pages that are links to another page
	Libraries     []File // shared libraries by their sonames, for amd64
}

// File is a name and the SHA-256 of the content in lower-case hex. Of is the release from which a substituted man page
// or library comes.
type File struct{ Name, Sum, Of string }

// Link is a man page that links to another page of its package.
type Link struct{ Name, Target string }

// String returns the name of the release in messages: rdma-core 65.0.
func (r *Release) String() string { return r.Project + " " + r.Name }

// File returns the base name of its cache directory and its model: 65.0.
func (r *Release) File() string {
	if p := project.Named(r.Project); p != nil { // guaranteed by ParseLock
		return p.File(r.Name)
	}
	return r.Name
}

// Release returns the release of a project with a version.
func (l *Lock) Release(of, name string) (*Release, error) {
	var have []string
	for _, r := range l.Releases {
		if r.Project != of {
			continue
		}
		if r.Name == name {
			return r, nil
		}
		have = append(have, r.Name)
	}
	return nil, fmt.Errorf("%s %s is not pinned in headers.lock (pinned: %s)", of, name, strings.Join(have, ", "))
}

// Find returns the releases of any project with this version or file name.
func (l *Lock) Find(name string) []*Release {
	return slices.DeleteFunc(slices.Clone(l.Releases), func(r *Release) bool {
		return r.Name != name && r.File() != name
	})
}

// Primary returns the primary release of a project, or nil if the project is not pinned.
func (l *Lock) Primary(of string) *Release {
	for _, r := range l.Releases {
		if r.Project == of && r.Role == Primary {
			return r
		}
	}
	return nil
}

// Put pins a release, replacing the pin of the same version. A primary release also replaces the project's primary.
func (l *Lock) Put(rel *Release) {
	kept := []*Release{}
	for _, old := range l.Releases {
		switch {
		case old.Project != rel.Project:
			kept = append(kept, old)
		case old.Name != rel.Name:
			other := *old
			if rel.Role == Primary {
				other.Role = Recorded
			}
			kept = append(kept, &other)
		}
	}
	l.Releases = append(kept, rel)
	slices.SortStableFunc(l.Releases, func(a, b *Release) int {
		return cmp.Or(cmp.Compare(slices.Index(project.Names(), a.Project), slices.Index(project.Names(), b.Project)),
			project.CompareReleases(b.Name, a.Name))
	})
}

const lockHead = `# Files that are read of other projects, with their SHA-256 sums. This repository holds no upstream text.
#
#   release PROJECT NAME ROLE  primary (generated/ is made from it; each project has one) or recorded
#   suites NAME...             archive suites to query, in this order
#   package NAME VERSION       package of the files that follow:
#   header SHA256 PATH         path below the include directory
#   page SHA256 NAME           man page, uncompressed; "of RELEASE" follows if it replaces a page that this release lacks
#   link NAME -> PAGE          man page that is a link to another page
#   library SHA256 SONAME      shared library for amd64, read for its exported symbols; "of RELEASE" as for a page
#
# This file is generated from the files themselves. Comments other than this one are lost when it is written again.
`

// Encode returns the lock as text for ParseLock.
func (l *Lock) Encode() []byte {
	var b strings.Builder
	b.WriteString(lockHead)
	for _, r := range l.Releases {
		fmt.Fprintf(&b, "\nrelease %s %s %s\nsuites %s\n", r.Project, r.Name, r.Role, strings.Join(r.Suites, " "))
		for _, p := range r.Packages {
			fmt.Fprintf(&b, "package %s %s\n", p.Name, p.Version)
			for _, f := range p.Headers {
				fmt.Fprintf(&b, "header %s %s\n", f.Sum, f.Name)
			}
			for _, f := range p.Pages {
				fmt.Fprintf(&b, "page %s\n", f.words())
			}
			for _, k := range p.Links {
				fmt.Fprintf(&b, "link %s -> %s\n", k.Name, k.Target)
			}
			for _, f := range p.Libraries {
				fmt.Fprintf(&b, "library %s\n", f.words())
			}
		}
	}
	return []byte(b.String())
}

func (f File) words() string {
	words := f.Sum + " " + f.Name
	if f.Of != "" {
		words += " of " + f.Of
	}
	return words
}

// StandIns maps substituted man pages and libraries to the releases from which they come. It does not include pages
// whose Markdown is present.
func (r *Release) StandIns() map[string]string {
	all := map[string]string{}
	for _, markdown := range []bool{false, true} {
		for _, p := range r.Packages {
			for _, f := range slices.Concat(p.Pages, p.Libraries) {
				page, is := strings.CutSuffix(f.Name, ".md")
				if is != markdown {
					continue
				}
				delete(all, page)
				if f.Of != "" {
					all[page] = f.Of
				}
			}
		}
	}
	return all
}

// Differences lists the files that differ between two pins of a release.
func (r *Release) Differences(found *Release) []Diff {
	var diffs []Diff
	want, have := r.entries(), found.entries()
	for name, w := range want {
		switch h, ok := have[name]; {
		case !ok:
			diffs = append(diffs, Diff{name, w.words(), "<missing>"})
		case h != w:
			diffs = append(diffs, Diff{name, w.words(), h.words()})
		}
	}
	for name, h := range have {
		if _, ok := want[name]; !ok {
			diffs = append(diffs, Diff{name, "<not pinned>", h.words()})
		}
	}
	slices.SortFunc(diffs, func(a, b Diff) int { return strings.Compare(a.File, b.File) })
	return diffs
}

// entry is the expected content of a path in a release's cache: a file with this checksum, or a link.
type entry struct{ sum, link string }

func headerPath(name string) string  { return path.Join("include", name) }
func pagePath(name string) string    { return path.Join("man", name) }
func libraryPath(name string) string { return path.Join("lib", name) }

// entries maps the slash-separated paths of the release's cache to their expected content.
func (r *Release) entries() map[string]entry {
	all := map[string]entry{}
	for _, p := range r.Packages {
		for _, f := range p.Headers {
			all[headerPath(f.Name)] = entry{sum: f.Sum}
		}
		for _, f := range p.Pages {
			all[pagePath(f.Name)] = entry{sum: f.Sum}
		}
		for _, k := range p.Links {
			all[pagePath(k.Name)] = entry{link: k.Target}
		}
		for _, f := range p.Libraries {
			all[libraryPath(f.Name)] = entry{sum: f.Sum}
		}
	}
	return all
}
