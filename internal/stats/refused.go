// SPDX-License-Identifier: BSD-2-Clause

//go:build !plan9

package stats

import "syscall"

// refused is the error of a connection to a socket whose program has ended.
const refused = syscall.ECONNREFUSED
