// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
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
func (c *bumpCmd) read(t tree, lock *fetch.Lock, old *model.Release, work string) (in *incoming, err error) {
	defer func() { err = c.inFrom(err, work) }()
	if isDir(c.From) {
		return c.fromDir(t, lock, old, work)
	}
	if version, suite, ok := strings.Cut(c.From, "@"); ok {
		return c.fromArchive(t, lock, version, suite, work)
	}
	rel, err := lock.Release(c.Project, c.From)
	if others := lock.Find(c.From); err != nil && len(others) > 0 {
		return nil, usagef("%s is pinned, which is no release of %s: give --project %s", others[0], c.Project,
			others[0].Project)
	}
	if err != nil {
		return nil, fmt.Errorf("FROM=%s is no directory and no VERSION@SUITE of the archive, and %w", c.From, err)
	}
	cache := t.cache()
	kept, err := symbolsKept(fetch.Verify(cache, rel))
	if err != nil {
		cache = work
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		defer cancel()
		if kept, err = symbolsKept(fetch.FromArchive(ctx, rel, cache, say)); err != nil {
			return nil, err
		}
	}
	in = &incoming{pin: rel, notes: keptNotes(rel, kept)}
	if cache == work {
		in.files = filepath.Join(work, rel.File())
	}
	in.model, err = c.record(t, lock, cache, rel)
	return in, err
}

// keptNotes says of which libraries no symbols were read.
func keptNotes(rel *fetch.Release, libraries []string) []string {
	if len(libraries) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s could not be had as headers.lock pins them: their symbols are those that are "+
		"recorded of %s", strings.Join(libraries, " and "), rel)}
}

// fromArchive downloads the packages of a version and pins what is in them.
func (c *bumpCmd) fromArchive(t tree, lock *fetch.Lock, version, suite, work string) (*incoming, error) {
	rel := c.unpinned(releaseOfVersion(version), version, []string{suite})
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
	rel, notes, err := settle(lock, rel, c.From)
	if err != nil {
		return nil, err
	}
	if _, err := fetch.FromDir(root, rel, work, nil); err != nil {
		return nil, err
	}
	m, err := c.record(t, lock, work, rel)
	return &incoming{model: m, pin: rel, notes: notes, files: filepath.Join(work, rel.File())}, err
}

// settle gives the pin of a release that was brought from the archive: the one that stands already, where its files
// are the same. A version of packages never changes its files. What another version or no archive's files were pinned
// as is replaced, and the notes say so.
func settle(lock *fetch.Lock, found *fetch.Release, from string) (pin *fetch.Release, notes []string, err error) {
	pinned, err := lock.Release(found.Project, found.Name)
	if err != nil {
		sayTaken(found, "the archive")
		return found, nil, nil
	}
	diffs := pinned.Differences(found)
	has := pinned.Packages[0].Version
	switch {
	case slices.Contains(pinned.Suites, noSuite):
		return found, []string{fmt.Sprintf("the pin of %s, which no archive was known for, is replaced: %s", found.Name,
			listed(diffs))}, nil
	case len(diffs) == 0:
		sayPinned(pinned)
		return pinned, nil, nil
	case has == found.Packages[0].Version:
		return nil, nil, &fetch.MismatchError{
			Release: pinned.Name, Dir: from, Diffs: diffs,
			Mend: "the archive has other packages under the version that was pinned, which must never be: find out " +
				"which are the genuine ones",
		}
	}
	return found, []string{fmt.Sprintf("the pin of %s, which was of version %s, is replaced: %s", found.Name, has,
		listed(diffs))}, nil
}

// listed names files that differ.
func listed(diffs []fetch.Diff) string {
	if len(diffs) == 0 {
		return "every file is the same"
	}
	var all []string
	for _, d := range diffs {
		all = append(all, d.File)
	}
	return "other files are " + strings.Join(all, " ")
}

// unpinned is a release that is still to be pinned.
func (c *bumpCmd) unpinned(name, version string, suites []string) *fetch.Release {
	return unpinnedRelease(project.Named(c.Project), name, version, suites)
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
	name := c.Release
	if found := lock.Detect(c.Project, c.From); found != nil && (name == "" || name == found.Name) {
		name = found.Name
	}
	if name == "" {
		if name = c.releaseOfDir(); name == "" {
			return nil, fmt.Errorf("%s does not tell which release it is: give --release", c.From)
		}
	}
	if err := fetch.CheckName(name, ""); err != nil {
		return nil, fmt.Errorf("%s calls itself %w: give --release", c.From, err)
	}
	if c.Version != "" && releaseOfVersion(c.Version) != name {
		return nil, usagef("--version %s is of release %s, and %s is %s", c.Version, releaseOfVersion(c.Version),
			c.From, name)
	}
	if rel, err := lock.Release(c.Project, name); err == nil {
		return c.fromPinned(t, lock, old, rel, work)
	}
	rel := c.unpinned(name, c.Version, c.Suite)
	var notes []string
	if c.Version == "" {
		rel = c.unpinned(name, name, []string{noSuite})
		notes = append(notes, fmt.Sprintf("no packages of the archive are known for %s: headers.lock says suite %s, "+
			"and make headers cannot bring it "+
			"elsewhere; once an archive has them, bump again with FROM=VERSION@SUITE", name, noSuite))
	}
	if lacks := fetch.Pin(c.From, rel); lacks != nil {
		primary := lock.Primary(c.Project)
		var err error
		if rel, err = likeness(c.From, rel, primary); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("%s was read for the headers that it installs and for the man pages that "+
			"%s is pinned with: %v", c.From, primary.Name, lacks))
	}
	in, err := c.collect(t, lock, old, rel, work, notes)
	if err == nil {
		sayTaken(rel, c.From)
	}
	return in, err
}

// fromPinned reads a directory of a release that is pinned already: its files have to be the pinned ones, and the pin
// stays as it is.
func (c *bumpCmd) fromPinned(t tree, lock *fetch.Lock, old *model.Release, rel *fetch.Release, work string) (*incoming,
	error) {
	if c.Version != "" {
		return nil, usagef("--version and --suite are for a release that is not pinned yet; %s is, as version %s of %s",
			rel.Name, rel.Packages[0].Version, strings.Join(rel.Suites, " "))
	}
	in, err := c.collect(t, lock, old, rel, work, nil)
	if err != nil {
		return nil, err
	}
	sayPinned(rel)
	installs, err := fetch.Published(c.Project, c.From)
	if err != nil {
		return nil, err
	}
	for _, p := range rel.Packages {
		if more := unpinned(p, installs[p.Name]); len(more) > 0 {
			in.notes = append(in.notes, fmt.Sprintf("%s has headers that %s is not pinned with; they were not read: "+
				"%s (give --release NAME if it is another release)",
				c.From, rel.Name, strings.Join(more, " ")))
		}
	}
	return in, nil
}

// unpinned are the headers among names that a package is not pinned with.
func unpinned(p *fetch.Package, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(p.Headers, func(h fetch.File) bool { return h.Name == name })
	})
}

// sayTaken tells of files that no lock knows yet.
func sayTaken(rel *fetch.Release, from string) {
	say("%s: the sums of the files from %s are taken as they are; headers.lock has none to compare them with", rel,
		from)
}

func sayPinned(rel *fetch.Release) {
	say("%s is pinned already, with the same sums: its pin stays as it is", rel)
}

// noSuite stands in the lock for a release that no archive is known to have.
const noSuite = "none"

var treeVersion = regexp.MustCompile(`(?mi)^\s*set\s*\(\s*PACKAGE_VERSION\s+"([0-9.]+)"`)

// releaseOfDir asks a source tree's build file, or the pkg-config file beside an include directory, for the release.
func (c *bumpCmd) releaseOfDir() string {
	of := project.Named(c.Project)
	stated := "pkgconfig/" + of.PkgConfig + ".pc"
	for _, place := range []struct {
		pattern string
		version *regexp.Regexp
	}{
		{"CMakeLists.txt", treeVersion},
		{"../lib*/" + stated, of.Version}, {"../lib/*/" + stated, of.Version},
		{"usr/lib*/" + stated, of.Version}, {"usr/lib/*/" + stated, of.Version},
	} {
		files, _ := filepath.Glob(filepath.Join(c.From, place.pattern))
		for _, file := range files {
			if text, err := bounded.Read(file); err == nil {
				if m := place.version.FindSubmatch(text); m != nil {
					return string(m[1])
				}
			}
		}
	}
	return ""
}
