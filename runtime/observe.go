// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "sync/atomic"

// Observation receives the outcome of a call that an observer of [Observe] has received.
type Observation interface {
	// Ended receives C's result.
	Ended(result uint64, errno Errno)
	// Failed follows Ended if the function's convention treats the result as a failure.
	Failed(errno Errno)
}

var observer atomic.Pointer[func(function string, args []uint64) Observation]

// Observe calls f before every C call that is made with [Call], the control path; a nil f ends this. The arguments have
// 64 bits on 32-bit machines, too, and may be addresses of memory of Go or C that stay valid until the call has ended.
// It is for traces: posts and polls of queues do not use Call.
func Observe(f func(function string, args []uint64) Observation) {
	if f == nil {
		observer.Store(nil)
	} else {
		observer.Store(&f)
	}
}

// watched makes the call with an observer. It has a copy of the arguments, so that those of other calls stay on the
// stack.
func (c *Call) watched(f func(string, []uint64) Observation, args []uintptr) (uint64, Errno, error) {
	whole := make([]uint64, len(args))
	c.registers(whole, args)
	c.observed = f(c.function.Name, whole)
	result, errno, err := c.make(args)
	c.observed.Ended(result, errno)
	return result, errno, err
}
