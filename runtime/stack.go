// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"errors"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"
)

// Stack is a private C stack, the fastest way to call. It belongs to the goroutine that called with it first, until
// that goroutine says Release; a call by another goroutine panics with ErrNotOwner and reaches no C code.
//
// A goroutine that ends without Release leaves a Stack that is good for Close only.
//
// C must not block on it, nor call back into Go. A crash in C on a private stack ends the process with a message that
// names the signal and lacks the goroutine's frames. Where [PrivateStacks] says no, calls are made the System way, and
// any goroutine may make them.
type Stack struct {
	// floor is the memory of the goroutine that owns the Stack: all Stacks of a goroutine share it, so that it is in
	// the cache however many there are. nobodys and closed are floors that no goroutine has.
	floor atomic.Pointer[floor]
}

// floor is the memory that C runs on for one goroutine.
type floor struct {
	top   uintptr
	owner uintptr // the goroutine
	lower []byte
}

var nobodys, closed floor

// ErrNotOwner is what a call on a Stack panics with in a goroutine that does not own it.
var ErrNotOwner = errors.New("goverbs: an exclusive handle was used by a goroutine that does not own it; its owner " +
	"must call Release first")

// ErrClosed is what a call on a closed Stack panics with.
var ErrClosed = errors.New("goverbs: an exclusive handle was used after Close")

const (
	stackSize  = 64 << 10
	stackGuard = 64 << 10 // no access: an overflow faults instead of overwriting a neighbour
	stackRoom  = 128      // zero bytes above the initial SP: an unwinder in C finds the end of the stack
	// Stacks are aligned to pages, so their tops would share a few cache sets: with a thousand queues that doubles the
	// price of a call. They are spread over this many lines.
	stackColours = 48

	notOwner = 1 << 62 // no int result
)

// floors are those of goroutines, for as long as a Stack has them. A goroutine that ended leaves its floor to the next
// one that Go makes of its record.
var floors = struct {
	sync.Mutex
	of    map[uintptr]weak.Pointer[floor]
	count uintptr // that there ever were
}{of: map[uintptr]weak.Pointer[floor]{}}

// ownFloor returns the floor of the calling goroutine.
func ownFloor() (*floor, error) {
	g := currentG()
	floors.Lock()
	defer floors.Unlock()
	if f := floors.of[g].Value(); f != nil {
		return f, nil
	}
	m, err := mapGuarded(stackGuard, stackSize)
	if err != nil {
		return nil, err
	}
	floors.count++
	f := &floor{owner: g, lower: m, top: uintptr(unsafe.Pointer(unsafe.SliceData(m))) + stackGuard +
		stackSize - stackRoom - floors.count%stackColours*64}
	is := weak.Make(f)
	floors.of[g] = is
	goruntime.AddCleanup(f, func(m []byte) {
		unmap(m)
		floors.Lock()
		defer floors.Unlock()
		if floors.of[g] == is {
			delete(floors.of, g)
		}
	}, m)
	return f, nil
}

// PrivateStacks reports whether calls on a [Stack] are what they are named after, and goroutines that do not own it are
// found out. It is false where [Fast] is, and where GOVERBS_FULL_TRACEBACK is set or Go's records are not where the
// assembly looks for them.
func PrivateStacks() bool { return direct }

// NewStack makes a private stack, which belongs to no goroutine yet. It fails where the calling goroutine can get no
// memory for one. The memory is unmapped some time after the last Stack of its goroutine is released, closed or
// dropped.
func NewStack() (*Stack, error) {
	s := new(Stack)
	s.floor.Store(&nobodys)
	if !direct { // calls are made the System way; any goroutine may make them
		return s, nil
	}
	_, err := ownFloor()
	return s, err
}

// Release gives the Stack up: the next goroutine that calls owns it. Only the owner may say so, between calls.
func (s *Stack) Release() {
	if direct && s.floor.Load().owner == currentG() {
		s.floor.Store(&nobodys)
	}
}

// Close ends the use of the stack. No call may be under way. A second Close does nothing.
func (s *Stack) Close() error {
	s.floor.Store(&closed)
	return nil
}

// Call3 is [Way.Call3] on this stack.
func (s *Stack) Call3(fn, a, b, c uintptr) int32 {
	if inSpace(fn) {
		return int32(callSpace3(fn, a, b, c))
	}
	f := s.floor.Load()
	if !direct && f != &closed {
		return systemCall3(fn, a, b, c)
	}
	if r := stackCall3(f, fn, a, b, c); r != notOwner {
		goruntime.KeepAlive(f)
		return int32(r)
	}
	s.claim()
	return s.Call3(fn, a, b, c)
}

// Own makes the goroutine the owner, as a call would, or panics as a call would. It is for what has to be done before a
// call and only by the owner.
func (s *Stack) Own() {
	f := s.floor.Load()
	if f != &closed && (!direct || f.owner == currentG()) {
		return
	}
	s.claim()
}

// claim makes the goroutine the owner of a Stack that has none. Where there is no memory for the goroutine's first
// floor it panics, as Go does where a goroutine's own stack cannot grow.
func (s *Stack) claim() {
	switch s.floor.Load() {
	case &closed:
		panic(ErrClosed)
	case &nobodys:
		f, err := ownFloor()
		if err != nil {
			panic(err)
		}
		if s.floor.CompareAndSwap(&nobodys, f) {
			return
		}
	}
	panic(ErrNotOwner)
}
