// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "strconv"

// Errno is a C error number; Plan 9 has none of its own.
type Errno uintptr

func (e Errno) Error() string { return "errno " + strconv.Itoa(int(e)) }

const (
	eopnotsupp Errno = 95
	enosys     Errno = 38
	eagain     Errno = 11
	einval     Errno = 22
)
