// SPDX-License-Identifier: BSD-2-Clause

// Package fetch brings the header files and man pages of pinned releases into a cache and proves every byte
// of them against headers.lock.
//
// The cache holds one directory per release: 65.0/include/infiniband/verbs.h and so on, and 65.0/man/ibv_post_send.3,
// uncompressed; gen/project says how the directories of a project are named. It is filled from the Debian archive that
// the machine itself is set up to use ([FromArchive]; nothing is installed), or from an include directory or a source
// tree ([FromDir]). Everything is checked before anything is put into the cache, and a release is put there by one
// rename: it is whole or absent.
package fetch

// Logf receives a line about each slow or unusual step. A nil Logf is silent.
type Logf func(format string, args ...any)

func (l Logf) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}
