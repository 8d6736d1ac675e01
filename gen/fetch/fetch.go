// SPDX-License-Identifier: BSD-2-Clause

// Package fetch brings the header files and man pages of pinned rdma-core releases into a cache and proves every byte
// of them against headers.lock.
//
// The cache holds one directory per release: <release>/include/infiniband/verbs.h and so on, and
// <release>/man/ibv_post_send.3, uncompressed. It is filled from the Debian archive that the machine itself is set up
// to use ([FromArchive]; nothing is installed), or from an include directory or an rdma-core source tree ([FromDir]).
// Everything is checked before anything is put into the cache, and a release is put there by one rename: it is whole
// or absent.
package fetch

// Logf receives a line about each step that takes time or that a reader may wonder about. A nil Logf is silent.
type Logf func(format string, args ...any)

func (l Logf) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}

// Spec says what is read of a package in every release.
type Spec struct {
	Package string
	Headers []string // patterns (path.Match) over the paths below the include directory
	Pages   []string // patterns over the names of the man pages
}

// Specs is what [Pin] takes into the lock: every header of a package, so that a new one is noticed, and the man pages
// of what is generated. After a change, pin the releases again.
var Specs = []Spec{
	{
		Package: "libibverbs-dev",
		Headers: []string{"infiniband/*.h"},
		Pages: []string{"ibv_*.3", "mbps_to_ibv_rate.3", "mult_to_ibv_rate.3", "mlx5dv_*.3", "mlx4dv_*.3",
			"efadv_*.3"},
	},
	{
		Package: "librdmacm-dev",
		Headers: []string{"rdma/*.h"},
		Pages:   []string{"rdma_*.3"},
	},
}
