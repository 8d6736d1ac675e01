// SPDX-License-Identifier: BSD-2-Clause

package fd

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// Name identifies the file of a descriptor. It returns "" for a negative descriptor.
func Name(fd int32) (string, runtime.Errno) {
	if fd == -1 {
		return "", 0
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(fd), &s); err != nil {
		return "", syscall.EINVAL
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino), 0
}
