// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// chunk is the number of bytes that a goroutine processes at a time. Chunks are aligned to huge pages.
const chunk = 2 << 20

// Prefault makes the kernel map the pages of unused memory, with several goroutines (GOMAXPROCS if goroutines is 0). It
// changes no byte. Without Prefault, registering the memory maps the pages on one processor, which is most of a
// registration's cost. For memory in use, Prefault only costs time. If the kernel does not support it (Linux before
// 5.14, memory that cannot be written), it fails without harm: the registration maps the pages then.
func Prefault(b []byte, goroutines int) error {
	if len(b) == 0 {
		return nil
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := start + uintptr(len(b))
	first := start &^ (chunk - 1)
	var next atomic.Uintptr
	return together(min(workers(goroutines), int((end-first+chunk-1)/chunk)), func() error {
		for {
			from := first + next.Add(chunk) - chunk
			if from >= end {
				return nil
			}
			if err := populate(max(from, start), min(from+chunk, end)); err != nil {
				return err
			}
		}
	})
}

// Pieces is memory that is registered as several adjacent regions.
type Pieces struct {
	size        uint64 // total bytes
	first, each uint64 // bytes of the first piece, and of each later one except the last
	mrs         []*rdma.MR
}

// Parallel registers memory as several adjacent regions concurrently, at most n, or GOMAXPROCS if n is 0. Every region
// except the last ends at a multiple of 2 MiB. Each region has its own keys, so a range may need several entries. If
// you need a single key, use [Prefault] and one region, which is nearly as fast for unused memory in huge pages.
//
// C: ibv_reg_mr, ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func Parallel(pd *rdma.PD, b []byte, access ibv.AccessFlags, n int) (*Pieces, error) {
	if pd == nil || len(b) == 0 || n < 0 {
		return nil, verberr.Invalid("Parallel", "", "invalid argument: %d bytes, %d pieces; pass a protection domain, "+
			"memory, and a number of pieces that is not negative", len(b), n)
	}
	p := &Pieces{size: uint64(len(b))}
	lead := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % chunk) // bytes since the previous boundary
	chunks := (lead + p.size + chunk - 1) / chunk
	p.each = (chunks + uint64(workers(n)) - 1) / uint64(workers(n)) * chunk
	p.first = p.each - lead
	p.mrs = make([]*rdma.MR, (lead+p.size+p.each-1)/p.each)
	var next atomic.Int64
	err := together(len(p.mrs), func() (err error) {
		i := int(next.Add(1)) - 1
		from, to := p.bounds(i)
		p.mrs[i], err = pd.RegMR(b[from:to:to], access)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// bounds returns the range of a piece.
func (p *Pieces) bounds(i int) (from, to uint64) {
	if i > 0 {
		from = p.first + uint64(i-1)*p.each
	}
	return from, min(p.first+uint64(i)*p.each, p.size)
}

// MRs returns the regions in address order. A peer needs the address, the length and the key of each region that it
// accesses. The regions belong to the Pieces.
func (p *Pieces) MRs() []*rdma.MR { return p.mrs }

// AppendSGE appends the entries for length bytes at offset to list, for a work request: one for each region in the
// range, and another one for each further 4 GiB. Like slicing, it panics outside the memory.
func (p *Pieces) AppendSGE(list []ibv.SGE, offset, length uint64) []ibv.SGE {
	if offset > p.size || length > p.size-offset {
		panic(fmt.Sprintf("goverbs: %d bytes at %d are not inside pieces of %d bytes", length, offset, p.size))
	}
	for length > 0 {
		i := 0
		if offset >= p.first {
			i = 1 + int((offset-p.first)/p.each)
		}
		from, to := p.bounds(i)
		n := min(length, to-offset, mostSGE)
		list = append(list, p.mrs[i].SGE(offset-from, uint32(n)))
		offset, length = offset+n, length-n
	}
	return list
}

// mostSGE is the maximum length of an entry, rounded down to chunks.
const mostSGE = 1<<32 - chunk

// Close deregisters the memory. No work request that uses it may be outstanding. A second Close does nothing.
func (p *Pieces) Close() error {
	var errs []error
	for _, mr := range p.mrs {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

func workers(goroutines int) int {
	if goroutines > 0 {
		return goroutines
	}
	return runtime.GOMAXPROCS(0)
}

// together calls a function on n goroutines and joins their errors.
func together(n int, do func() error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := 1; i < n; i++ {
		all.Go(func() { errs[i] = do() })
	}
	errs[0] = do()
	all.Wait()
	return errors.Join(errs...)
}
