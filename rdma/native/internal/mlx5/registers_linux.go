// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"math/bits"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// register is a doorbell register, which queue pairs may share.
type register struct {
	page   *page
	offset uintptr
	size   uint32 // bytes of a request that it takes; 0: doorbells alone
	users  int
}

func (r *register) address() uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(r.page.mapping))) + r.offset
}

// registers are those of a device's queue pairs.
type registers struct {
	device    *device
	mu        sync.Mutex
	pages     []*page
	all       []*register // apart from those of thread domains
	dedicated []*register // unused ones of thread domains
}

const (
	firstRegister = 0x800 // offset in its page
	perPage       = 2
)

// get returns the register for a queue pair: an unused one, or else the one with the fewest users, apart from the first
// ones, which are not shared.
func (s *registers) get() (*register, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.least(s.all)
	if r == nil || r.users > 0 && len(s.all) < defaultRegisters {
		added, errno := s.add()
		if errno != 0 {
			return nil, errno
		}
		s.all, r = append(s.all, added...), added[0]
	}
	if r.users > 0 {
		r = s.least(s.all[defaultLowLatency:])
	}
	r.users++
	return r, 0
}

// least returns the first register with the fewest users, or nil.
func (*registers) least(of []*register) (least *register) {
	for _, r := range of {
		if least == nil || r.users < least.users {
			least = r
		}
	}
	return least
}

// put undoes get.
func (s *registers) put(r *register) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.users--
}

// indexes hands out the numbers by which completions name queues: the lowest unused one.
type indexes struct {
	mu   sync.Mutex
	used []uint64 // bits
}

func (x *indexes) get() uint32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, word := range x.used {
		if n := bits.TrailingZeros64(^word); n < 64 {
			x.used[i] |= 1 << n
			return uint32(64*i + n)
		}
	}
	x.used = append(x.used, 1)
	return uint32(64 * (len(x.used) - 1))
}

func (x *indexes) put(n uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.used[n/64] &^= 1 << (n % 64)
}

// log returns the logarithm of a power of two, or 0.
func log(n uint32) uint32 { return uint32(bits.Len32(n|1)) - 1 }

// threadDomain is a thread domain: a register of its queue pairs.
type threadDomain struct {
	registers *registers
	register  *register
}

// AllocTD implements [driver.ThreadDomains].
func (d *device) AllocTD() (driver.TD, syscall.Errno) {
	r, errno := d.registers.dedicate()
	if errno != 0 {
		return nil, errno
	}
	return &threadDomain{&d.registers, r}, 0
}

// Free implements [driver.TD]. Other thread domains may use the register.
func (t *threadDomain) Free() {
	s := t.registers
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dedicated = append(s.dedicated, t.register)
}

// dedicate returns an unused register that get does not return.
func (s *registers) dedicate() (*register, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dedicated) == 0 {
		added, errno := s.add()
		if errno != 0 {
			return nil, errno
		}
		s.dedicated = added
	}
	r := s.dedicated[0]
	s.dedicated = s.dedicated[1:]
	return r, 0
}

// add allocates a page and returns its registers. The caller holds mu.
func (s *registers) add() (added []*register, errno syscall.Errno) {
	p, errno := s.device.newPage(mlx5dv.UAR_ALLOC_TYPE_BF)
	if errno != 0 {
		return nil, errno
	}
	s.pages = append(s.pages, p)
	size := s.device.own.BFRegSize
	for i := range uint32(perPage) {
		added = append(added, &register{page: p, offset: uintptr(firstRegister + i*size), size: size / 2})
	}
	return added, 0
}
