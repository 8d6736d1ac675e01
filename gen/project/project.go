// SPDX-License-Identifier: BSD-2-Clause

// Package project has a row for each project whose headers are read. A project has releases of its own: headers.lock
// pins them, headers/models has a model of each, and one of them is primary, which generated/ is made from.
package project

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Project is a project whose headers are read.
type Project struct {
	Name string // "rdma-core"
	// Prefix stands before the name of a release where files and directories are named after it:
	// headers/models/librpma-1.3.0.json.
	Prefix string
	// Installs are the headers that it puts below an include directory, as patterns of path.Match. An include
	// directory that has Mark is one of the project's.
	Installs []string
	Mark     string
	// Tree is a file that a source tree of it has, or "" where a source tree cannot be read.
	Tree string
	// PkgConfig is the file beside an include directory that states a version, without ".pc", and Version what of it is
	// the release: 65.0 of 1.18.65.0.
	PkgConfig string
	Version   *regexp.Regexp
	// Includes is the project whose headers its own include, or "". The primary release of that project is read beside.
	Includes string
	// Later are headers that older releases do not have.
	Later []string
	// Updates tells that the archive replaces a release's packages by those of its updates, whose versions begin as its
	// name does (7.2.14 for 7.2). Their headers are the release's as long as the sums agree.
	Updates bool
	// Tables tells that its man pages have the tables that gen/tables reads.
	Tables   bool
	Packages []Package // of the Debian archive; those of one release have one version
}

// Package says what is read of a package in every release: every header, so that a new one is noticed, the man pages
// of what is generated, and the libraries whose symbols are recorded. After a change, pin the releases again.
type Package struct {
	Name      string
	Formerly  string   // its name in older suites, where that was another one
	Headers   []string // patterns over the paths below the include directory
	Pages     []string // patterns over the names of the man pages
	Libraries []string // sonames
}

// Names are all that the package is called, the present name first.
func (p *Package) Names() []string {
	if p.Formerly == "" {
		return []string{p.Name}
	}
	return []string{p.Name, p.Formerly}
}

// All are the projects. One stands behind the one whose headers it includes.
var All = []*Project{
	{
		Name: "rdma-core",
		Installs: []string{"infiniband/*.h", "rdma/rdma_cma.h", "rdma/rdma_cma_abi.h", "rdma/rdma_verbs.h",
			"rdma/rsocket.h"},
		Mark:      "infiniband/verbs.h",
		PkgConfig: "libibverbs",
		Version:   regexp.MustCompile(`(?m)^Version: *[0-9]+\.[0-9]+\.([0-9]+(?:\.[0-9]+)+)\s*$`),
		Tree:      "libibverbs/verbs.h",
		Tables:    true,
		Packages: []Package{
			{
				Name:    "libibverbs-dev",
				Headers: []string{"infiniband/*.h"},
				Pages: []string{"ibv_*.3", "mbps_to_ibv_rate.3", "mult_to_ibv_rate.3", "mlx5dv_*.3", "mlx4dv_*.3",
					"efadv_*.3"},
			},
			{
				Name:    "librdmacm-dev",
				Headers: []string{"rdma/*.h"},
				Pages:   []string{"rdma_*.3"},
			},
			{Name: "libibverbs1", Libraries: []string{"libibverbs.so.1"}},
			{Name: "librdmacm1t64", Formerly: "librdmacm1", Libraries: []string{"librdmacm.so.1"}},
		},
	},
	{
		Name:      "librpma",
		Prefix:    "librpma-",
		Installs:  []string{"librpma.h"},
		Mark:      "librpma.h",
		PkgConfig: "librpma",
		Version:   regexp.MustCompile(`(?m)^Version: *([0-9]+(?:\.[0-9]+)+)\s*$`),
		Includes:  "rdma-core",
		Packages: []Package{
			{
				Name:    "librpma-dev",
				Headers: []string{"librpma.h"},
				Pages:   []string{"rpma_*.3"},
			},
			{Name: "librpma0", Libraries: []string{"librpma.so.0"}},
		},
	},
	{
		Name:   "linux",
		Prefix: "linux-",
		Installs: []string{"rdma/*-abi.h", "rdma/ib_user_*.h", "rdma/mlx5_user_ioctl_*.h", "rdma/rdma_netlink.h",
			"rdma/rdma_user_*.h"},
		Mark:    "rdma/ib_user_verbs.h",
		Later:   []string{"rdma/mana-abi.h", "rdma/ionic-abi.h"},
		Updates: true,
		Packages: []Package{
			{
				Name: "linux-libc-dev",
				Headers: []string{"rdma/*-abi.h", "rdma/ib_user_*.h", "rdma/mlx5_user_ioctl_*.h",
					"rdma/rdma_netlink.h", "rdma/rdma_user_*.h"},
			},
		},
	},
}

// Named gives the project of that name, or nil.
func Named(name string) *Project {
	i := slices.IndexFunc(All, func(p *Project) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return All[i]
}

// Unknown is the error for a name that is no project's.
func Unknown(name string) error {
	return fmt.Errorf("%q is not a project: gen/project has rows of %s", name, strings.Join(Names(), ", "))
}

// Of gives the project that installs a header, named as between < and >, or nil where none does.
func Of(header string) *Project {
	for _, p := range All {
		if p.installs(header) {
			return p
		}
	}
	return nil
}

func (p *Project) installs(header string) bool {
	return slices.ContainsFunc(p.Installs, func(pattern string) bool {
		ok, _ := path.Match(pattern, header) // the patterns are well formed: a test reads them all
		return ok
	})
}

// Package gives the package that has, or had, that name, or nil.
func (p *Project) Package(name string) *Package {
	i := slices.IndexFunc(p.Packages, func(q Package) bool { return slices.Contains(q.Names(), name) })
	if i < 0 {
		return nil
	}
	return &p.Packages[i]
}

// Headers are the patterns of the headers that its packages bring.
func (p *Project) Headers() []string {
	var all []string
	for _, q := range p.Packages {
		all = append(all, q.Headers...)
	}
	return all
}

// Pages reports whether man pages are read of any of its packages.
func (p *Project) Pages() bool {
	return slices.ContainsFunc(p.Packages, func(q Package) bool { return len(q.Pages) > 0 })
}

// Brings is the Debian package that brings a header.
func (p *Project) Brings(header string) string {
	for _, of := range p.Packages {
		for _, pattern := range of.Headers {
			if ok, _ := path.Match(pattern, header); ok {
				return of.Name
			}
		}
	}
	return p.Name
}

// Names are the names of all projects.
func Names() []string {
	var all []string
	for _, p := range All {
		all = append(all, p.Name)
	}
	return all
}

// File is what the files and directories of a release are named after.
func (p *Project) File(release string) string { return p.Prefix + release }

// CompareReleases orders "9.0" before "44.0".
func CompareReleases(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		c := cmp.Compare(x, y)
		if errX != nil || errY != nil {
			c = cmp.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return len(as) - len(bs)
}
