// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "fmt"

// Way is a way to call a C function. The zero value is correct for every function; System trades safety for speed.
type Way uint8

const (
	// Blocking notifies Go's scheduler that the goroutine is in C, as cgo does. C may sleep and enter the kernel.
	Blocking Way = iota
	// System runs C on the thread's system stack and keeps the P; any number of goroutines may call at once. While C
	// runs, the world cannot stop. C must not block, call back into Go, or write to a pipe that this process reads. A
	// crash in C ends the process with the signal's message and an incomplete traceback, unless
	// GOVERBS_FULL_TRACEBACK=1 is set.
	System
)

var wayNames = [...]string{Blocking: "blocking", System: "system"}

// String returns the name of the way: blocking or system.
func (w Way) String() string {
	if int(w) < len(wayNames) {
		return wayNames[w]
	}
	return fmt.Sprintf("Way(%d)", uint8(w))
}

// Fast reports whether this build has System. If it is false, System is Blocking.
const Fast = fast

// Direct reports whether System calls switch stacks by a few instructions of this package. It is false if [Fast] is, if
// GOVERBS_FULL_TRACEBACK is set, and if the runtime's records do not have the expected offsets.
func Direct() bool { return direct }
