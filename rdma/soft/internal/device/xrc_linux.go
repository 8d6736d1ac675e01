package device

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// fileName tells which file a descriptor is of; "" is for none.
func fileName(fd int32) (string, runtime.Errno) {
	if fd == -1 {
		return "", 0
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(fd), &s); err != nil {
		return "", einval
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino), 0
}
