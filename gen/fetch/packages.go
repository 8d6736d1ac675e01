// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Packages are those of one suite of the Debian archive, for an architecture that need not be the machine's. Nothing
// is installed, and the machine's own lists stay as they are.
type Packages struct {
	a       *apt
	mirrors []mirror
}

// OpenPackages finds the archive; it works in dir, which it makes. Suites are those that will be asked for. Errors:
// [ErrNoApt], [ErrNoArchive], [*ArchiveError].
func OpenPackages(ctx context.Context, dir, arch string, suites ...string) (*Packages, error) {
	a, err := newApt("", dir)
	if err != nil {
		return nil, err
	}
	a.arch = arch
	mirrors, err := a.mirrors(ctx, suites)
	return &Packages{a, mirrors}, err
}

// Use turns to a suite; what was known of the one before is forgotten.
func (p *Packages) Use(ctx context.Context, suite string) error {
	var errs []error
	for _, m := range p.mirrors {
		if err := p.a.use(m, suite); err != nil {
			return err
		}
		err := p.a.update(ctx, suite)
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Version is the newest version of a package in the suite, "" when it has none.
func (p *Packages) Version(ctx context.Context, pkg string) (string, error) {
	all, err := p.a.versions(ctx, pkg)
	if len(all) == 0 {
		return "", err
	}
	return all[0], err
}

// Depends lists the packages that a package depends on whose names begin with one of prefixes.
func (p *Packages) Depends(ctx context.Context, pkg string, prefixes ...string) ([]string, error) {
	out, err := p.a.run(ctx, "looking for what "+pkg+" needs", "", "apt-cache", "-c", p.a.conf, "depends",
		"--important", pkg)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			all = append(all, name)
		}
	}
	return all, nil
}

// Unpack downloads the newest version of packages of the suite and unpacks them below dir.
func (p *Packages) Unpack(ctx context.Context, dir string, packages ...string) error {
	for _, pkg := range packages {
		version, err := p.Version(ctx, pkg)
		if err == nil && version == "" {
			err = fmt.Errorf("the archive has no package %s", pkg)
		}
		if err == nil {
			err = p.a.unpack(ctx, pkg, version, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
