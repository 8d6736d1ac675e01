package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/record"
)

// incoming is a release that was read and may become the primary one.
type incoming struct {
	model    *model.Release
	pin      *fetch.Release // as it will stand in the lock
	unpinned error          // why it cannot stand there, or nil
	notes    []string
	files    string // where they lie in the form of a cache, or "" for headers/cache itself
}

// read finds out what FROM is and records its model; the files lie below work meanwhile.
func (c *bumpCmd) read(t tree, lock *fetch.Lock, old *model.Release, work string) (*incoming, error) {
	if info, err := os.Stat(c.From); err == nil && info.IsDir() {
		return c.fromDir(t, lock, old, work)
	}
	if version, suite, ok := strings.Cut(c.From, "@"); ok {
		return c.fromArchive(version, suite, work)
	}
	rel, err := lock.Release(c.From)
	if err != nil {
		return nil, fmt.Errorf("FROM=%s is no directory and no VERSION@SUITE of the archive, and %w", c.From, err)
	}
	cache := t.cache()
	if err := fetch.Verify(cache, rel); err != nil {
		cache = work
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		defer cancel()
		if err := fetch.FromArchive(ctx, rel, cache, say); err != nil {
			return nil, err
		}
	}
	in := &incoming{pin: rel}
	if cache == work {
		in.files = filepath.Join(work, rel.Name)
	}
	in.model, err = record.FromCache(cache, rel.Name)
	return in, err
}

// fromArchive downloads the packages of a version and pins what is in them.
func (c *bumpCmd) fromArchive(version, suite, work string) (*incoming, error) {
	rel := named(releaseOfVersion(version), version, []string{suite})
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	root := filepath.Join(work, "unpacked")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := fetch.Unpack(ctx, rel, root, say); err != nil {
		return nil, err
	}
	if err := fetch.Pin(root, rel); err != nil {
		return nil, err
	}
	if _, err := fetch.FromDir(root, rel, work, say); err != nil {
		return nil, err
	}
	m, err := record.FromCache(work, rel.Name)
	return &incoming{model: m, pin: rel, files: filepath.Join(work, rel.Name)}, err
}

// named is a release that is still to be pinned.
func named(name, version string, suites []string) *fetch.Release {
	rel := &fetch.Release{Name: name, Role: fetch.Recorded, Suites: suites}
	for _, spec := range fetch.Specs {
		rel.Packages = append(rel.Packages, &fetch.Package{Name: spec.Package, Version: version})
	}
	return rel
}

// releaseOfVersion is the upstream part of a package's version: 65.0 of 65.0-1.1.
func releaseOfVersion(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	upstream, _, _ := strings.Cut(version, "-")
	return upstream
}

// fromDir reads an include directory, a directory that packages were unpacked to, or a source tree. Only the first two, with
// their man pages, can be pinned.
func (c *bumpCmd) fromDir(t tree, lock *fetch.Lock, old *model.Release, work string) (*incoming, error) {
	if name := lock.Detect(c.From); name != "" && (c.Release == "" || c.Release == name) {
		rel, err := lock.Release(name)
		if err != nil {
			return nil, err
		}
		return c.collect(t, old, rel, work, nil)
	}
	name := c.Release
	if name == "" {
		if name = releaseOfDir(c.From); name == "" {
			return nil, fmt.Errorf("%s does not tell which release it is: give --release", c.From)
		}
	}
	rel := named(name, c.Version, c.Suite)
	unpinned := fetch.Pin(c.From, rel)
	if unpinned != nil {
		var err error
		if rel, err = likeness(c.From, rel, lock.Primary()); err != nil {
			return nil, err
		}
	} else if c.Version == "" || len(c.Suite) == 0 {
		unpinned = errors.New("which packages of the archive these files are is not known")
	}
	return c.collect(t, old, rel, work, unpinned)
}

// likeness pins by hand what a directory has of the files that another release is pinned with: fetch.FromDir names the sums of
// all that it finds. A source tree lacks the pages that only a build makes.
func likeness(dir string, rel, like *fetch.Release) (*fetch.Release, error) {
	rel.Packages = nil
	for _, p := range like.Packages {
		q := &fetch.Package{Name: p.Name, Version: p.Version}
		for _, h := range p.Headers {
			q.Headers = append(q.Headers, fetch.File{Name: h.Name})
		}
		for _, f := range p.Pages {
			q.Pages = append(q.Pages, fetch.File{Name: f.Name})
		}
		q.Links = slices.Clone(p.Links)
		rel.Packages = append(rel.Packages, q)
	}
	nowhere, err := os.MkdirTemp("", "goverbs-bump-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(nowhere)
	found := map[string]string{}
	_, err = fetch.FromDir(dir, rel, nowhere, nil)
	differs := (*fetch.MismatchError)(nil)
	if !errors.As(err, &differs) {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	for _, d := range differs.Diffs {
		found[d.File] = d.Found
	}
	take := func(files []fetch.File) (kept []fetch.File) {
		for _, f := range files {
			switch sum, differs := found[f.Name]; {
			case !differs:
				kept = append(kept, f) // a page that is not there, which FromDir reports
			case sum != "<missing>":
				kept = append(kept, fetch.File{Name: f.Name, Sum: sum})
			}
		}
		return kept
	}
	for _, p := range rel.Packages {
		p.Headers, p.Pages = take(p.Headers), take(p.Pages)
		p.Links = slices.DeleteFunc(p.Links, func(k fetch.Link) bool { return found[k.Name] != "" })
	}
	return rel, nil
}

// collect brings a directory's files into a cache below work and records them. Man pages that the directory lacks are read from
// the primary release, or, where that is not at hand, its tables are taken as they are.
func (c *bumpCmd) collect(t tree, old *model.Release, rel *fetch.Release, work string, unpinned error) (*incoming, error) {
	missing, err := fetch.FromDir(c.From, rel, work, say)
	if err != nil {
		return nil, err
	}
	in := &incoming{pin: rel, unpinned: unpinned, files: filepath.Join(work, rel.Name)}
	if len(missing) == 0 {
		in.model, err = record.FromCache(work, rel.Name)
		return in, err
	}
	if in.unpinned == nil {
		in.unpinned = fmt.Errorf("%s lacks %d man pages", c.From, len(missing))
	}
	for _, page := range missing {
		text, err := os.ReadFile(filepath.Join(t.cache(), old.Name, "man", page))
		if err != nil {
			return in, c.withoutPages(in, old, rel.Name, work, len(missing))
		}
		dir := filepath.Join(work, rel.Name, "man")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, page), text, 0o644); err != nil {
			return nil, err
		}
	}
	in.notes = append(in.notes, fmt.Sprintf("%d man pages are not in %s; those of %s were read instead", len(missing), c.From, old.Name))
	in.model, err = record.FromCache(work, rel.Name)
	return in, err
}

func (c *bumpCmd) withoutPages(in *incoming, old *model.Release, name, work string, missing int) (err error) {
	include := filepath.Join(work, name, "include")
	if in.model, err = record.Release(name, os.DirFS(include), include, nil, ""); err != nil {
		return err
	}
	in.model.Tables, in.model.Flags, in.model.Unread = old.Tables, old.Flags, old.Unread
	in.notes = append(in.notes, fmt.Sprintf("%d man pages are not in %s; the tables of %s were taken instead, and are not compared", missing, c.From, old.Name))
	return nil
}

var (
	treeVersion    = regexp.MustCompile(`(?mi)^\s*set\s*\(\s*PACKAGE_VERSION\s+"([0-9.]+)"`)
	libraryVersion = regexp.MustCompile(`(?m)^Version: *[0-9]+\.[0-9]+\.([0-9]+(?:\.[0-9]+)+)\s*$`)
)

// releaseOfDir asks a source tree's build file, or the pkg-config file beside an include directory, for the release.
func releaseOfDir(dir string) string {
	for _, place := range []struct {
		pattern string
		version *regexp.Regexp
	}{
		{"CMakeLists.txt", treeVersion},
		{"../lib*/pkgconfig/libibverbs.pc", libraryVersion}, {"../lib/*/pkgconfig/libibverbs.pc", libraryVersion},
		{"usr/lib*/pkgconfig/libibverbs.pc", libraryVersion}, {"usr/lib/*/pkgconfig/libibverbs.pc", libraryVersion},
	} {
		files, _ := filepath.Glob(filepath.Join(dir, place.pattern))
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				if m := place.version.FindSubmatch(text); m != nil {
					return string(m[1])
				}
			}
		}
	}
	return ""
}
