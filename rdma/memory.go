// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	goruntime "runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/mapped"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Region describes memory to a device, by an address that Go never dereferences: memory of a [Buffer] or [Pinned], or
// other memory such as a dma-buf or a GPU's memory. A Region does not keep the memory alive.
type Region struct {
	Address uint64 // as registered (iova)
	Length  uint64 // bytes
	LKey    uint32 // of the memory region; may be 0 for inline data
}

// SGE returns the entry of length bytes at offset, for a work request. Like slicing, it panics outside the region.
func (r Region) SGE(offset uint64, length uint32) ibv.SGE {
	if offset > r.Length || uint64(length) > r.Length-offset {
		r.outside(offset, length)
	}
	return ibv.SGE{Addr: r.Address + offset, Length: length, LKey: r.LKey}
}

//go:noinline
func (r Region) outside(offset uint64, length uint32) {
	panic(fmt.Sprintf("goverbs: %d bytes at offset %d are not inside a region of %d bytes", length, offset, r.Length))
}

// MapOptions select the page size and NUMA node of a [Buffer]. The zero value means normal pages on any node.
type MapOptions struct {
	// HugePages selects huge pages of the system's default size. Mapping fails if none are free. The size is rounded
	// up.
	HugePages bool
	// Node is the NUMA node of the memory, counted from 1: 0 means any node, 1 is node 0.
	Node int
}

// Buffer is page-aligned memory outside the Go heap. A device may use it until it is closed. Any number of goroutines
// may use it; call Close after the last use.
type Buffer struct {
	mapping *offheap.Mapping
	known   *mapped.Memory
	size    int

	mu      sync.Mutex
	holders int // number of memory regions
	closed  bool
}

// NewBuffer maps size zeroed bytes, with the page size and on the NUMA node of o. It fails if the system cannot provide
// them.
func NewBuffer(size int, o MapOptions) (*Buffer, error) {
	m, err := offheap.Map(size, offheap.Options(o))
	if err != nil {
		return nil, err
	}
	return &Buffer{mapping: m, known: mapped.Add(m.Address(), uintptr(size)), size: size}, nil
}

// Bytes returns the memory, or nil after Close.
func (b *Buffer) Bytes() []byte {
	all := b.mapping.Bytes()
	return all[:min(b.size, len(all)):min(b.size, len(all))]
}

// Address returns the address of the memory in the process.
func (b *Buffer) Address() uint64 { return uint64(b.mapping.Address()) }

// Len returns the size in bytes.
func (b *Buffer) Len() int { return b.size }

// Region returns the memory with the key of a memory region.
func (b *Buffer) Region(lkey uint32) Region { return Region{b.Address(), uint64(b.size), lkey} }

// hold prevents Close until release is called.
func (b *Buffer) hold() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.mapping == nil {
		return errBufferClosed
	}
	b.holders++
	return nil
}

func (b *Buffer) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holders--
}

// Close unmaps the memory. Do not use slices of it afterwards. Close fails while memory regions, or leases of a
// registration cache, use the memory. A second Close does nothing.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holders > 0 {
		return b.inUse(fmt.Sprintf("close its %d memory regions first", b.holders))
	}
	if b.known != nil {
		if err := b.known.Leave(); err != nil {
			return b.inUse(err.Error())
		}
	}
	b.closed = true
	return b.mapping.Close()
}

func (b *Buffer) inUse(reason string) error {
	return &VerbError{Verb: "Close", Object: "buffer", Errno: syscall.EBUSY, Reason: reason, Err: ErrInUse}
}

// Pinned is a Go slice that the garbage collector neither frees nor moves until Unpin, even without other references,
// so that a device can access it. A Pinned that is never unpinned leaks its memory.
type Pinned struct {
	bytes  []byte
	pinner goruntime.Pinner
	also   []*Pinned // unpinned together with this one
}

// pinned keeps every Pinned reachable, because Go's runtime crashes if a Pinner becomes unreachable while it pins
// memory.
var pinned sync.Map

// Pin pins a slice of Go memory, and the entire allocation that contains it.
func Pin(b []byte) *Pinned {
	p := &Pinned{bytes: b}
	if len(b) > 0 {
		p.pinner.Pin(unsafe.SliceData(b))
		pinned.Store(p, nil)
	}
	return p
}

// Bytes returns the slice.
func (p *Pinned) Bytes() []byte { return p.bytes }

// Address returns the address of the slice, or 0 if it is empty.
func (p *Pinned) Address() uint64 {
	if len(p.bytes) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.bytes))))
}

// Len returns the size in bytes.
func (p *Pinned) Len() int { return len(p.bytes) }

// Region returns the memory with the key of a memory region.
func (p *Pinned) Region(lkey uint32) Region { return Region{p.Address(), uint64(len(p.bytes)), lkey} }

// Unpin returns the memory to the garbage collector. Close all memory regions of it first. A second Unpin does nothing.
func (p *Pinned) Unpin() {
	if _, ok := pinned.LoadAndDelete(p); ok {
		p.pinner.Unpin()
	}
	for _, q := range p.also {
		q.Unpin()
	}
}

// ForkStatus returns whether registered memory is safe across fork, because ibv_fork_init was called or because the
// kernel makes it unnecessary. This package never calls ibv_fork_init. Programs that start others with os/exec do not
// need it, because the child runs no Go code before exec.
//
// C: ibv_is_fork_initialized
//
// Man: ibv_is_fork_initialized(3)
func ForkStatus() (ibv.ForkStatus, error) { return libibverbs.IsForkInitialized() }
