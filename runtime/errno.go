// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "syscall"

// Errno is a C error number.
type Errno = syscall.Errno
