// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
)

// ErrNoArchive says that the Debian archive cannot be asked on this machine.
var ErrNoArchive = errors.New("the Debian archive cannot be asked")

const mendArchive = "conformance/vm needs the network and Debian's apt, dpkg-deb and debian-archive-keyring once, " +
	"to fill its cache; " +
	"copy conformance/vm/cache from a machine that has it, or run there"

// archive is the Debian archive's packages for amd64.
type archive struct {
	*fetch.Packages
	log Logf
}

// openArchive finds the archive and works in dir.
func openArchive(ctx context.Context, dir string, log Logf, suites ...string) (*archive, error) {
	packages, err := fetch.OpenPackages(ctx, dir, "amd64", suites...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; %s", ErrNoArchive, err, mendArchive)
	}
	return &archive{packages, log}, nil
}

// unpack downloads the newest version of packages of the suite in use and unpacks them below dir; nothing is installed.
func (a *archive) unpack(ctx context.Context, dir string, packages ...string) error {
	a.log.printf("downloading %s", strings.Join(packages, " "))
	return a.Unpack(ctx, dir, packages...)
}
