package runtime

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Backend supplies the functions of a library in Go, as a software device does. Objects that it hands out lie in its [Space];
// their slots hold addresses of [Space.Slot]. So a call is recognised by an address in it, and everything else is native.
type Backend interface {
	// Function is the Go function that stands for a C function of a library ("libibverbs"), or nil when there is none.
	Function(library, name string) Func
}

// Func stands for a C function: arguments as C gets them, its result, and errno. It may be called by many goroutines at once, and does not
// keep the arguments. They and results have 64 bits on every machine, so that numbers of that size are whole.
type Func func(args []uint64) (result uint64, errno Errno)

// SlotFunc stands for a slot. Arguments that the slot does not have are 0. errno is for slots that fail with NULL or -1; others
// have the number in their result.
type SlotFunc func(a, b, c, d, e, f uint64) (result uint64, errno Errno)

// Space is a range of addresses that belongs to a Backend. In all of them together lies what [Way.Call3] and its siblings
// compare an address with: one comparison, whatever the number of backends.
//
// Its first part holds addresses that stand for Go functions and that nothing can read; the rest is memory of the backend's, which
// C layouts with addresses in them can live in: outside the garbage collector's sight, at addresses that never change.
type Space struct {
	Backend Backend
	base    uintptr
	mu      sync.Mutex
	slots   atomic.Pointer[[]SlotFunc]
	used    uintptr // offset of the first byte that was never handed out
	free    map[uintptr][]uintptr
	size    map[uintptr]uintptr
}

const (
	wide       = ^uint(0) >> 63        // 1 on 64-bit machines
	narrow     = 1 - wide              // 1 on 32-bit machines
	spaceBits  = 22 + 8*wide           // bytes of one Space, as a power of two
	spaceMax   = 64                    // how many there can be
	spaceSize  = spaceMax << spaceBits // a quarter of what a process has on riscv64 with pages of three levels
	nowhere    = ^(^uintptr(0) >> 1)   // the upper half of all addresses: a process has nothing there
	slotStride = 16
	slotBytes  = 1 << 20 // the part that stands for functions
	spaceChunk = 1 << 20 // memory is made accessible in pieces of this size
)

// spaceBase is where the range of all Spaces starts. It changes once, when there is a first one; until then the range lies where
// no memory can.
var spaceBase uintptr = nowhere

var spaces struct {
	sync.Mutex
	count int
	all   [spaceMax]atomic.Pointer[Space]
}

func inSpace(address uintptr) bool { return address-atomic.LoadUintptr(&spaceBase) < spaceSize }

// spaceOf is the Space that an address lies in, or nil.
func spaceOf(address uintptr) *Space {
	if i := (address - atomic.LoadUintptr(&spaceBase)) >> spaceBits; i < spaceMax {
		return spaces.all[i].Load()
	}
	return nil
}

// BackendOf is the Backend whose Space an address lies in, or nil for native memory.
func BackendOf(address uintptr) Backend {
	if s := spaceOf(address); s != nil {
		return s.Backend
	}
	return nil
}

// NewSpace reserves a range of addresses for a backend. It is never given back: an address in a forgotten object must not come
// to mean something else.
func NewSpace(b Backend) (*Space, error) {
	spaces.Lock()
	defer spaces.Unlock()
	if spaces.count == spaceMax {
		return nil, fmt.Errorf("goverbs: there are %d software backends already, and no room for more", spaceMax)
	}
	base := atomic.LoadUintptr(&spaceBase)
	if base == nowhere {
		var err error
		base, err = reserve(spaceSize)
		if err != nil {
			return nil, fmt.Errorf("goverbs: reserving addresses for a software backend: %w", err)
		}
		atomic.StoreUintptr(&spaceBase, base)
	}
	s := &Space{Backend: b, base: base + uintptr(spaces.count)<<spaceBits, used: slotBytes, free: map[uintptr][]uintptr{}, size: map[uintptr]uintptr{}}
	s.slots.Store(&[]SlotFunc{})
	spaces.all[spaces.count].Store(s)
	spaces.count++
	return s, nil
}

// Slot gives a Go function an address, to be stored where C stores the address of a function.
func (s *Space) Slot(f SlotFunc) (address uintptr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.slots.Load()
	if len(old) == slotBytes/slotStride {
		return 0, errors.New("goverbs: a software backend has too many slots")
	}
	all := append(old[:len(old):len(old)], f)
	s.slots.Store(&all)
	return s.base + uintptr(len(old))*slotStride, nil
}

// callSpace3 is apart, so that who calls C has a small stack frame.
//
//go:noinline
func callSpace3(fn, a, b, c uintptr) uint64 {
	return resultOfSpace(fn, &[6]uint64{uint64(a), uint64(b), uint64(c)})
}

func resultOfSpace(fn uintptr, a *[6]uint64) uint64 {
	result, _ := callSpace(fn, a)
	return result
}

// callSpace calls the Go function that an address stands for.
func callSpace(fn uintptr, a *[6]uint64) (uint64, Errno) {
	s := spaceOf(fn)
	if s == nil {
		panic(fmt.Sprintf("goverbs: %#x is no function of a software backend", fn))
	}
	slots, i := *s.slots.Load(), (fn-s.base)/slotStride
	if i >= uintptr(len(slots)) || fn%slotStride != 0 {
		panic(fmt.Sprintf("goverbs: %#x is no function of a software backend", fn))
	}
	return slots[i](a[0], a[1], a[2], a[3], a[4], a[5])
}

// Alloc gives size zeroed bytes, aligned to 64.
func (s *Space) Alloc(size int) (unsafe.Pointer, error) {
	n := (uintptr(max(size, 1)) + 63) &^ 63
	s.mu.Lock()
	defer s.mu.Unlock()
	if list := s.free[n]; len(list) > 0 {
		address := list[len(list)-1]
		s.free[n] = list[:len(list)-1]
		clear(unsafe.Slice((*byte)(pointer(address)), n))
		s.size[address] = n
		return pointer(address), nil
	}
	if s.used+n > 1<<spaceBits {
		return nil, fmt.Errorf("goverbs: a software backend has used up its %d bytes", 1<<spaceBits)
	}
	have, want := (s.used+spaceChunk-1)&^(spaceChunk-1), (s.used+n+spaceChunk-1)&^(spaceChunk-1)
	if want > have {
		if err := commit(s.base+have, want-have); err != nil {
			return nil, fmt.Errorf("goverbs: memory for a software backend: %w", err)
		}
	}
	address := s.base + s.used
	s.used += n
	s.size[address] = n
	return pointer(address), nil
}

// Free takes memory of Alloc back. Anything else panics.
func (s *Space) Free(p unsafe.Pointer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.size[uintptr(p)]
	if !ok {
		panic(fmt.Sprintf("goverbs: %#x was not allocated by this software backend, or was freed before", uintptr(p)))
	}
	delete(s.size, uintptr(p))
	s.free[n] = append(s.free[n], uintptr(p))
}
