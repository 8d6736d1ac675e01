// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Role is what a pinned release is for.
type Role string

const (
	Primary  Role = "primary"  // the one release that generated/ is made from
	Recorded Role = "recorded" // recorded for comparison: since which release a thing exists
)

// Lock is the content of headers.lock: what is read, and the sum of every byte of it.
type Lock struct {
	Releases []*Release
}

// Release is a pinned release of rdma-core.
type Release struct {
	Name     string // as upstream numbers it: 65.0
	Role     Role
	Suites   []string // archive suites to ask for it, in this order
	Packages []*Package
}

// Package is a binary package of a release and what is read of it.
type Package struct {
	Name, Version string
	Headers       []File // paths below the include directory
	Pages         []File // man pages, uncompressed
	Links         []Link // man pages that are another name of a page
}

// File is a name and the lower-case hexadecimal sha256 of the content. Of is set where a man page of another release
// stands in for one that could not be had.
type File struct{ Name, Sum, Of string }

// Link is a man page that is a link to another page of its package.
type Link struct{ Name, Target string }

// Release gives the release of that name.
func (l *Lock) Release(name string) (*Release, error) {
	var have []string
	for _, r := range l.Releases {
		if r.Name == name {
			return r, nil
		}
		have = append(have, r.Name)
	}
	return nil, fmt.Errorf("release %s is not pinned in headers.lock (pinned: %s)", name, strings.Join(have, ", "))
}

// Primary gives the release that generated/ is made from; ParseLock sees to it that there is one.
func (l *Lock) Primary() *Release {
	for _, r := range l.Releases {
		if r.Role == Primary {
			return r
		}
	}
	return nil
}

const lockHead = `# What is read of rdma-core, and the sha256 of every byte of it. No upstream text is kept in this repository.
#
#   release NAME ROLE          primary (generated/ is made from it; there is one) or recorded
#   suites NAME...             the archive suites to ask, in this order
#   package NAME VERSION       and what is read of it:
#   header SHA256 PATH         below the include directory
#   page SHA256 NAME           a man page, uncompressed; "of RELEASE" follows where it is another release's, which stands in
#   link NAME -> PAGE          a man page that is another name of a page
#
# Written by a program from the files themselves. Comments other than this one are lost when it is written again.
`

// Encode writes the lock as text that ParseLock reads.
func (l *Lock) Encode() []byte {
	var b strings.Builder
	b.WriteString(lockHead)
	for _, r := range l.Releases {
		fmt.Fprintf(&b, "\nrelease %s %s\nsuites %s\n", r.Name, r.Role, strings.Join(r.Suites, " "))
		for _, p := range r.Packages {
			fmt.Fprintf(&b, "package %s %s\n", p.Name, p.Version)
			for _, f := range p.Headers {
				fmt.Fprintf(&b, "header %s %s\n", f.Sum, f.Name)
			}
			for _, f := range p.Pages {
				fmt.Fprintf(&b, "page %s %s", f.Sum, f.Name)
				if f.Of != "" {
					fmt.Fprintf(&b, " of %s", f.Of)
				}
				b.WriteByte('\n')
			}
			for _, k := range p.Links {
				fmt.Fprintf(&b, "link %s -> %s\n", k.Name, k.Target)
			}
		}
	}
	return []byte(b.String())
}

// StandIns are the man pages that are another release's, with that release; what a page's Markdown is of counts where
// it is there.
func (r *Release) StandIns() map[string]string {
	all := map[string]string{}
	for _, markdown := range []bool{false, true} {
		for _, p := range r.Packages {
			for _, f := range p.Pages {
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

// Differences are the files of a release that are not as another pin of it has them.
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

// entry is what must be at one path of a release's cache: a file with this sum, or a link.
type entry struct{ sum, link string }

func headerPath(name string) string { return path.Join("include", name) }
func pagePath(name string) string   { return path.Join("man", name) }

// entries maps each path of the release's cache, with slashes, to what must be there.
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
	}
	return all
}
