// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/project"
)

// Valid names. Since they become file names and command arguments, "../" and "-o" must be rejected.
var (
	releaseName = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*$`)
	suiteName   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	versionText = regexp.MustCompile(`^[0-9][0-9A-Za-z.+~:-]*$`)
	headerName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./-]*\.h$`)
	pageName    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\.[0-9](\.md)?$`)
	libraryName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_+-]*\.so\.[0-9]+$`)
	sumText     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// CheckName rejects an invalid release number, package version or suite name. Empty arguments are not checked.
func CheckName(release, version string, suites ...string) error {
	switch {
	case release != "" && !releaseName.MatchString(release):
		return fmt.Errorf("%q is not the number of a release, such as 65.0", release)
	case version != "" && !versionText.MatchString(version):
		return fmt.Errorf("%q is not the version of a package, such as 65.0-1.1", version)
	}
	for _, s := range suites {
		if !suiteName.MatchString(s) {
			return fmt.Errorf("%q is not the name of a suite, such as sid", s)
		}
	}
	return nil
}

// ParseLock parses a lock. name is the file name in errors.
func ParseLock(name string, data []byte) (*Lock, error) {
	p := lockParser{lock: &Lock{}}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := p.line(n, words); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if len(p.lock.Releases) == 0 {
		return nil, fmt.Errorf("%s: no release is pinned", name)
	}
	if err := p.endRelease(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, p.relLine, err)
	}
	for _, r := range p.lock.Releases {
		if p.lock.Primary(r.Project) == nil {
			return nil, fmt.Errorf("%s: no release of %s is primary: mark one \"release\" line as primary",
				name, r.Project)
		}
	}
	return p.lock, nil
}

type lockParser struct {
	lock    *Lock
	rel     *Release
	relLine int
	pkg     *Package
	seen    map[string]int // cache path → line, in this release
	links   []linkLine
}

type linkLine struct {
	line int
	pkg  *Package
	Link
}

// forms describes the lines of each kind, for errors.
var forms = map[string]string{
	"release": "release PROJECT NAME primary|recorded",
	"suites":  "suites NAME...",
	"package": "package NAME VERSION",
	"header":  "header SHA256 PATH",
	"page":    "page SHA256 NAME [of RELEASE]",
	"link":    "link NAME -> PAGE",
	"library": "library SHA256 SONAME [of RELEASE]",
}

func (p *lockParser) line(n int, w []string) error {
	form, known := forms[w[0]]
	if !known {
		return fmt.Errorf("unknown word %q: want release, suites, package, header, page, link or library", w[0])
	}
	want := len(strings.Fields(form))
	mayBeOf := w[0] == "page" || w[0] == "library"
	switch {
	case w[0] == "suites" && len(w) > want, mayBeOf && len(w) == want && w[3] == "of":
		want = len(w)
	case mayBeOf:
		want -= 2
	}
	if len(w) != want {
		return fmt.Errorf("%q has %d words: want %q", w[0], len(w), form)
	}
	if w[0] != "release" && p.rel == nil {
		return fmt.Errorf("%q before the first \"release\" line", w[0])
	}
	if slices.Contains([]string{"header", "page", "link", "library"}, w[0]) && p.pkg == nil {
		return fmt.Errorf("%q before the first \"package\" line of release %s", w[0], p.rel.Name)
	}
	switch w[0] {
	case "release":
		return p.release(n, w[1], w[2], Role(w[3]))
	case "suites":
		return p.suites(w[1:])
	case "package":
		return p.newPackage(w[1], w[2])
	case "header":
		f, err := p.file(n, w, headerPath(w[2]), headerName)
		p.pkg.Headers = append(p.pkg.Headers, f)
		return err
	case "page":
		f, err := p.file(n, w, pagePath(w[2]), pageName)
		p.pkg.Pages = append(p.pkg.Pages, f)
		return err
	case "library":
		f, err := p.file(n, w, libraryPath(w[2]), libraryName)
		p.pkg.Libraries = append(p.pkg.Libraries, f)
		return err
	case "link":
		return p.link(n, w)
	}
	return nil
}

func (p *lockParser) release(n int, of, name string, role Role) error {
	if err := p.endRelease(); err != nil {
		return fmt.Errorf("%w (it began in line %d)", err, p.relLine)
	}
	if project.Named(of) == nil {
		return project.Unknown(of)
	}
	if !releaseName.MatchString(name) {
		return fmt.Errorf("%q is not the number of a release", name)
	}
	if role != Primary && role != Recorded {
		return fmt.Errorf("role %q of release %s: want %s or %s", role, name, Primary, Recorded)
	}
	for _, r := range p.lock.Releases {
		if r.Project != of {
			continue
		}
		if r.Name == name {
			return fmt.Errorf("release %s is pinned twice", name)
		}
		if r.Role == Primary && role == Primary {
			return fmt.Errorf("release %s is primary, but release %s already is", name, r.Name)
		}
	}
	p.rel, p.relLine = &Release{Project: of, Name: name, Role: role}, n
	p.pkg, p.links, p.seen = nil, nil, map[string]int{}
	p.lock.Releases = append(p.lock.Releases, p.rel)
	return nil
}

// endRelease does the checks that require a complete release.
func (p *lockParser) endRelease() error {
	switch {
	case p.rel == nil:
		return nil
	case len(p.rel.Suites) == 0:
		return fmt.Errorf("release %s has no suites", p.rel.Name)
	case len(p.rel.Packages) == 0:
		return fmt.Errorf("release %s has no package", p.rel.Name)
	}
	for _, k := range p.links {
		if !slices.ContainsFunc(k.pkg.Pages, func(f File) bool { return f.Name == k.Target }) {
			return fmt.Errorf("release %s: link %s in line %d: package %s has no page %s", p.rel.Name, k.Name, k.line,
				k.pkg.Name, k.Target)
		}
	}
	for _, g := range p.rel.Packages {
		if len(g.Headers)+len(g.Pages)+len(g.Libraries) == 0 {
			return fmt.Errorf("release %s: package %s has no header, no page and no library", p.rel.Name, g.Name)
		}
	}
	return nil
}

func (p *lockParser) suites(names []string) error {
	if p.rel.Suites != nil {
		return fmt.Errorf("release %s has a second \"suites\" line", p.rel.Name)
	}
	for i, s := range names {
		if !suiteName.MatchString(s) {
			return fmt.Errorf("%q is not the name of a suite", s)
		}
		if slices.Contains(names[:i], s) {
			return fmt.Errorf("suite %s is named twice", s)
		}
	}
	p.rel.Suites = names
	return nil
}

func (p *lockParser) newPackage(name, version string) error {
	if !packageName.MatchString(name) {
		return fmt.Errorf("%q is not the name of a package", name)
	}
	if !versionText.MatchString(version) {
		return fmt.Errorf("%q is not the version of a package", version)
	}
	for _, g := range p.rel.Packages {
		if g.Name == name {
			return fmt.Errorf("package %s is named twice in release %s", name, p.rel.Name)
		}
	}
	p.pkg = &Package{Name: name, Version: version}
	p.rel.Packages = append(p.rel.Packages, p.pkg)
	return nil
}

// file parses the words of a header, page or library line: checksum, name, and optional release.
func (p *lockParser) file(n int, w []string, path string, shape *regexp.Regexp) (File, error) {
	f := File{Name: w[2], Sum: w[1]}
	if !sumText.MatchString(f.Sum) {
		return f, fmt.Errorf("%q is not a sha256: want 64 lower-case hexadecimal digits", f.Sum)
	}
	if len(w) > 3 {
		if f.Of = w[4]; !releaseName.MatchString(f.Of) || f.Of == p.rel.Name {
			return f, fmt.Errorf("%s %s: %q is not the number of another release", w[0], f.Name, f.Of)
		}
	}
	return f, p.name(n, f.Name, path, shape)
}

func (p *lockParser) link(n int, w []string) error {
	if w[2] != "->" {
		return fmt.Errorf("%q instead of \"->\": want %q", w[2], forms["link"])
	}
	if err := p.name(n, w[1], pagePath(w[1]), pageName); err != nil {
		return err
	}
	if !pageName.MatchString(w[3]) {
		return fmt.Errorf("%q is not the name of a man page", w[3])
	}
	p.pkg.Links = append(p.pkg.Links, Link{Name: w[1], Target: w[3]})
	p.links = append(p.links, linkLine{n, p.pkg, Link{Name: w[1], Target: w[3]}})
	return nil
}

func (p *lockParser) name(n int, name, path string, shape *regexp.Regexp) error {
	if !shape.MatchString(name) || !fs.ValidPath(name) {
		kind := map[*regexp.Regexp]string{headerName: "header", pageName: "man page", libraryName: "library"}[shape]
		return fmt.Errorf("%q is not the name of a %s", name, kind)
	}
	if at, twice := p.seen[path]; twice {
		return fmt.Errorf("%s is pinned twice in release %s (first in line %d)", name, p.rel.Name, at)
	}
	p.seen[path] = n
	return nil
}
