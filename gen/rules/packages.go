// SPDX-License-Identifier: BSD-2-Clause

// Package rules plans the Go form of a model: names, types, exceptions, and the release that introduced each
// declaration. It reads models and returns plans, which gen/emit prints without further decisions.
package rules

import (
	"path"
	"slices"

	"github.com/goverbs/goverbs/gen/project"
)

// Package is one generated package of types and constants.
type Package struct {
	Name     string   // "ibv"
	Prefixes []string // dropped from Go names: "ibv_" and "IBV_"
	Headers  []string // the headers that it covers, as written between < and >; all belong to one project
	Imports  []string // the packages whose types it uses; the first one also provides the byte-order and address types
	Synopsis string   // completes "Package ibv …"
	Of       string   // the headers' project, if their names do not identify it
	// Methods are the files of gen/emit/internal/methods/NAME with its hand-written methods; nil for all.
	Methods []string
	Verbs   *Verbs // the package of functions; nil for none
}

// Packages lists the generated packages for Linux. A header of a project in gen/project that is not listed here is rejected when
// another header of that project includes it.
var Packages = []Package{
	{
		Name:     "ibv",
		Prefixes: []string{"ibv_", "IBV_"},
		Headers: []string{"infiniband/verbs.h", "infiniband/verbs_api.h", "infiniband/ib_user_ioctl_verbs.h",
			"infiniband/tm_types.h", "infiniband/opcode.h"},
		Synopsis: "provides the types, constants and tables of libibverbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libibverbs", SOName: "libibverbs.so.1", Dropin: true},
	},
	{
		Name:     "rdmacm",
		Prefixes: []string{"rdma_", "RDMA_"},
		Headers: []string{"rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h", "infiniband/sa.h",
			"infiniband/ib.h"},
		Imports: []string{"ibv"},
		Synopsis: "provides the types and constants of librdmacm, the connection manager, in the C layout of 64-bit " +
			"Linux",
		Verbs: &Verbs{Name: "librdmacm", SOName: "librdmacm.so.1", Needs: "libibverbs", Sockets: "rdma/rsocket.h",
			Dropin: true},
	},
	{
		Name:     "mlx5dv",
		Prefixes: []string{"mlx5dv_", "MLX5DV_"},
		Headers:  []string{"infiniband/mlx5dv.h", "infiniband/mlx5_api.h", "infiniband/mlx5_user_ioctl_verbs.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of libmlx5's direct verbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libmlx5", SOName: "libmlx5.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "mlx4dv",
		Prefixes: []string{"mlx4dv_", "MLX4DV_"},
		Headers:  []string{"infiniband/mlx4dv.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of libmlx4's direct verbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libmlx4", SOName: "libmlx4.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "efadv",
		Prefixes: []string{"efadv_", "EFADV_"},
		Headers:  []string{"infiniband/efadv.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of libefa's direct verbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libefa", SOName: "libefa.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "hnsdv",
		Prefixes: []string{"hnsdv_", "HNSDV_"},
		Headers:  []string{"infiniband/hnsdv.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of libhns's direct verbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libhns", SOName: "libhns.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "manadv",
		Prefixes: []string{"manadv_", "MANADV_"},
		Headers:  []string{"infiniband/manadv.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of libmana's direct verbs, in the C layout of 64-bit Linux",
		Verbs:    &Verbs{Name: "libmana", SOName: "libmana.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "ionicdv",
		Prefixes: []string{"ionic_dv_", "IONIC_DV_"},
		Headers:  []string{"infiniband/ionic_dv.h"},
		Imports:  []string{"ibv"},
		Synopsis: "lists the functions of libionic's direct verbs",
		Verbs:    &Verbs{Name: "libionic", SOName: "libionic.so.1", Needs: "libibverbs"},
	},
	{
		Name:     "rpma",
		Prefixes: []string{"rpma_", "RPMA_"},
		Headers:  []string{"librpma.h"},
		Imports:  []string{"ibv"},
		Synopsis: "provides the types and constants of librpma, remote persistent memory access, in the C layout of " +
			"64-bit Linux",
		Verbs: &Verbs{Name: "librpma", SOName: "librpma.so.0", Needs: "librdmacm", Alone: true},
	},
	{
		Name: "uapi",
		Headers: []string{"rdma/ib_user_verbs.h", "rdma/ib_user_ioctl_verbs.h", "rdma/ib_user_ioctl_cmds.h",
			"rdma/rdma_user_ioctl_cmds.h", "rdma/rdma_user_cm.h", "rdma/ib_user_sa.h",
			"rdma/rdma_netlink.h", "rdma/rdma_user_rxe.h", "rdma/siw-abi.h", "rdma/mlx5-abi.h",
			"rdma/mlx5_user_ioctl_cmds.h", "rdma/mlx5_user_ioctl_verbs.h", "rdma/mlx4-abi.h", "rdma/efa-abi.h",
			"rdma/erdma-abi.h", "rdma/irdma-abi.h", "rdma/bnxt_re-abi.h", "rdma/hns-abi.h", "rdma/mana-abi.h",
			"rdma/ionic-abi.h", "rdma/cxgb4-abi.h", "rdma/mthca-abi.h", "rdma/ocrdma-abi.h", "rdma/qedr-abi.h",
			"rdma/vmw_pvrdma-abi.h"},
		Synopsis: "defines the interface between programs and the kernel's RDMA drivers: commands, attributes and " +
			"their " +
			"layouts on 64-bit Linux",
	},
}

// Foreign lists the generated packages for other systems than Linux: types, constants and tables of functions. They
// call no library.
var Foreign = []Package{
	{
		Name:     "freebsd/ibv",
		Of:       "freebsd",
		Prefixes: []string{"ibv_", "IBV_"},
		Headers:  []string{"infiniband/verbs.h", "infiniband/opcode.h"},
		Methods:  []string{"gid.go"},
		Synopsis: "provides the types and constants of FreeBSD's libibverbs, in the C layout of 64-bit FreeBSD",
	},
	{
		Name:     "freebsd/rdmacm",
		Of:       "freebsd",
		Prefixes: []string{"rdma_", "RDMA_"},
		Headers:  []string{"rdma/rdma_cma.h", "rdma/rdma_verbs.h", "infiniband/sa.h", "infiniband/ib.h"},
		Imports:  []string{"freebsd/ibv"},
		Synopsis: "provides the types and constants of FreeBSD's librdmacm, in the C layout of 64-bit FreeBSD",
	},
}

// All lists the packages for Linux, followed by those for other systems.
func All() []Package { return slices.Concat(Packages, Foreign) }

// Ident returns the name in the package clause.
func (p Package) Ident() string { return path.Base(p.Name) }

// GOOS returns the system whose layouts the package has.
func (p Package) GOOS() string {
	if of := project.Named(p.Project()); of != nil && of.GOOS != "" {
		return of.GOOS
	}
	return "linux"
}

// Project returns the project of the package's headers.
func (p Package) Project() string {
	if p.Of != "" {
		return p.Of
	}
	if len(p.Headers) > 0 {
		if of := project.Of(p.Headers[0]); of != nil {
			return of.Name
		}
	}
	return ""
}

// Calling lists the packages that have a package of functions. The kernel's package has none.
func Calling() []Package {
	return slices.DeleteFunc(slices.Clone(Packages), func(p Package) bool { return p.Verbs == nil })
}

// PublicHeaders returns the headers of a project that are read, without duplicates.
func PublicHeaders(project string) []string {
	var all []string
	for _, p := range All() {
		if p.Project() == project {
			all = append(all, p.Headers...)
		}
	}
	return all
}
