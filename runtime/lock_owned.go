//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !race

package runtime

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2): MEMBARRIER_CMD_PRIVATE_EXPEDITED, and the registration that it needs.
const (
	barrierNow      = 8
	barrierRegister = 16
)

// lock takes the lock as its owner, or goes to lockSlow.
func lock(l *Lock)

// barrier runs a memory barrier in every thread of the process, and says whether it can.
func barrier() bool {
	if !registered() {
		return false
	}
	_, _, e := unix.RawSyscall(unix.SYS_MEMBARRIER, barrierNow, 0, 0)
	return e == 0
}

// registered tells the kernel that the process wants barriers.
var registered = sync.OnceValue(func() bool {
	_, _, e := unix.RawSyscall(unix.SYS_MEMBARRIER, barrierRegister, 0, 0)
	return e == 0
})
