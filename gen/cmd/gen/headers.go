// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/project"
)

type headersCmd struct {
	From      string        `help:"${headers_from}" placeholder:"DIR"`
	Project   string        `help:"With --from: project of the headers (default: detected)." placeholder:"NAME"`
	Release   []string      `help:"Only these releases." placeholder:"NAME"`
	Available bool          `help:"Skip releases that cannot be downloaded; a wrong sum still fails."`
	Timeout   time.Duration `help:"Timeout for each release." default:"5m"`
}

func (c *headersCmd) Run(t tree) error {
	lock, err := t.lock()
	if err != nil {
		return err
	}
	names := c.Release
	if c.From != "" && len(names) == 0 {
		rel, err := c.detect(lock)
		if err != nil {
			return err
		}
		names = []string{rel.File()}
	}
	var failed []error
	for _, name := range names {
		if len(lock.Find(name)) == 0 {
			failed = append(failed, fmt.Errorf("release %s is not pinned in headers.lock (pinned: %s)", name,
				strings.Join(filesOf(lock), ", ")))
		}
	}
	for _, rel := range lock.Releases {
		if len(names) > 0 && !named(rel, names) {
			continue
		}
		if err := c.provide(t, rel); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// detect returns the release of a directory. If no release matches, it returns the primary release of the project, so
// that the error names every file that differs.
func (c *headersCmd) detect(lock *fetch.Lock) (*fetch.Release, error) {
	var candidate *fetch.Release
	for _, p := range project.All {
		if c.Project != "" && c.Project != p.Name {
			continue
		}
		if rel := lock.Detect(p.Name, c.From); rel != nil {
			return rel, nil
		}
		if candidate == nil && (c.Project != "" || fetch.Has(p.Name, c.From)) {
			candidate = lock.Primary(p.Name)
		}
	}
	if candidate == nil {
		candidate = lock.Releases[0]
	}
	return candidate, nil
}

// named reports whether names contains the release, by its number or the base of its file names.
func named(rel *fetch.Release, names []string) bool {
	return contains(names, rel.Name) || contains(names, rel.File())
}

func filesOf(lock *fetch.Lock) []string {
	var all []string
	for _, rel := range lock.Releases {
		all = append(all, rel.File())
	}
	return all
}

func (c *headersCmd) provide(t tree, rel *fetch.Release) error {
	logf := func(format string, args ...any) { fmt.Printf(rel.String()+": "+format+"\n", args...) }
	log := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if c.From != "" { // requested explicitly, so the cache is not used
		missing, err := fetch.FromDir(c.From, rel, t.cache(), log)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			logf("headers match their pins; %d man pages and libraries in %s are missing or differ, not compared: %s",
				len(missing), c.From, strings.Join(missing, " "))
			return nil
		}
		logf("copied from %s, all sums match", c.From)
		return nil
	}
	damaged := fetch.Verify(t.cache(), rel)
	if damaged == nil {
		logf("in headers/cache, all sums match")
		return nil
	}
	incomplete := (*fetch.IncompleteError)(nil)
	if errors.Is(damaged, fetch.ErrNotCached) || errors.As(damaged, &incomplete) {
		damaged = nil
	} else {
		logf("headers/cache does not match its pins, downloading it again:\n%v", damaged)
	}
	if project.Named(rel.Project).GOOS != "" { // no Debian archive has them
		logf("not in headers/cache, its headers are not compared; take them from a source tree with make headers FROM=DIR")
		return damaged
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	err := fetch.FromArchive(ctx, rel, t.cache(), log)
	switch {
	case err == nil:
		logf("downloaded, all sums match")
	case errors.As(err, &incomplete): // it remains unavailable, and record works without it
		logf("downloaded, except %s: the archive only has a rebuild, so their symbols are not compared",
			strings.Join(incomplete.Libraries, " and "))
		return nil
	case damaged != nil:
		return fmt.Errorf("%w\ndownloading it again failed: %w", damaged, err) // other commands read the cache
	case c.Available && unavailable(err):
		logf("UNAVAILABLE, its headers are not compared: %v", err)
		return nil
	}
	return err
}

// unavailable distinguishes an unavailable release from one whose files differ from their pins, which always fails.
func unavailable(err error) bool {
	mismatch := (*fetch.MismatchError)(nil)
	return err != nil && !errors.As(err, &mismatch)
}

type pinCmd struct {
	Project string        `help:"Project of the release." default:"rdma-core" placeholder:"NAME"`
	Release string        `required:"" help:"Name of the release: 56.1." placeholder:"NAME"`
	Version string        `required:"" help:"Version of its Debian packages: 56.1-1." placeholder:"VERSION"`
	Suite   []string      `help:"Archive suites that have this version: trixie." placeholder:"SUITE"`
	From    string        `help:"Read the files from a directory, not from the archive." placeholder:"DIR"`
	Primary bool          `help:"Make it the primary release, the source of generated/."`
	Timeout time.Duration `help:"Download timeout." default:"5m"`
}

func (c *pinCmd) Run(t tree) error {
	if err := fetch.CheckName(c.Release, c.Version, c.Suite...); err != nil {
		return usageError{err}
	}
	lock, err := t.lock()
	if err != nil {
		return err
	}
	of, err := projectNamed(c.Project)
	if err != nil {
		return err
	}
	switch {
	case c.From == "" && of.GOOS != "":
		return usagef("--project %s needs --from DIR, since no Debian archive has its headers", of.Name)
	case c.From == "" && len(c.Suite) == 0:
		return usagef("pin needs --suite or --from")
	case c.From != "" && len(c.Suite) == 0:
		c.Suite = []string{"none"}
	}
	rel := unpinnedRelease(of, c.Release, c.Version, c.Suite)
	if c.From != "" {
		return c.pin(t, lock, of, rel, c.From)
	}
	dir, err := os.MkdirTemp("", "goverbs-pin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	if err := fetch.Unpack(ctx, rel, dir,
		func(format string, args ...any) { fmt.Printf(format+"\n", args...) }); err != nil {
		return err
	}
	return c.pin(t, lock, of, rel, dir)
}

// pin records the checksums of the files in dir.
func (c *pinCmd) pin(t tree, lock *fetch.Lock, of *project.Project, rel *fetch.Release, dir string) error {
	if err := fetch.Pin(dir, rel); err != nil {
		return err
	}
	if c.Primary || lock.Primary(of.Name) == nil {
		rel.Role = fetch.Primary
	}
	lock.Put(rel)
	return os.WriteFile(t.at("headers/headers.lock"), lock.Encode(), 0o644)
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// projectNamed returns the project with a name. An unknown name is wrong usage.
func projectNamed(name string) (*project.Project, error) {
	if p := project.Named(name); p != nil {
		return p, nil
	}
	return nil, usagef("unknown --project %s; use one of %s", name, strings.Join(project.Names(), ", "))
}

// unpinnedRelease returns a release that is not pinned yet.
func unpinnedRelease(of *project.Project, name, version string, suites []string) *fetch.Release {
	rel := &fetch.Release{Project: of.Name, Name: name, Role: fetch.Recorded, Suites: suites}
	for _, p := range of.Packages {
		rel.Packages = append(rel.Packages, &fetch.Package{Name: p.Name, Version: version})
	}
	return rel
}
