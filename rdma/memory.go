package rdma

import (
	"fmt"
	goruntime "runtime"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Region is memory as a device sees it: numbers that Go never dereferences. It may be Go's memory (see [Buffer] and [Pinned]),
// or none of it: a dma-buf, a GPU's memory, an address of the device's own (iova). It keeps nothing alive.
type Region struct {
	Address uint64 // as registered
	Length  uint64 // bytes
	LKey    uint32 // of the memory region; 0 will do for inline data
}

// SGE is length bytes from offset on, for a work request. Like slicing, it panics outside of the region.
func (r Region) SGE(offset uint64, length uint32) ibv.SGE {
	if offset > r.Length || uint64(length) > r.Length-offset {
		r.outside(offset, length)
	}
	return ibv.SGE{Addr: r.Address + offset, Length: length, LKey: r.LKey}
}

//go:noinline
func (r Region) outside(offset uint64, length uint32) {
	panic(fmt.Sprintf("goverbs: %d bytes at %d are not inside a region of %d bytes", length, offset, r.Length))
}

// Buffer is memory that the garbage collector does not own, aligned to a page. A device may be given it for as long as it is
// not closed. Any number of goroutines may use it; Close is for when none does.
type Buffer struct {
	mapping *runtime.Mapping
	size    int

	mu      sync.Mutex
	holders int // memory regions
	closed  bool
}

// NewBuffer maps size zeroed bytes, from huge pages or on a NUMA node where o says so; it fails where the system has none of those.
func NewBuffer(size int, o runtime.MapOptions) (*Buffer, error) {
	m, err := runtime.Map(size, o)
	if err != nil {
		return nil, err
	}
	return &Buffer{mapping: m, size: size}, nil
}

// Bytes is the memory, and nothing after Close.
func (b *Buffer) Bytes() []byte {
	all := b.mapping.Bytes()
	return all[:min(b.size, len(all)):min(b.size, len(all))]
}

// Address is where the memory starts, as the process sees it.
func (b *Buffer) Address() uint64 { return uint64(b.mapping.Address()) }

// Len is the size in bytes.
func (b *Buffer) Len() int { return b.size }

// Region is the memory under the key that it was registered with.
func (b *Buffer) Region(lkey uint32) Region { return Region{b.Address(), uint64(b.size), lkey} }

// hold keeps the buffer from being closed until release.
func (b *Buffer) hold() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
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

// Close unmaps the memory: every slice of it has to be forgotten. It fails while there are memory regions over it. A second Close does
// nothing.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holders > 0 {
		return &VerbError{Verb: "Close", Object: "buffer", Errno: ebusy, Reason: fmt.Sprintf("%d memory regions over it have to be closed first", b.holders), Err: ErrInUse}
	}
	b.closed = true
	return b.mapping.Close()
}

// Pinned is a Go slice that the garbage collector leaves alive and in its place until Unpin, whoever else forgets it: a device may
// be reading or writing it. Who drops a Pinned without Unpin leaks the memory, and no more.
type Pinned struct {
	bytes  []byte
	pinner goruntime.Pinner
	also   []*Pinned // unpinned together with it
}

// pinned keeps what is pinned reachable: Go's runtime ends the process when it finds a Pinner that was dropped.
var pinned sync.Map

// Pin pins a slice of Go memory: all that was allocated together with it.
func Pin(b []byte) *Pinned {
	p := &Pinned{bytes: b}
	if len(b) > 0 {
		p.pinner.Pin(unsafe.SliceData(b))
		pinned.Store(p, nil)
	}
	return p
}

// Bytes is the slice.
func (p *Pinned) Bytes() []byte { return p.bytes }

// Address is where the slice starts, and 0 for an empty one.
func (p *Pinned) Address() uint64 {
	if len(p.bytes) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.bytes))))
}

// Len is the size in bytes.
func (p *Pinned) Len() int { return len(p.bytes) }

// Region is the memory under the key that it was registered with.
func (p *Pinned) Region(lkey uint32) Region { return Region{p.Address(), uint64(len(p.bytes)), lkey} }

// Unpin gives the memory back to the garbage collector: every memory region over it has to be gone. A second Unpin does nothing.
func (p *Pinned) Unpin() {
	if _, ok := pinned.LoadAndDelete(p); ok {
		p.pinner.Unpin()
	}
	for _, q := range p.also {
		q.Unpin()
	}
}
