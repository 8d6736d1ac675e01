// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
)

type headersCmd struct {
	From      string        `help:"${headers_from}" placeholder:"DIR"`
	Release   []string      `help:"Only these releases." placeholder:"NAME"`
	Available bool          `help:"Report what cannot be had, and go on; a wrong sum still fails."`
	Timeout   time.Duration `help:"For each release." default:"5m"`
}

func (c *headersCmd) Run(t tree) error {
	lock, err := t.lock()
	if err != nil {
		return err
	}
	names := c.Release
	if c.From != "" && len(names) == 0 {
		name := lock.Detect(c.From)
		if name == "" {
			name = lock.Primary().Name // FromDir then names every file that differs
		}
		names = []string{name}
	}
	var failed []error
	for _, rel := range lock.Releases {
		if len(names) > 0 && !contains(names, rel.Name) {
			continue
		}
		if err := c.bring(t, rel); err != nil {
			failed = append(failed, err)
		}
	}
	for _, name := range names {
		if _, err := lock.Release(name); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (c *headersCmd) bring(t tree, rel *fetch.Release) error {
	say := func(format string, args ...any) { fmt.Printf("rdma-core "+rel.Name+": "+format+"\n", args...) }
	log := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if c.From != "" { // asked for by name: what the cache holds is no answer
		missing, err := fetch.FromDir(c.From, rel, t.cache(), log)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			say("headers as pinned; %d man pages are not in %s and were not compared: %s", len(missing), c.From,
				strings.Join(missing, " "))
			return nil
		}
		say("brought from %s, every sum as pinned", c.From)
		return nil
	}
	damaged := fetch.Verify(t.cache(), rel)
	if damaged == nil {
		say("in headers/cache, every sum as pinned")
		return nil
	}
	if lacking := (*fetch.PagesMissingError)(nil); errors.Is(damaged, fetch.ErrNotCached) ||
		errors.As(damaged, &lacking) {
		damaged = nil
	} else {
		say("headers/cache is not as pinned; bringing it again. It was:\n%v", damaged)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	err := fetch.FromArchive(ctx, rel, t.cache(), log)
	switch {
	case err == nil:
		say("brought from the archive, every sum as pinned")
	case damaged != nil:
		return fmt.Errorf("%w\nit could not be brought again: %w", damaged, err) // others read the cache
	case c.Available && cannotBeHad(err):
		say("CANNOT BE HAD, its headers are not compared: %v", err)
		return nil
	}
	return err
}

// cannotBeHad tells a release that is out of reach from one that was brought and is not as pinned, which never passes.
func cannotBeHad(err error) bool {
	mismatch := (*fetch.MismatchError)(nil)
	return err != nil && !errors.As(err, &mismatch)
}

type pinCmd struct {
	Release string        `required:"" help:"Name of the release: 56.1." placeholder:"NAME"`
	Version string        `required:"" help:"Version of its Debian packages: 56.1-1." placeholder:"VERSION"`
	Suite   []string      `required:"" help:"Archive suites that carry it: trixie." placeholder:"SUITE"`
	Primary bool          `help:"Make it the release that generated/ is."`
	Timeout time.Duration `help:"For the download." default:"5m"`
}

func (c *pinCmd) Run(t tree) error {
	if err := fetch.CheckName(c.Release, c.Version, c.Suite...); err != nil {
		return usageError{err}
	}
	lock, err := t.lock()
	if err != nil {
		return err
	}
	rel := &fetch.Release{Name: c.Release, Role: fetch.Recorded, Suites: c.Suite}
	for _, spec := range fetch.Specs {
		rel.Packages = append(rel.Packages, &fetch.Package{Name: spec.Package, Version: c.Version})
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
	if err := fetch.Pin(dir, rel); err != nil {
		return err
	}
	if c.Primary {
		lock.Primary().Role = fetch.Recorded
		rel.Role = fetch.Primary
	}
	kept := []*fetch.Release{}
	for _, old := range lock.Releases {
		if old.Name != rel.Name {
			kept = append(kept, old)
		}
	}
	lock.Releases = append(kept, rel)
	slices.SortFunc(lock.Releases, func(a, b *fetch.Release) int { return -generate.CompareReleases(a.Name, b.Name) })
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
