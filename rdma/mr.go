// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// MR is a memory region: memory that a device may access with the region's keys.
//
// # Lifetime of the memory
//
// A region of a Go slice pins the slice until the region is closed. A [Buffer] cannot be closed before its regions.
// Canceling a wait for a completion does not release memory: the device may use it until the completion has been
// polled, or until the queue pair is drained or closed. Close a region after that.
//
// Man: ibv_reg_mr(3)
type MR struct {
	object
	c   *ibv.MR
	now atomic.Pointer[registration]

	changes sync.Mutex // serializes Rereg; guards pinned and buffer
	pinned  *Pinned    // of a Go slice, otherwise nil
	buffer  *Buffer    // of a Buffer, otherwise nil
}

// registration holds the values that Rereg replaces atomically.
type registration struct {
	pd     *PD
	bytes  []byte // nil if Go cannot access the memory
	region Region
	rkey   uint32
}

// size returns the region's length for leak reports and statistics.
func (m *MR) size() uint64 {
	if now := m.now.Load(); now != nil {
		return now.region.Length
	}
	return 0
}

// RegMR registers a Go slice and pins it until the region is closed.
//
// Local queue pairs can always send from the memory. They can receive into it and store the results of RDMA reads there
// with ACCESS_LOCAL_WRITE, which ACCESS_REMOTE_WRITE and ACCESS_REMOTE_ATOMIC require.
//
// C: ibv_reg_mr, ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegMR(b []byte, access ibv.AccessFlags) (*MR, error) {
	if len(b) == 0 {
		return nil, invalid("ibv_reg_mr", p.name, "the memory is empty")
	}
	pinned := Pin(b)
	r := &MR{pinned: pinned}
	if err := r.plain(registration{pd: p, bytes: b, region: pinned.Region(0)}, access); err != nil {
		pinned.Unpin()
		return nil, err
	}
	return r, nil
}

// RegBuffer registers memory outside Go's heap. The Buffer cannot be closed before the region. access is that of RegMR.
//
// C: ibv_reg_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegBuffer(b *Buffer, access ibv.AccessFlags) (*MR, error) {
	if b == nil {
		return nil, isNil("ibv_reg_mr", p.name, "buffer")
	}
	if err := b.hold(); err != nil {
		return nil, wrap("ibv_reg_mr", p.name, err)
	}
	r := &MR{buffer: b}
	if err := r.plain(registration{pd: p, bytes: b.Bytes(), region: b.Region(0)}, access); err != nil {
		b.release()
		return nil, err
	}
	return r, nil
}

// RegAddress registers memory by its address, for example memory of a GPU or of another library. The memory must stay
// mapped until the region is closed. Peers and work requests address it by iova, which is usually the same as address.
// length is in bytes.
//
// C: ibv_reg_mr_iova, ibv_reg_mr_iova2
//
// Man: ibv_reg_mr(3)
func (p *PD) RegAddress(address uintptr, length, iova uint64, access ibv.AccessFlags) (*MR, error) {
	r := &MR{}
	m := registration{pd: p, region: Region{Address: iova, Length: length}}
	return made(r, r.register("ibv_reg_mr_iova", ibv.AccessRegMRIOVA, access, m, func() (*ibv.MR, error) {
		if iova == uint64(address) {
			return libibverbs.RegMR(p.c, address, length, access)
		}
		c, err := libibverbs.RegMRIOVA(p.c, address, length, iova, access)
		if page := uint64(os.Getpagesize()); errors.Is(err, syscall.EINVAL) && (uint64(address)^iova)%page != 0 {
			err = explain("", "",
				fmt.Sprintf("iova %#x and address %#x must have the same offset within a page of %d bytes", iova, address,
					page), err)
		}
		return c, err
	}))
}

// RegDMABuf registers length bytes of a dma-buf, starting at offset. Peers and work requests address them by iova. The
// descriptor may be closed afterwards.
//
// C: ibv_reg_dmabuf_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegDMABuf(fd int, offset, length, iova uint64, access ibv.AccessFlags) (*MR, error) {
	r := &MR{}
	m := registration{pd: p, region: Region{Address: iova, Length: length}}
	return made(r, r.register("ibv_reg_dmabuf_mr", ibv.AccessRegDMABufMR, access, m, func() (*ibv.MR, error) {
		return libibverbs.RegDMABufMR(p.c, offset, length, iova, fd, access)
	}))
}

// RegImplicit registers the entire address space with on-demand paging, if the device supports it (odp_caps of
// Device.QueryEx, IBV_ODP_SUPPORT_IMPLICIT). Pin Go memory while a device uses it, because the garbage collector may
// otherwise reuse it.
//
// C: ibv_reg_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegImplicit(access ibv.AccessFlags) (*MR, error) {
	access |= ibv.ACCESS_ON_DEMAND
	r := &MR{}
	m := registration{pd: p, region: Region{Length: ^uint64(0)}}
	return made(r,
		r.register("ibv_reg_mr", ibv.AccessRegMR, access, m,
			func() (*ibv.MR, error) { return libibverbs.RegMR(p.c, 0, ^uint64(0), access) }))
}

// RegMREx registers the memory that attr describes. Set a DMA handle or memory of [PD.AllocBuf] in attr with its Ptr
// method.
//
// C: ibv_reg_mr_ex
//
// Man: ibv_reg_mr(3)
func (p *PD) RegMREx(attr *ibv.MRInitAttr) (*MR, error) {
	const verb = "ibv_reg_mr_ex"
	if attr == nil {
		return nil, noAttributes(verb, p.name)
	}
	r := &MR{}
	m := registration{pd: p, region: Region{Address: attr.IOVA, Length: attr.Length}}
	if attr.CompMask&ibv.REG_MR_MASK_IOVA == 0 {
		m.region.Address = uint64(attr.Addr)
	}
	var parents []*object
	if attr.CompMask&ibv.REG_MR_MASK_DMAH != 0 {
		dmah, err := named[DMAH](p.device, verb, p.name, "DMAH", uintptr(attr.DMAH))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &dmah.object)
	}
	if attr.CompMask&ibv.REG_MR_MASK_BUF != 0 {
		buf, err := named[Buf](p.device, verb, p.name, "Buf", uintptr(attr.Buf))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &buf.object)
	}
	return made(r,
		r.register(verb, ibv.AccessRegMR, attr.Access, m,
			func() (*ibv.MR, error) { return libibverbs.RegMREx(p.c, attr) }, parents...))
}

// AllocNullMR creates a region without memory: reads return zeros, and writes are dropped.
//
// C: ibv_alloc_null_mr
//
// Man: ibv_alloc_null_mr(3)
func (p *PD) AllocNullMR() (*MR, error) {
	r := &MR{}
	m := registration{pd: p, region: Region{Length: ^uint64(0)}}
	return made(r,
		r.register("ibv_alloc_null_mr", ibv.AccessRegMR, 0, m,
			func() (*ibv.MR, error) { return libibverbs.AllocNullMR(p.c) }))
}

// ImportMR imports a region of another process. handle is the region's handle in that process. Close ends the import,
// but does not deregister the region.
//
// C: ibv_import_mr, ibv_unimport_mr
//
// Man: ibv_import_mr(3)
func (p *PD) ImportMR(handle uint32) (*MR, error) {
	r := &MR{}
	if err := r.create("ibv_import_mr", registration{pd: p},
		func() (*ibv.MR, error) { return libibverbs.ImportMR(p.c, handle) }, libibverbs.UnimportMR); err != nil {
		return nil, err
	}
	r.now.Store(&registration{pd: p, region: Region{Address: uint64(r.c.Addr), Length: r.c.Length, LKey: r.c.LKey},
		rkey: r.c.RKey})
	return r, nil
}

// plain registers memory by address.
func (r *MR) plain(m registration, access ibv.AccessFlags) error {
	return r.register("ibv_reg_mr", ibv.AccessRegMR, access, m, func() (*ibv.MR, error) {
		return libibverbs.RegMR(m.pd.c, uintptr(m.region.Address), m.region.Length, access)
	})
}

// register checks the access flags and creates the region.
func (r *MR) register(verb string, use ibv.AccessUse, access ibv.AccessFlags, m registration,
	create func() (*ibv.MR, error), parents ...*object) error {
	if reason := refusal.Access(use, access); reason != "" {
		return invalid(verb, m.pd.name, "%s", reason)
	}
	return r.create(verb, m, func() (*ibv.MR, error) {
		c, err := create()
		return c, refusal.MR(use, access, m.region.Address, m.region.Length, err)
	}, libibverbs.DeregMR, parents...)
}

func (r *MR) create(verb string, m registration, create func() (*ibv.MR, error), destroy func(*ibv.MR) error,
	parents ...*object) error {
	ended := func(c *ibv.MR) error {
		if err := destroy(c); err != nil {
			return err
		}
		r.releaseMemory()
		return nil
	}
	creating := func() (*ibv.MR, error) {
		c, err := create()
		if err == nil {
			m.region.LKey, m.rkey = c.LKey, c.RKey
			r.now.Store(&m)
		}
		return c, err
	}
	return createObject(m.pd.device, &r.object, &r.c, r, verb, creating, ended,
		func(c *ibv.MR) string { // by its handle: on many devices the local key is also the remote one
			return fmt.Sprintf("MR %d on %s", c.Handle, m.pd.device.name)
		}, append(parents, &m.pd.object)...)
}

// releaseMemory unpins the memory or releases the buffer.
func (r *MR) releaseMemory() {
	if r.pinned != nil {
		r.pinned.Unpin()
	}
	if r.buffer != nil {
		r.buffer.release()
	}
	r.pinned, r.buffer = nil, nil
}

// C returns C's object, for calls of generated/libibverbs. It belongs to the MR.
func (r *MR) C() *ibv.MR { return whileOpen(&r.object, r.c) }

// Ptr returns the region for use in attributes.
func (r *MR) Ptr() ibv.Ptr[ibv.MR] { return ptrWhileOpen(&r.object, r.c) }

// PD returns the region's protection domain.
func (r *MR) PD() *PD { return r.now.Load().pd }

// Bytes returns the memory if it is a Go slice or a Buffer, and nil otherwise. A device may be writing it.
func (r *MR) Bytes() []byte { return r.now.Load().bytes }

// Region returns the memory for work requests. Its address and key belong to the same registration, even during Rereg.
func (r *MR) Region() Region { return r.now.Load().region }

// SGE returns the entry of length bytes at offset, for a work request. Like slicing, it panics outside the region.
func (r *MR) SGE(offset uint64, length uint32) ibv.SGE {
	return r.now.Load().region.SGE(offset, length)
}

// SGEOf returns the entry for a part of the region's memory, such as a slice of [MR.Bytes], for a work request. Like
// SGE, it panics if b is not inside the region. It also panics if Bytes returns nil.
func (r *MR) SGEOf(b []byte) ibv.SGE {
	now := r.now.Load()
	if len(b) == 0 {
		return now.region.SGE(0, 0)
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(now.bytes)))
	if size := uintptr(len(now.bytes)); from > size || uintptr(len(b)) > size-from || uint64(len(b)) > math.MaxUint32 {
		panic(outside(len(b), now))
	}
	return ibv.SGE{Addr: now.region.Address + uint64(from), Length: uint32(len(b)), LKey: now.region.LKey}
}

// outside returns the panic message of SGEOf.
func outside(n int, now *registration) string {
	switch {
	case now.bytes == nil:
		return "rdma: SGEOf of a region without Go memory; use SGE, which takes an offset"
	case uint64(n) > math.MaxUint32:
		return fmt.Sprintf("rdma: SGEOf of a slice of %d bytes; the maximum is 4 GiB - 1", n)
	}
	return fmt.Sprintf("rdma: SGEOf of a slice of %d bytes that is not inside the region of %d bytes; slice MR.Bytes or "+
		"the registered memory", n, len(now.bytes))
}

// LKey returns the key for local work requests, in host byte order.
func (r *MR) LKey() uint32 { return r.now.Load().region.LKey }

// RKey returns the key that a peer needs to access the memory, in host byte order.
func (r *MR) RKey() uint32 { return r.now.Load().rkey }

// Address returns the address of the first byte, as peers and work requests use it, in host byte order.
func (r *MR) Address() uint64 { return r.now.Load().region.Address }

// Len returns the size in bytes. For a region of the entire address space it is the largest uint64.
func (r *MR) Len() uint64 { return r.now.Load().region.Length }

// Advise prefetches memory that the device will use soon, in regions with on-demand paging. list contains parts of
// regions of this protection domain.
//
// C: ibv_advise_mr
//
// Man: ibv_advise_mr(3)
func (p *PD) Advise(advice ibv.IBUverbsAdviseMRAdvice, flags ibv.IBUverbsAdviseMRFlag, list []ibv.SGE) error {
	const verb = "ibv_advise_mr"
	if len(list) == 0 {
		return invalid(verb, p.name, "the list is empty")
	}
	if err := p.use(verb); err != nil {
		return err
	}
	defer p.done()
	return wrap(verb, p.name, libibverbs.AdviseMR(p.c, advice, flags, &list[0], uint32(len(list))))
}

// Close deregisters the memory. It unpins a slice and lets a Buffer be closed. No work request that uses the region may
// be outstanding. Unbind memory windows first.
//
// C: ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func (r *MR) Close() error { return r.end() }

var errBufferClosed = fmt.Errorf("the buffer is %w", ErrClosed)
