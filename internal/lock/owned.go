// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !race

package lock

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2): MEMBARRIER_CMD_PRIVATE_EXPEDITED and its registration.
const (
	barrierNow      = 8
	barrierRegister = 16
)

// ownable reports whether goroutines can own locks.
const ownable = true

// take locks l if the caller is its owner, and otherwise jumps to lockSlow.
func take(l *Lock)

func currentG() uintptr

// barrier executes a memory barrier in every thread of the process. It returns false if it is not available.
func barrier() bool { return registration.done.Load() && membarrier(barrierNow) }

var registration struct {
	begun sync.Once
	done  atomic.Bool
}

// register starts the registration that barriers need. It does not wait; the kernel may take some tens of milliseconds.
func register() {
	registration.begun.Do(func() {
		go func() { registration.done.Store(membarrier(barrierRegister)) }()
	})
}

// membarrier is a variable so that tests can replace it.
var membarrier = func(command uintptr) bool {
	call := unix.Syscall
	if command == barrierNow { // takes microseconds
		call = unix.RawSyscall
	}
	_, _, e := call(unix.SYS_MEMBARRIER, command, 0, 0)
	return e == 0
}
