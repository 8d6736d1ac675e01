// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
)

// ErrNoArchive reports that the Debian archive cannot be reached from this machine.
var ErrNoArchive = errors.New("the Debian archive cannot be reached")

const archiveHint = "conformance/vm needs the network, and apt, dpkg-deb and debian-archive-keyring of Debian, " +
	"to fill its cache; " +
	"provide them, or copy conformance/vm/cache from another machine"

// archive downloads amd64 packages from the Debian archive.
type archive struct {
	*fetch.Packages
	log Logf
}

// openArchive prepares the archive's package lists below dir.
func openArchive(ctx context.Context, dir string, log Logf, suites ...string) (*archive, error) {
	packages, err := fetch.OpenPackages(ctx, dir, "amd64", suites...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; %s", ErrNoArchive, err, archiveHint)
	}
	return &archive{packages, log}, nil
}

// unpack downloads the newest version of each package in the current suite and unpacks it below dir, without installing
// it.
func (a *archive) unpack(ctx context.Context, dir string, packages ...string) error {
	a.log.printf("downloading %s", strings.Join(packages, " "))
	return a.Unpack(ctx, dir, packages...)
}
