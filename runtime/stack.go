package runtime

import (
	"errors"
	goruntime "runtime"
	"sync/atomic"
)

// Stack is a private C stack, the fastest way to call. It belongs to the goroutine that called with it first, until that
// goroutine says Release; a call by another goroutine panics with ErrNotOwner and reaches no C code.
//
// A goroutine that ends without Release leaves a Stack that is good for Close only.
//
// C must not block on it, nor call back into Go. A crash in C on a private stack ends the process with a message that names the
// signal and lacks the goroutine's frames. Where [PrivateStacks] says no, calls are made the
// System way, and any goroutine may make them.
type Stack struct {
	top   uintptr
	owner uintptr // the owning goroutine; 0 for none
	lower *Mapping
}

// ErrNotOwner is what a call on a Stack panics with in a goroutine that does not own it.
var ErrNotOwner = errors.New("goverbs: an exclusive handle was used by a goroutine that does not own it; its owner must call Release first")

// ErrClosed is what a call on a closed Stack panics with.
var ErrClosed = errors.New("goverbs: an exclusive handle was used after Close")

const (
	stackSize  = 64 << 10
	stackGuard = 64 << 10 // no access: an overflow faults instead of overwriting a neighbour
	stackRoom  = 128      // zero bytes above the initial SP: who unwinds from C meets the end
	// Stacks are aligned to pages, so their tops would share a few cache sets: with a thousand queues that doubles the
	// price of a call. They are spread over this many lines.
	stackColours = 48

	notOwner = 1 << 62 // no int result
)

var stacks atomic.Uint64

// PrivateStacks reports whether calls on a [Stack] are what they are named after, and goroutines that do not own it are found out. It is
// false where [Fast] is, and where GOVERBS_FULL_TRACEBACK is set or Go's records are not where the assembly looks for them.
func PrivateStacks() bool { return direct }

// NewStack maps a private stack. It belongs to no goroutine yet. A Stack that is dropped without Close is unmapped by the
// garbage collector's doing, some time later.
func NewStack() (*Stack, error) {
	if !direct {
		return &Stack{top: 1}, nil // calls are the System way; any goroutine may make them
	}
	m, err := mapGuarded(stackGuard, stackSize)
	if err != nil {
		return nil, err
	}
	s := &Stack{lower: m}
	spread := uintptr(stacks.Add(1)%stackColours) * 64
	s.top = m.address() + stackGuard + stackSize - stackRoom - spread
	goruntime.AddCleanup(s, func(m *Mapping) { m.Close() }, m)
	return s, nil
}

// Release gives the Stack up: the next goroutine that calls owns it. Only the owner may say so, between calls.
func (s *Stack) Release() {
	if direct && atomic.LoadUintptr(&s.owner) == currentG() {
		atomic.StoreUintptr(&s.owner, 0)
	}
}

// Close unmaps the stack. No call may be under way. A second Close does nothing.
func (s *Stack) Close() error {
	s.top = 0
	atomic.StoreUintptr(&s.owner, 0)
	if s.lower == nil {
		return nil
	}
	return s.lower.Close()
}

// Call3 is [Way.Call3] on this stack.
func (s *Stack) Call3(fn, a, b, c uintptr) int32 {
	if inSpace(fn) {
		return int32(callSpace3(fn, a, b, c))
	}
	if !direct && s.top != 0 {
		return systemCall3(fn, a, b, c)
	}
	if r := stackCall3(s, fn, a, b, c); r != notOwner {
		goruntime.KeepAlive(s)
		return int32(r)
	}
	s.claim()
	return s.Call3(fn, a, b, c)
}

// Own makes the goroutine the owner, as a call would, or panics as a call would. It is for what has to be done before a call and only by
// the owner.
func (s *Stack) Own() {
	if s.top != 0 && (!direct || atomic.LoadUintptr(&s.owner) == currentG()) {
		return
	}
	s.claim()
}

// claim makes the goroutine the owner of a Stack that has none.
func (s *Stack) claim() {
	if s.top == 0 {
		panic(ErrClosed)
	}
	if !atomic.CompareAndSwapUintptr(&s.owner, 0, currentG()) {
		panic(ErrNotOwner)
	}
}
