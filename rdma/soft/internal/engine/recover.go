// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"runtime/debug"

	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Memory that a program registered may be gone when a device uses it. A copy then panics. Guards recover the panic,
// each for its own side: of a request that is sent (QP.run), of one that arrives (Port.guarded) and of an answer
// (QP.keepData). They retry with recovery.Careful set, so that memory is touched before it is used, and missing memory ends
// in a status. The message itself may lie in the sender's memory, which does not concern the receiver: its guard passes
// the panic on to the sender's guard.

// recovery is the state of these guards.
type recovery struct {
	Careful bool // probe program memory before using it, because some of it was unmapped
	guarded bool // a caller recovers from panics of unmapped memory
	panics  bool // the goroutine that holds the lock has called SetPanicOnFault
	tries   int  // number of restarts of the current request for that reason
}

// attempts is the maximum number of retries of a guard. More than one is needed only if a program unmaps memory while
// it is used.
const attempts = 8

// guard records that the caller recovers, and makes access to missing memory panic. The caller undoes both by calling
// unguard with the result of guard.
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

// guards is the state that unguard restores.
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

// calm records that a request was executed, or ended in a status.
func (r *recovery) calm() {
	if r.Careful {
		r.Careful, r.tries = false, 0
	}
}

// fault converts a panic from access to missing memory to a value. Other panics propagate.
func (r *recovery) fault(panicked any) any {
	if !mem.FaultOf(panicked) {
		panic(panicked)
	}
	return panicked
}

// again makes a guard retry carefully after a panic. Other panics, and too many of them, propagate. The caller holds
// Core.Mu.
func (r *recovery) again(panicked any) {
	gone := r.fault(panicked)
	if r.tries == attempts {
		r.calm()
		panic(gone)
	}
	r.Careful = true
	r.tries++
}
