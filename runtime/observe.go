// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "sync/atomic"

// Observation is told how a call ended that an observer of [Observe] was told of.
type Observation interface {
	// Ended has what C returned.
	Ended(result uint64, errno Errno)
	// Failed comes behind Ended where the function's convention takes the result for a failure.
	Failed(errno Errno)
}

var observer atomic.Pointer[func(function string, args []uint64) Observation]

// Observe has f told of every call that goes by [Call], the control path, before C is called; nil ends that. The
// arguments are whole on 32-bit machines, too, and may name memory of Go or C, which stays there until the call has
// ended. It is for traces: posts and polls of queues do not go this way.
func Observe(f func(function string, args []uint64) Observation) {
	if f == nil {
		observer.Store(nil)
	} else {
		observer.Store(&f)
	}
}

// watched is the call with an observer. It has a copy of the arguments, so that those of other calls stay on the stack.
func (c *Call) watched(f func(string, []uint64) Observation, args []uintptr) (uint64, Errno, error) {
	whole := make([]uint64, len(args))
	c.registers(whole, args)
	c.observed = f(c.function.Name, whole)
	result, errno, err := c.make(args)
	c.observed.Ended(result, errno)
	return result, errno, err
}
