// SPDX-License-Identifier: BSD-2-Clause

// Package fetch copies the headers, man pages and libraries of pinned releases to a cache and verifies every byte
// against headers.lock.
//
// The cache holds one directory per release, with files such as 65.0/include/infiniband/verbs.h and
// 65.0/man/ibv_post_send.3, uncompressed; gen/project defines the directory names. The files come from the Debian
// archive that the machine's apt uses ([FromArchive], which installs nothing), or from an include directory or a source
// tree ([FromDir]). Everything is verified before anything is written to the cache, and a release is added by one
// rename: it is complete or absent.
package fetch

// Logf receives a line about each slow or unusual step. A nil Logf is silent.
type Logf func(format string, args ...any)

func (l Logf) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}
