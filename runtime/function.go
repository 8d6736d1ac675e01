// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/goverbs/internal/yield"
)

// frames are on the heap, because C may call back into Go, which may move the goroutine's stack.
var frames = sync.Pool{New: func() any { return new(pooled) }}

// pooled is a frame of the pool, which belongs to one P.
type pooled struct {
	frame
	yielded time.Time
}

// yieldEvery is less than the 10 ms after which the scheduler retakes the P of a goroutine whenever it is in a call,
// until the goroutine is rescheduled. A goroutine that makes many calls in a row is not rescheduled, and then each call
// costs several thread wake-ups.
const yieldEvery = 4 * time.Millisecond

// shouldYield reports whether the goroutine should yield.
func (p *pooled) shouldYield() bool {
	now := time.Now()
	if now.Sub(p.yielded) < yieldEvery {
		return false
	}
	p.yielded = now
	return true
}

// arguments are passed to functions of software backends, which do not keep them.
var arguments = sync.Pool{New: func() any { return new([maxArgs]uint64) }}

// run calls the function.
func (c *Call) run(args []uintptr) (result uint64, errno Errno, err error) {
	for i, a := range args {
		if c.function.Pointers&(1<<i) != 0 && inSpace(a) {
			if s := spaceOf(a); s != nil {
				return c.software(s.backend, args)
			}
		}
	}
	fn := c.fn
	switch {
	case inSpace(fn):
		return c.software(nil, args)
	case fn == 0:
		if fn, err = c.function.find(); err != nil {
			return 0, 0, err
		}
	}
	if len(args) > maxArgs {
		panic(fmt.Sprintf("goverbs: %s: a function takes %d arguments at most, not %d", c.function.Name, maxArgs,
			len(args)))
	}
	fr := frames.Get().(*pooled)
	fr.frame = frame{fn: fn, errnoLocation: errnoLocation()}
	copy(fr.args[:], args)
	fr.run()
	result = uint64(fr.result)
	errno = Errno(max(int32(fr.errno), 0)) // some functions leave a negative number, not an error, in errno
	overdue := fr.shouldYield()
	frames.Put(fr)
	if overdue {
		yield.Here()
	}
	return result, errno, nil
}

// software calls a function of a software backend: the one at a slot's address, or else the one with the function's
// name.
func (c *Call) software(b Backend, args []uintptr) (uint64, Errno, error) {
	if inSpace(c.fn) {
		var a [6]uint64
		c.registers(a[:], args)
		result, errno := CallSlot(c.fn, &a)
		return result, errno, nil
	}
	replacement := b.Function(c.function.Library.Name, c.function.Name)
	if replacement == nil {
		return 0, 0, &NotSupportedError{Function: c.function.Name, Missing: missingReason(b)}
	}
	a := arguments.Get().(*[maxArgs]uint64) // a copy, so that the arguments of a call stay on the stack
	c.registers(a[:len(args)], args)
	result, errno := replacement(a[:len(args)])
	arguments.Put(a)
	return result, errno, nil
}

// missingReason returns the reason for a function that a backend lacks. A backend other than a software device names
// itself.
func missingReason(b Backend) string {
	if s, ok := b.(fmt.Stringer); ok {
		return "not implemented for " + s.String()
	}
	return "the software device does not have it"
}

// registers writes the arguments, with their upper halves, for a function of a software backend.
func (c *Call) registers(to []uint64, args []uintptr) {
	for i := range min(len(to), len(args)) {
		to[i] = uint64(args[i])
	}
	for i, high := range c.high {
		if i < len(to) {
			to[i] |= uint64(high) << 32
		}
	}
}
