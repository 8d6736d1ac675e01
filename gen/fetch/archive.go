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
)

// FromArchive fills the cache of rel from the Debian archive that this machine's apt is set up to use. It installs
// nothing, needs no privileges, and leaves apt's own lists alone. Errors: [ErrNoApt], [ErrNoArchive], [*ArchiveError]
// when the archive could not be asked, [*GoneError] when it does not carry the release, [*MismatchError] when a file
// is not as pinned.
func FromArchive(ctx context.Context, rel *Release, cacheDir string, log Logf) error {
	dir, err := os.MkdirTemp("", "goverbs-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := Unpack(ctx, rel, dir, log); err != nil {
		return err
	}
	src, err := openSource(dir)
	if err != nil {
		return fmt.Errorf("rdma-core %s: the packages of the archive: %w", rel.Name, err)
	}
	c, err := collect(src, rel,
		"the archive's package is not the one that was pinned: compare the two, then pin it or use FROM=")
	if err != nil {
		return err
	}
	if len(c.missing) > 0 {
		return fmt.Errorf("rdma-core %s: the archive's packages lack pinned man pages: %s", rel.Name,
			strings.Join(c.missing, ", "))
	}
	if err := c.put(cacheDir, rel); err != nil {
		return err
	}
	log.printf("rdma-core %s: %d files from the archive agree with headers.lock", rel.Name, len(c.files))
	return nil
}

// Unpack downloads the packages of rel and unpacks them below dir, without looking at sums: for FromArchive, and to
// pin a new release, of which only the name, suites and package versions need be known (see [Pin]).
func Unpack(ctx context.Context, rel *Release, dir string, log Logf) error {
	work, err := os.MkdirTemp("", "goverbs-apt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	a, err := newApt(rel.Name, work)
	if err != nil {
		return err
	}
	mirrors, err := a.mirrors(ctx, rel.Suites)
	if err != nil {
		return err
	}
	gone, unasked, err := a.search(ctx, mirrors, rel, dir, log)
	switch {
	case err != nil:
		return err
	case gone == nil:
		return nil
	case len(unasked) > 0:
		// A suite that did not answer may have it, so it is not known to be gone.
		return errors.Join(unasked...)
	}
	return gone
}

// search asks each suite of each mirror until one has every package; gone is nil when the packages were unpacked.
func (a *apt) search(ctx context.Context, mirrors []mirror, rel *Release, dir string, log Logf) (gone *GoneError,
	unasked []error, err error) {
	var have []string
	first := rel.Packages[0]
	gone = &GoneError{Release: rel.Name, Package: first.Name, Want: first.Version}
	for _, m := range mirrors {
		for _, suite := range rel.Suites {
			log.printf("rdma-core %s: asking suite %s of %s", rel.Name, suite, m)
			if err := a.use(m, suite); err != nil {
				return nil, nil, err
			}
			err := a.update(ctx, suite)
			if errors.Is(err, errNoSuite) {
				have = append(have, "no suite "+suite)
				continue
			}
			if ctx.Err() != nil {
				return nil, nil, err
			}
			if err != nil {
				unasked = append(unasked, err)
				if isTrust(err) {
					continue
				}
				break // the other suites of a mirror that cannot be reached would only take as long again
			}
			exact, lacking, found, err := a.choose(ctx, rel)
			if err != nil {
				return nil, nil, err
			}
			if lacking == nil {
				return nil, nil, a.unpackAll(ctx, rel, exact, dir, log)
			}
			gone.Package, gone.Want = lacking.Name, lacking.Version
			have = append(have, found+" in "+suite)
		}
	}
	gone.Have = strings.Join(have, ", ")
	return gone, unasked, nil
}

var trustWords = regexp.MustCompile(`NO_PUBKEY|signature|not signed|no longer signed`)

// isTrust tells a suite whose signature this machine cannot check from a mirror that cannot be reached.
func isTrust(err error) bool {
	var e *ArchiveError
	return errors.As(err, &e) && trustWords.MatchString(e.all)
}

// choose finds the versions to download in the suite in use, or names the first package that is not there and what is
// instead.
func (a *apt) choose(ctx context.Context, rel *Release) (exact []string, lacking *Package, found string, err error) {
	for _, p := range rel.Packages {
		have, err := a.versions(ctx, p.Name)
		if err != nil {
			return nil, nil, "", err
		}
		// A rebuild of the same source (44.0-2+b1) is as good: the sums decide.
		i := slices.IndexFunc(have,
			func(v string) bool { return v == p.Version || strings.HasPrefix(v, p.Version+"+b") })
		if i < 0 {
			if len(have) == 0 {
				have = []string{"none"}
			}
			return nil, p, strings.Join(have, " and "), nil
		}
		exact = append(exact, have[i])
	}
	return exact, nil, "", nil
}

func (a *apt) unpackAll(ctx context.Context, rel *Release, versions []string, dir string, log Logf) error {
	for i, p := range rel.Packages {
		log.printf("rdma-core %s: downloading %s %s", rel.Name, p.Name, versions[i])
		if err := a.unpack(ctx, p.Name, versions[i], dir); err != nil {
			return err
		}
	}
	return nil
}
