// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Backend supplies the functions of a library in Go, as a software device does. Its objects lie in its [Space], and
// their slots hold addresses of [Space.Slot]. So an address in the Space identifies a call of the backend; every other
// call goes to C.
type Backend interface {
	// Function returns the Go function that replaces a C function of a library ("libibverbs"), or nil if there is none.
	Function(library, name string) Func
}

// Native is the Backend of the native library. If functions of packages rdma and rdma/cm get a nil Backend, the
// environment selects it, as in functions without that parameter.
var Native Backend = native{}

type native struct{}

func (native) Function(string, string) Func { return nil }

// String returns the name of the backend for messages.
func (native) String() string { return "the native library" }

// Func replaces a C function. It gets C's arguments and returns C's result and errno. It must be safe for concurrent
// use and must not keep args. Arguments and results have 64 bits on every machine.
type Func func(args []uint64) (result uint64, errno Errno)

// SlotFunc replaces the function in a slot. Unused arguments are 0. errno is for slots that fail with NULL or -1; other
// slots return the error number as their result.
type SlotFunc func(a, b, c, d, e, f uint64) (result uint64, errno Errno)

// Space is a range of addresses that belongs to a Backend. All Spaces lie in one larger range, so [Way.Call3] and
// similar functions need only one comparison for any number of backends.
//
// The first part of a Space holds inaccessible addresses that represent Go functions. The rest is memory of the
// backend, for C structures that contain addresses: the garbage collector ignores it, and it never moves.
type Space struct {
	backend Backend
	base    uintptr
	limit   uintptr // maximum size in bytes
	mu      sync.Mutex
	slots   atomic.Pointer[[]SlotFunc]
	used    uintptr // offset of the first byte that was never allocated
	free    map[uintptr][]uintptr
	size    map[uintptr]uintptr
}

const (
	wide       = ^uint(0) >> 63        // 1 on 64-bit machines
	narrow     = 1 - wide              // 1 on 32-bit machines
	spaceBits  = 22 + 8*wide           // bytes of one Space, as a power of two
	spaceMax   = 64                    // largest number of Spaces
	spaceSize  = spaceMax << spaceBits // a quarter of a process's addresses on riscv64 with three levels of page tables
	nowhere    = ^(^uintptr(0) >> 1)   // the upper half of all addresses, where a process has no memory
	slotBits   = 4
	slotStride = 1 << slotBits
	slotBytes  = 1 << 20 // size of the part that represents functions
	slotCode   = 1 << 16 // the used part, which may hold code; Callable needs the last place
	spaceChunk = 1 << 20 // memory is made accessible in pieces of this size
)

// spaceBase is the start of the range of all Spaces. Before the first NewSpace sets it, the range lies where no memory
// can be.
var spaceBase uintptr = nowhere

var spaces struct {
	sync.Mutex
	count int
	size  uintptr // reserved bytes from spaceBase on; less than spaceSize if the process may not reserve that much
	all   [spaceMax]atomic.Pointer[Space]
}

func inSpace(address uintptr) bool { return address-atomic.LoadUintptr(&spaceBase) < spaceSize }

// spaceOf returns the Space that contains an address, or nil.
func spaceOf(address uintptr) *Space {
	if i := (address - atomic.LoadUintptr(&spaceBase)) >> spaceBits; i < spaceMax {
		return spaces.all[i].Load()
	}
	return nil
}

// BackendOf returns the Backend whose Space contains an address, or nil for native memory.
func BackendOf(address uintptr) Backend {
	if s := spaceOf(address); s != nil {
		return s.backend
	}
	return nil
}

// NewSpace reserves a range of addresses for a backend. The range is never released, because an address in an old
// object must not get another meaning.
func NewSpace(b Backend) (*Space, error) {
	if b == nil {
		return nil, errors.New("goverbs: a software backend is nil")
	}
	spaces.Lock()
	defer spaces.Unlock()
	if spaces.count == spaceMax {
		return nil, fmt.Errorf("goverbs: the limit of %d software backends is reached", spaceMax)
	}
	base := atomic.LoadUintptr(&spaceBase)
	if base == nowhere {
		var err error
		base, spaces.size, err = reserveSpaces()
		if err != nil {
			return nil, fmt.Errorf("goverbs: reserving addresses for a software backend: %w", err)
		}
		atomic.StoreUintptr(&spaceBase, base)
	}
	start := uintptr(spaces.count) << spaceBits
	if start >= spaces.size {
		return nil, fmt.Errorf("goverbs: there are %d software backends already; more addresses could not be reserved "+
			"(ulimit -v)", spaces.count)
	}
	s := &Space{backend: b, base: base + start, limit: min(spaces.size-start, 1<<spaceBits), used: slotBytes,
		free: map[uintptr][]uintptr{}, size: map[uintptr]uintptr{}}
	s.slots.Store(&[]SlotFunc{})
	spaces.all[spaces.count].Store(s)
	spaces.count++
	return s, nil
}

// reserveSpaces reserves the range of all Spaces, or a smaller one if the process may not reserve that much. The
// comparisons still assume the complete range, so the smaller one lies where no other memory is mapped.
func reserveSpaces() (base, size uintptr, err error) {
	if base, err = reserve(spaceSize); err == nil {
		return base, spaceSize, nil
	}
	const least = 16 << 20
	for size := uintptr(spaceSize) / 4; size >= least; size /= 4 {
		if base, farErr := reserveFar(size); farErr == nil {
			return base, size, nil
		}
	}
	return 0, 0, err
}

// Slot returns an address for a Go function, to be stored in place of the address of a C function.
func (s *Space) Slot(f SlotFunc) (address uintptr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.slots.Load()
	if len(old) == slotCode/slotStride-1 {
		return 0, errors.New("goverbs: a software backend has too many slots")
	}
	all := append(old[:len(old):len(old)], f)
	s.slots.Store(&all)
	return s.base + uintptr(len(old))*slotStride, nil
}

// callSpace3 is a separate function so that its callers, which usually call C, have small stack frames.
//
//go:noinline
func callSpace3(fn, a, b, c uintptr) uint64 {
	result, _ := CallSlot(fn, &[6]uint64{uint64(a), uint64(b), uint64(c)})
	return result
}

// CallSlot calls the Go function of an address of [Space.Slot].
func CallSlot(fn uintptr, a *[6]uint64) (uint64, Errno) {
	f := slotAt(fn)
	if f == nil {
		noSlot(fn)
	}
	return f(a[0], a[1], a[2], a[3], a[4], a[5])
}

// SlotOf returns the Go function of an address of [Space.Slot], which never changes. It panics for any other address.
func SlotOf(fn uintptr) SlotFunc {
	f := slotAt(fn)
	if f == nil {
		noSlot(fn)
	}
	return f
}

// slotAt returns the Go function of an address, or nil. The compiler inlines it.
func slotAt(fn uintptr) SlotFunc {
	if s := spaceOf(fn); s != nil {
		// a division that results in a large number for an address between two slots
		i := bits.RotateLeft(uint(fn-s.base), -slotBits)
		if slots := *s.slots.Load(); i < uint(len(slots)) {
			return slots[i]
		}
	}
	return nil
}

func noSlot(fn uintptr) {
	panic(fmt.Sprintf("goverbs: %#x is not a function of a software backend", fn))
}

// Alloc returns size zeroed bytes, aligned to 64 bytes.
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
	if s.used+n > s.limit {
		return nil, fmt.Errorf("goverbs: a software backend has used up its %d bytes", s.limit)
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

// Free releases memory of Alloc. It panics for any other address.
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

// pointer converts an address to a pointer without changing its bits. C would use the same address.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }
