// SPDX-License-Identifier: BSD-2-Clause

// Package project lists the projects whose headers the generator reads. Each project has its own releases: headers.lock
// pins them, headers/models contains a model of each, and generated/ is generated from the primary one.
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
	// GOOS is the system whose C headers and layouts the project has; "" for Linux. Its headers have names that Linux's
	// have too, so Of never returns it.
	GOOS string
	// Prefix precedes the release in file and directory names: headers/models/librpma-1.3.0.json.
	Prefix string
	// Installs are path.Match patterns for the headers that it installs. Mark identifies an include directory of the
	// project.
	Installs []string
	Mark     string
	// Tree is a file that identifies a source tree, or "" if source trees cannot be read. Folders are patterns for the
	// directories of a tree that contain installed headers and, in their subdirectory man/, man pages.
	Tree    string
	Folders []string
	// PkgConfig is the base name of the .pc file that contains the version. Version extracts the release: 65.0 from
	// 1.18.65.0.
	PkgConfig string
	Version   *regexp.Regexp
	// Includes is the project whose headers its own headers include, or "". They come from that project's primary
	// release.
	Includes string
	// Later lists headers, and patterns of man pages, that older releases lack.
	Later []string
	// Updates means that the archive replaces the packages of a release with updates, whose versions begin with the
	// release (7.2.14 for 7.2). Their headers are accepted if the checksums match.
	Updates bool
	// its man pages contain tables that gen/tables reads
	Tables   bool
	Packages []Package // Debian packages; all packages of a release have the same version
}

// Package defines the files that are read from a package in every release: all headers, so that new ones are noticed,
// the man pages of generated declarations, and the libraries whose symbols are recorded. After a change, pin the
// releases again.
type Package struct {
	Name      string
	Formerly  string   // former name in older suites, or ""
	Headers   []string // patterns for paths below the include directory
	Pages     []string // patterns for names of man pages
	Libraries []string // sonames
}

// Names returns the names of the package, the present one first.
func (p *Package) Names() []string {
	if p.Formerly == "" {
		return []string{p.Name}
	}
	return []string{p.Name, p.Formerly}
}

// All lists the projects. Each project follows the one whose headers it includes.
var All = []*Project{
	{
		Name: "rdma-core",
		Installs: []string{"infiniband/*.h", "rdma/rdma_cma.h", "rdma/rdma_cma_abi.h", "rdma/rdma_verbs.h",
			"rdma/rsocket.h"},
		Mark:      "infiniband/verbs.h",
		PkgConfig: "libibverbs",
		Version:   regexp.MustCompile(`(?m)^Version: *[0-9]+\.[0-9]+\.([0-9]+(?:\.[0-9]+)+)\s*$`),
		Tree:      "libibverbs/verbs.h",
		Folders:   []string{"libibverbs", "librdmacm", "kernel-headers/rdma", "providers/*"},
		Later: []string{"infiniband/manadv.h", "manadv_*.3", "infiniband/hnsdv.h", "hnsdv_*.3",
			"infiniband/ionic_dv.h", "ionic_dv_*.3"},
		Tables: true,
		Packages: []Package{
			{
				Name:    "libibverbs-dev",
				Headers: []string{"infiniband/*.h"},
				Pages: []string{"ibv_*.3", "mbps_to_ibv_rate.3", "mult_to_ibv_rate.3", "mlx5dv_*.3", "mlx4dv_*.3",
					"efadv_*.3", "hnsdv_*.3", "manadv_*.3", "ionic_dv_*.3"},
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
	{
		Name:   "freebsd",
		GOOS:   "freebsd",
		Prefix: "freebsd-",
		Installs: []string{"infiniband/verbs.h", "infiniband/opcode.h", "infiniband/sa.h", "infiniband/ib.h",
			"rdma/rdma_cma.h", "rdma/rdma_verbs.h"},
		Mark:    "infiniband/verbs.h",
		Tree:    "contrib/ofed/libibverbs/verbs.h",
		Folders: []string{"contrib/ofed/libibverbs", "contrib/ofed/librdmacm"},
		Packages: []Package{
			{
				Name: "freebsd-src",
				Headers: []string{"infiniband/verbs.h", "infiniband/opcode.h", "infiniband/sa.h", "infiniband/ib.h",
					"rdma/rdma_cma.h", "rdma/rdma_verbs.h"},
			},
		},
	},
}

// Linux returns the projects whose headers are those of Linux.
func Linux() []*Project {
	return slices.DeleteFunc(slices.Clone(All), func(p *Project) bool { return p.GOOS != "" })
}

// Named returns the project of that name, or nil.
func Named(name string) *Project {
	i := slices.IndexFunc(All, func(p *Project) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return All[i]
}

// Unknown returns the error for an unknown project name.
func Unknown(name string) error {
	return fmt.Errorf("unknown project %q; gen/project has %s", name, strings.Join(Names(), ", "))
}

// Of returns the project that installs a header on Linux, named as between < and >, or nil.
func Of(header string) *Project {
	for _, p := range All {
		if p.GOOS == "" && p.Has(header) {
			return p
		}
	}
	return nil
}

// Has reports whether the project installs a header.
func (p *Project) Has(header string) bool {
	return slices.ContainsFunc(p.Installs, func(pattern string) bool {
		ok, _ := path.Match(pattern, header) // a test checks that the pattern is valid
		return ok
	})
}

// Package returns the package of that present or former name, or nil.
func (p *Project) Package(name string) *Package {
	i := slices.IndexFunc(p.Packages, func(q Package) bool { return slices.Contains(q.Names(), name) })
	if i < 0 {
		return nil
	}
	return &p.Packages[i]
}

// Headers returns the patterns for the headers in all its packages.
func (p *Project) Headers() []string {
	var all []string
	for _, q := range p.Packages {
		all = append(all, q.Headers...)
	}
	return all
}

// Pages reports whether man pages of any of its packages are read.
func (p *Project) Pages() bool {
	return slices.ContainsFunc(p.Packages, func(q Package) bool { return len(q.Pages) > 0 })
}

// PackageOf returns the Debian package of a header.
func (p *Project) PackageOf(header string) string {
	for _, of := range p.Packages {
		for _, pattern := range of.Headers {
			if ok, _ := path.Match(pattern, header); ok {
				return of.Name
			}
		}
	}
	return p.Name
}

// Names returns the names of all projects.
func Names() []string {
	var all []string
	for _, p := range All {
		all = append(all, p.Name)
	}
	return all
}

// File returns the base of file and directory names of a release.
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
