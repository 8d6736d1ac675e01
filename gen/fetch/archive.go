// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/project"
)

// FromArchive fills the cache of rel from the Debian archive that this machine's apt uses. It installs nothing, needs
// no privileges, and does not change apt's lists. Errors: [ErrNoApt], [ErrNoArchive], [*ArchiveError] if the archive
// cannot be queried, [*GoneError] if it lacks the release, [*MismatchError] if a file differs from its pin, and
// [*IncompleteError] if it has only a rebuild of a library, whose files differ; the cache then holds everything else.
func FromArchive(ctx context.Context, rel *Release, cacheDir string, log Logf) error {
	dir, err := os.MkdirTemp("", "goverbs-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rebuilt, err := unpack(ctx, rel, dir, log)
	if err != nil {
		return err
	}
	src, err := openSource(rel.Project, dir)
	if err != nil {
		return fmt.Errorf("%s: the packages of the archive: %w", rel, err)
	}
	c, err := collect(src, rel, hintArchive)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(c.rebuilt, func(d Diff) bool { return slices.Contains(rebuilt, d.File) })
	lacks := slices.DeleteFunc(slices.Clone(c.missing),
		func(name string) bool { return slices.Contains(rebuilt, name) })
	switch {
	case len(others) > 0:
		return &MismatchError{Release: rel.String(), Dir: src.dir, Diffs: others, Hint: hintArchive}
	case len(lacks) > 0:
		return fmt.Errorf("%s: the archive's packages lack pinned man pages or libraries: %s", rel,
			strings.Join(lacks, ", "))
	}
	if err := c.put(cacheDir, rel); err != nil {
		return err
	}
	log.printf("%s: %d files from the archive agree with headers.lock", rel, len(c.files))
	if len(c.missing) > 0 {
		return incomplete(rel, c.missing)
	}
	return nil
}

const hintArchive = "the archive's package differs from the pinned one; compare them, then pin it or use FROM="

// Unpack downloads the packages of rel and unpacks them below dir without verifying checksums, to pin a new release.
// rel needs only its name, suites and package versions (see [Pin]). For packages with libraries, Unpack sets the
// versions to those found.
func Unpack(ctx context.Context, rel *Release, dir string, log Logf) error {
	_, err := unpack(ctx, rel, dir, log)
	return err
}

// unpack downloads and unpacks packages. Pinned libraries that the archive has only as rebuilds are not unpacked; it
// returns their names. Packages are for amd64 on every machine, since a lock pins one architecture.
func unpack(ctx context.Context, rel *Release, dir string, log Logf) (rebuilt []string, err error) {
	work, err := os.MkdirTemp("", "goverbs-apt-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	a, err := newApt(rel.String(), work)
	if err != nil {
		return nil, err
	}
	a.arch = "amd64"
	mirrors, err := a.mirrors(ctx, rel.Suites)
	if err != nil {
		return nil, err
	}
	rebuilt, gone, failed, err := a.search(ctx, mirrors, rel, dir, log)
	switch {
	case err != nil:
		return nil, err
	case gone == nil:
		return rebuilt, nil
	case len(failed) > 0:
		// a suite that was not queried may have the release
		return nil, errors.Join(failed...)
	}
	return nil, gone
}

// search queries the suites of each mirror until one has every package. gone is nil if the packages were unpacked.
func (a *apt) search(ctx context.Context, mirrors []mirror, rel *Release, dir string, log Logf) (rebuilt []string,
	gone *GoneError, failed []error, err error) {
	var have []string
	first := rel.Packages[0]
	gone = &GoneError{Release: rel.String(), Package: first.Name, Want: first.Version}
	for _, m := range mirrors {
		for _, suite := range rel.Suites {
			log.printf("%s: querying suite %s of %s", rel, suite, m)
			if err := a.use(m, suite); err != nil {
				return nil, nil, nil, err
			}
			err := a.update(ctx, suite)
			if errors.Is(err, errNoSuite) {
				have = append(have, "no suite "+suite)
				continue
			}
			if ctx.Err() != nil {
				return nil, nil, nil, err
			}
			if err != nil {
				failed = append(failed, err)
				if isTrust(err) {
					continue
				}
				break // queries for the other suites of an unreachable mirror would time out too
			}
			all, lacking, found, err := a.choose(ctx, rel)
			if err != nil {
				return nil, nil, nil, err
			}
			if lacking == nil {
				rebuilt, err := a.unpackAll(ctx, rel, all, dir, log)
				return rebuilt, nil, nil, err
			}
			gone.Package, gone.Want = lacking.Name, lacking.Version
			have = append(have, found+" in "+suite)
		}
	}
	gone.Have = strings.Join(have, ", ")
	return nil, gone, failed, nil
}

var trustWords = regexp.MustCompile(`NO_PUBKEY|signature|not signed|no longer signed`)

// isTrust reports whether an error is due to a signature that this machine cannot verify, rather than an unreachable
// mirror.
func isTrust(err error) bool {
	var e *ArchiveError
	return errors.As(err, &e) && trustWords.MatchString(e.all)
}

// chosen is the suite's package in place of a pinned one.
type chosen struct{ name, version string }

// choose selects the packages to download from the suite, or returns the first missing one and the versions found.
func (a *apt) choose(ctx context.Context, rel *Release) (all []chosen, lacking *Package, found string, err error) {
	for _, p := range rel.Packages {
		best, others, err := a.find(ctx, rel, p)
		switch {
		case err != nil:
			return nil, nil, "", err
		case best.version == "" && len(others) == 0:
			return nil, p, "none", nil
		case best.version == "":
			return nil, p, strings.Join(others, " and "), nil
		}
		all = append(all, best)
	}
	return all, nil, "", nil
}

// find finds a package under any of its names. It also accepts a rebuild of the same source (44.0-2+b1), which has the
// same headers and pages, and an update of the release if the archive keeps no other; checksums are verified later. If
// there is no such package, it returns the available versions.
func (a *apt) find(ctx context.Context, rel *Release, p *Package) (best chosen, others []string, err error) {
	names := []string{p.Name}
	of := project.Named(rel.Project)
	if spec := of.Package(p.Name); spec != nil {
		names = spec.Names()
	}
	for _, name := range names {
		have, err := a.versions(ctx, name)
		if err != nil {
			return best, nil, err
		}
		i := slices.Index(have, p.Version)
		if i < 0 {
			i = slices.IndexFunc(have, func(v string) bool { return sourceOf(v) == sourceOf(p.Version) })
		}
		if i < 0 && of.Updates {
			i = slices.IndexFunc(have, func(v string) bool { return strings.HasPrefix(v, rel.Name+".") })
		}
		if i >= 0 {
			return chosen{name, have[i]}, nil, nil
		}
		others = append(others, have...)
	}
	return best, others, nil
}

var rebuild = regexp.MustCompile(`\+b[0-9]+$`)

// sourceOf returns the source version of a package: 44.0-2 for 44.0-2+b1.
func sourceOf(version string) string { return rebuild.ReplaceAllString(version, "") }

func (a *apt) unpackAll(ctx context.Context, rel *Release, all []chosen, dir string, log Logf) (rebuilt []string,
	err error) {
	for i, p := range rel.Packages {
		found, spec := all[i], project.Named(rel.Project).Package(p.Name)
		switch {
		case found == chosen{p.Name, p.Version}:
		case len(p.Libraries) > 0 && found.version != p.Version:
			log.printf("%s: %s %s is a rebuild of the pinned %s: its libraries differ and are skipped",
				rel, p.Name, found.version, p.Version)
			for _, f := range p.Libraries {
				rebuilt = append(rebuilt, f.Name)
			}
			continue
		case spec != nil && len(spec.Libraries) > 0 && len(p.Libraries) == 0: // a package to be pinned
			p.Name, p.Version = found.name, found.version
		}
		log.printf("%s: downloading %s %s", rel, found.name, found.version)
		if err := a.unpack(ctx, found.name, found.version, dir); err != nil {
			return nil, err
		}
	}
	return rebuilt, nil
}
