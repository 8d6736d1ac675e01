package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/record"
	"github.com/goverbs/goverbs/gen/tables"
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
	if _, err := fetch.FromDir(root, rel, work, nil); err != nil {
		return nil, err
	}
	sayTaken(rel, "the archive")
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

// fromDir reads an include directory, a directory that packages were unpacked to, or a source tree.
func (c *bumpCmd) fromDir(t tree, lock *fetch.Lock, old *model.Release, work string) (*incoming, error) {
	if name := lock.Detect(c.From); name != "" && (c.Release == "" || c.Release == name) {
		rel, err := lock.Release(name)
		if err != nil {
			return nil, err
		}
		return c.collect(t, old, rel, work, nil, say)
	}
	name := c.Release
	if name == "" {
		if name = releaseOfDir(c.From); name == "" {
			return nil, fmt.Errorf("%s does not tell which release it is: give --release", c.From)
		}
	}
	rel := named(name, c.Version, c.Suite)
	var notes []string
	if c.Version == "" || len(c.Suite) == 0 {
		rel = named(name, name, []string{noSuite})
		notes = append(notes, fmt.Sprintf("no packages of the archive are known for %s: headers.lock says suite %s, and make headers cannot bring it "+
			"elsewhere; once an archive has them, bump again with FROM=VERSION@SUITE", name, noSuite))
	}
	if lacks := fetch.Pin(c.From, rel); lacks != nil {
		primary := lock.Primary()
		var err error
		if rel, err = likeness(c.From, rel, primary); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("%s was read for the headers and man pages that %s is pinned with, and no others: %v", c.From, primary.Name, lacks))
	}
	in, err := c.collect(t, old, rel, work, notes, nil)
	if err == nil {
		sayTaken(rel, c.From)
	}
	return in, err
}

// sayTaken tells of files that no lock knows yet.
func sayTaken(rel *fetch.Release, from string) {
	say("rdma-core %s: the sums of the files from %s are taken as they are; headers.lock has none to compare them with", rel.Name, from)
}

// noSuite stands in the lock for a release that no archive is known to have.
const noSuite = "none"

// likeness pins by hand what a directory has of the files that another release is pinned with: fetch.FromDir names the sums of
// all that it finds. A source tree lacks the pages that only a build makes.
func likeness(dir string, rel, like *fetch.Release) (*fetch.Release, error) {
	version := rel.Packages[0].Version
	rel.Packages = nil
	for _, p := range like.Packages {
		q := &fetch.Package{Name: p.Name, Version: version}
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
// the primary release and pinned with its sums, so that recording again gives the same model; or, where that is not at hand, its
// tables are taken as they are, which cannot be pinned.
func (c *bumpCmd) collect(t tree, old *model.Release, rel *fetch.Release, work string, notes []string, log fetch.Logf) (*incoming, error) {
	missing, err := fetch.FromDir(c.From, rel, work, log)
	if err != nil {
		return nil, err
	}
	in := &incoming{pin: rel, notes: notes, files: filepath.Join(work, rel.Name)}
	if len(missing) > 0 {
		others, marked, err := in.standIns(t.cache(), old.Name, missing, c.From)
		if errors.Is(err, fs.ErrNotExist) {
			in.unpinned = fmt.Errorf("%s lacks %d man pages, and those of %s are not in headers/cache: run make headers first", c.From, len(missing), old.Name)
			return in, c.withoutPages(in, old, rel.Name, work, len(missing))
		}
		if err != nil {
			return nil, err
		}
		if others {
			in.unpinned = fmt.Errorf("%s has its headers but not its man pages: give FROM=%s, which is pinned, to take both from the archive", c.From, rel.Name)
		}
		for _, name := range marked {
			in.notes = append(in.notes, fmt.Sprintf("%s was read as Markdown, for its tables", name))
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
		}
		in.notes = append(in.notes, fmt.Sprintf("%d man pages are not in %s; those of %s were read instead, so what they say is no news of %s: %s",
			len(missing), c.From, old.Name, rel.Name, strings.Join(missing, " ")))
	}
	in.model, err = record.FromCache(work, rel.Name)
	return in, err
}

// standIns takes the missing pages from another release of the cache, and pins those that have no sum yet; beside a page that is not
// the release's own lies its Markdown, where the directory has that. others tells that a page is pinned with another sum, marked
// names the pages that are there as Markdown.
func (in *incoming) standIns(cache, release string, missing []string, dir string) (others bool, marked []string, err error) {
	to := filepath.Join(in.files, "man")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return false, nil, err
	}
	rel := *in.pin
	rel.Packages = nil
	for _, p := range in.pin.Packages {
		q := *p
		q.Pages = slices.Clone(p.Pages)
		for i, f := range p.Pages {
			if !slices.Contains(missing, f.Name) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(cache, release, "man", f.Name))
			if err != nil {
				return false, nil, err
			}
			if err := os.WriteFile(filepath.Join(to, f.Name), text, 0o644); err != nil {
				return false, nil, err
			}
			q.Pages[i].Sum = sum(text)
			if f.Sum == q.Pages[i].Sum {
				continue // the release's own
			}
			others = others || f.Sum != ""
			if !slices.Contains(tables.Markdown, f.Name) {
				continue
			}
			text, err = fetch.Markdown(dir, f.Name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return false, nil, err
			}
			marked = append(marked, f.Name)
			md := fetch.File{Name: f.Name + ".md", Sum: sum(text)}
			if err := os.WriteFile(filepath.Join(to, md.Name), text, 0o644); err != nil {
				return false, nil, err
			}
			if !slices.Contains(q.Pages, md) { // unless the release before was of a source tree, too
				q.Pages = append(q.Pages, md)
			}
		}
		for _, k := range q.Links {
			if !slices.Contains(missing, k.Name) {
				continue
			}
			if err := os.Symlink(k.Target, filepath.Join(to, k.Name)); err != nil {
				return false, nil, err
			}
		}
		rel.Packages = append(rel.Packages, &q)
	}
	in.pin = &rel
	return others, marked, nil
}

func sum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

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
