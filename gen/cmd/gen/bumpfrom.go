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

// incoming is a release that was read and may become primary.
type incoming struct {
	model    *model.Release
	pin      *fetch.Release // entry for headers.lock
	unpinned error          // why it cannot be pinned, or nil
	notes    []string
	files    string // cache directory that holds the files, or "" for headers/cache
}

// read determines the kind of FROM and records its model, with files below work.
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
		return nil, usagef("%s is pinned, but not as a release of %s; give --project %s", others[0], c.Project,
			others[0].Project)
	}
	if err != nil {
		return nil, fmt.Errorf("FROM=%s is neither a directory nor VERSION@SUITE, and %w", c.From, err)
	}
	cache := t.cache()
	kept, err := symbolsKept(fetch.Verify(cache, rel))
	if err != nil {
		cache = work
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		defer cancel()
		if kept, err = symbolsKept(fetch.FromArchive(ctx, rel, cache, logf)); err != nil {
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

// keptNotes returns a note about libraries whose symbols were not read.
func keptNotes(rel *fetch.Release, libraries []string) []string {
	if len(libraries) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s cannot be downloaded as pinned in headers.lock: keeping the symbols that are "+
		"recorded for %s", strings.Join(libraries, " and "), rel)}
}

// fromArchive downloads the packages of a version and pins their files.
func (c *bumpCmd) fromArchive(t tree, lock *fetch.Lock, version, suite, work string) (*incoming, error) {
	rel := c.unpinned(releaseOfVersion(version), version, []string{suite})
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	root := filepath.Join(work, "unpacked")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := fetch.Unpack(ctx, rel, root, logf); err != nil {
		return nil, err
	}
	if err := fetch.Pin(root, rel); err != nil {
		return nil, err
	}
	rel, notes, err := resolvePin(lock, rel, c.From)
	if err != nil {
		return nil, err
	}
	if _, err := fetch.FromDir(root, rel, work, nil); err != nil {
		return nil, err
	}
	m, err := c.record(t, lock, work, rel)
	return &incoming{model: m, pin: rel, notes: notes, files: filepath.Join(work, rel.File())}, err
}

// resolvePin returns the pin of a release from the archive: the existing one if its files are the same. Files of a
// package version never change. A pin of another version, or of files from no archive, is replaced with a note.
func resolvePin(lock *fetch.Lock, found *fetch.Release, from string) (pin *fetch.Release, notes []string, err error) {
	pinned, err := lock.Release(found.Project, found.Name)
	if err != nil {
		logTaken(found, "the archive")
		return found, nil, nil
	}
	diffs := pinned.Differences(found)
	has := pinned.Packages[0].Version
	switch {
	case slices.Contains(pinned.Suites, noSuite):
		return found, []string{fmt.Sprintf("replacing the pin of %s, which named no archive: %s", found.Name,
			changedFiles(diffs))}, nil
	case len(diffs) == 0:
		logPinned(pinned)
		return pinned, nil, nil
	case has == found.Packages[0].Version:
		return nil, nil, &fetch.MismatchError{
			Release: pinned.Name, Dir: from, Diffs: diffs,
			Hint: "the archive replaced packages of the pinned version; find out which " +
				"ones are genuine",
		}
	}
	return found, []string{fmt.Sprintf("replacing the pin of %s, which named version %s: %s", found.Name, has,
		changedFiles(diffs))}, nil
}

// changedFiles returns the names of the files that differ.
func changedFiles(diffs []fetch.Diff) string {
	if len(diffs) == 0 {
		return "all files are the same"
	}
	var all []string
	for _, d := range diffs {
		all = append(all, d.File)
	}
	return "changed files: " + strings.Join(all, " ")
}

// unpinned returns a release that is not yet pinned.
func (c *bumpCmd) unpinned(name, version string, suites []string) *fetch.Release {
	return unpinnedRelease(project.Named(c.Project), name, version, suites)
}

// releaseOfVersion returns the upstream part of a package version: 65.0 for 65.0-1.1.
func releaseOfVersion(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	upstream, _, _ := strings.Cut(version, "-")
	return upstream
}

// fromDir reads an include directory, a directory of unpacked packages, or a source tree.
func (c *bumpCmd) fromDir(t tree, lock *fetch.Lock, old *model.Release, work string) (*incoming, error) {
	name := c.Release
	if found := lock.Detect(c.Project, c.From); found != nil && (name == "" || name == found.Name) {
		name = found.Name
	}
	if name == "" {
		if name = c.releaseOfDir(); name == "" {
			return nil, fmt.Errorf("%s does not name its release; give --release", c.From)
		}
	}
	if err := fetch.CheckName(name, ""); err != nil {
		return nil, fmt.Errorf("%s calls itself %w; give --release", c.From, err)
	}
	if c.Version != "" && releaseOfVersion(c.Version) != name {
		return nil, usagef("--version %s belongs to release %s, but %s is %s", c.Version, releaseOfVersion(c.Version),
			c.From, name)
	}
	if rel, err := lock.Release(c.Project, name); err == nil {
		return c.fromPinned(t, lock, old, rel, work)
	}
	rel := c.unpinned(name, c.Version, c.Suite)
	var notes []string
	if c.Version == "" {
		rel = c.unpinned(name, name, []string{noSuite})
		notes = append(notes, fmt.Sprintf("no archive is known to have packages of %s: headers.lock records suite %s, "+
			"and make headers cannot download it "+
			"on other machines; once an archive has them, bump again with FROM=VERSION@SUITE", name, noSuite))
	}
	if lacks := fetch.Pin(c.From, rel); lacks != nil {
		primary := lock.Primary(c.Project)
		var err error
		if rel, err = pinLike(c.From, rel, primary); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("only the headers that %s installs and the man pages that "+
			"%s pins were read: %v", c.From, primary.Name, lacks))
	}
	in, err := c.collect(t, lock, old, rel, work, notes)
	if err == nil {
		logTaken(rel, c.From)
	}
	return in, err
}

// fromPinned reads a directory of a release that is already pinned. Its files must match the pin, which does not
// change.
func (c *bumpCmd) fromPinned(t tree, lock *fetch.Lock, old *model.Release, rel *fetch.Release, work string) (*incoming,
	error) {
	if c.Version != "" {
		return nil, usagef("--version and --suite are only for new releases; %s is pinned as version %s of %s",
			rel.Name, rel.Packages[0].Version, strings.Join(rel.Suites, " "))
	}
	in, err := c.collect(t, lock, old, rel, work, nil)
	if err != nil {
		return nil, err
	}
	logPinned(rel)
	installs, err := fetch.Published(c.Project, c.From)
	if err != nil {
		return nil, err
	}
	for _, p := range rel.Packages {
		if more := unpinned(p, installs[p.Name]); len(more) > 0 {
			in.notes = append(in.notes, fmt.Sprintf("%s has headers that the pin of %s lacks; they were not read: "+
				"%s (give --release NAME if it is another release)",
				c.From, rel.Name, strings.Join(more, " ")))
		}
	}
	return in, nil
}

// unpinned returns those of the named headers that a package's pin lacks.
func unpinned(p *fetch.Package, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(p.Headers, func(h fetch.File) bool { return h.Name == name })
	})
}

// logTaken reports that files are pinned without a comparison.
func logTaken(rel *fetch.Release, from string) {
	logf("%s: pinning the files from %s without a comparison; headers.lock has no sums of them", rel,
		from)
}

func logPinned(rel *fetch.Release) {
	logf("%s is already pinned with the same sums", rel)
}

// noSuite is the suite in headers.lock for a release that no archive is known to have.
const noSuite = "none"

var treeVersion = regexp.MustCompile(`(?mi)^\s*set\s*\(\s*PACKAGE_VERSION\s+"([0-9.]+)"`)

// releaseOfDir reads the release from the build file of a source tree, or from the pkg-config file next to an include
// directory.
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
