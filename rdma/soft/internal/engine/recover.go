// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"runtime/debug"

	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Registered memory may be unmapped when a device uses it. A copy then panics. Guards recover the panic, each for its
// own side: of a request being sent (QP.run), of an arriving one (Port.guarded) and of an answer (QP.takeLateData).
// They retry with recovery.Careful set: memory is touched before it is used, and unmapped memory ends in a status. The
// message itself may lie in the sender's memory, in which case the receiver's guard propagates the panic to the
// sender's guard.

// recovery is the state of the guards.
type recovery struct {
	Careful bool // touch memory of programs before using it: some of it was unmapped
	guarded bool // a caller recovers faults
	panics  bool // the goroutine that holds the lock has called SetPanicOnFault
	tries   int  // retries of the request being sent
}

// attempts is the maximum number of retries. More than one is needed only if a program unmaps memory while it is used.
const attempts = 8

// guard records that the caller recovers faults, and makes access to unmapped memory panic. unguard, called with the
// result, undoes both.
func (r *recovery) guard() (before guards) {
	before = guards{guarded: r.guarded, panics: true}
	if !r.guarded {
		if !r.panics {
			before.panics = debug.SetPanicOnFault(true)
		}
		r.guarded = true
	}
	return before
}

// guards is the state before a guard.
type guards struct {
	guarded bool
	panics  bool
}

func (r *recovery) unguard(before guards) {
	if !before.guarded {
		r.guarded = false
		if !before.panics {
			debug.SetPanicOnFault(false)
		}
	}
}

// endRecovery records that a request was executed or ended in a status.
func (r *recovery) endRecovery() {
	if r.Careful {
		r.Careful, r.tries = false, 0
	}
}

// fault returns the value of a panic caused by unmapped memory. Other panics propagate.
func (r *recovery) fault(panicked any) any {
	if !mem.FaultOf(panicked) {
		panic(panicked)
	}
	return panicked
}

// attempt calls f, and returns its panic if memory is unmapped.
func (r *recovery) attempt(f func()) (gone any) {
	done, before := false, r.guard()
	defer func() {
		r.unguard(before)
		if !done {
			gone = r.fault(recover())
		}
	}()
	f()
	done = true
	return nil
}

// repeat is attempt for a function that reads data of a message. It repeats the call carefully if other memory is
// unmapped.
func (r *recovery) repeat(data []mem.Segment, f func()) (gone any) {
	if gone = r.attempt(f); gone == nil {
		return nil
	}
	defer func(before bool) { r.Careful = before }(r.Careful)
	for range attempts {
		if !mem.TouchAll(data) {
			break
		}
		r.Careful = true
		if gone = r.attempt(f); gone == nil {
			break
		}
	}
	return gone
}

// again prepares a careful retry after a fault. It propagates other panics, and a fault after too many retries. The
// caller holds Core.Mu.
func (r *recovery) again(panicked any) {
	gone := r.fault(panicked)
	if r.tries == attempts {
		r.endRecovery()
		panic(gone)
	}
	r.Careful = true
	r.tries++
}
