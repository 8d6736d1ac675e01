// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"syscall"
)

var errEINVAL, errEFAULT, errENOMEM error = syscall.EINVAL, errors.New("bad address"), errors.New("out of memory")
