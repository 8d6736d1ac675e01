// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Packages is one suite of the Debian archive for an architecture, which may differ from the machine's. It installs
// nothing and does not change the machine's package lists.
type Packages struct {
	a       *apt
	mirrors []mirror
}

// OpenPackages finds the archive. It creates dir for its files. suites are those that Use will select. Errors:
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

// Use selects a suite and discards the previous one.
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

// Version returns the newest version of a package in the suite, or "" if the suite lacks it.
func (p *Packages) Version(ctx context.Context, pkg string) (string, error) {
	all, err := p.a.versions(ctx, pkg)
	if len(all) == 0 {
		return "", err
	}
	return all[0], err
}

// Versions lists the versions of a package in the suite, newest first.
func (p *Packages) Versions(ctx context.Context, pkg string) ([]string, error) {
	return p.a.versions(ctx, pkg)
}

// Depends lists the dependencies of a package whose names begin with one of the prefixes.
func (p *Packages) Depends(ctx context.Context, pkg string, prefixes ...string) ([]string, error) {
	out, err := p.a.run(ctx, "looking for dependencies of "+pkg+"", "", "apt-cache", "-c", p.a.conf, "depends",
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

// Unpack downloads the newest versions of packages of the suite and unpacks them below dir.
func (p *Packages) Unpack(ctx context.Context, dir string, packages ...string) error {
	for _, pkg := range packages {
		version, err := p.Version(ctx, pkg)
		if err == nil && version == "" {
			err = fmt.Errorf("the archive has no package %s", pkg)
		}
		if err == nil {
			err = p.UnpackVersion(ctx, dir, pkg, version)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// UnpackVersion downloads a version of a package of the suite and unpacks it below dir.
func (p *Packages) UnpackVersion(ctx context.Context, dir, pkg, version string) error {
	return p.a.unpack(ctx, pkg, version, dir)
}
