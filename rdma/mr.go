package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// MR is a memory region: memory that a device may read or write under the region's keys.
//
// # Lifetime of the memory
//
// A region over a Go slice pins it until the region is closed; one over a [Buffer] keeps the Buffer from being closed. That a wait for a
// completion is cancelled gives nothing back: the device may use the memory until the completion has come, or the queue pair is drained
// or closed. So close a region after that.
//
// Man: ibv_reg_mr(3)
type MR struct {
	object
	c      *ibv.MR
	pd     *PD
	bytes  []byte // nil: not memory that Go can touch
	region Region
	rkey   uint32
	pinned *Pinned // or
	buffer *Buffer // or neither
}

// RegMR registers a Go slice, which is pinned until the region is closed.
//
// Access of ibv.AccessFlags: the device always reads for local use; ACCESS_LOCAL_WRITE allows it to write what it receives or reads, and is
// needed for ACCESS_REMOTE_WRITE and ACCESS_REMOTE_ATOMIC.
//
// C: ibv_reg_mr, ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegMR(b []byte, access ibv.AccessFlags) (*MR, error) {
	if len(b) == 0 {
		return nil, invalid("ibv_reg_mr", p.name, "there are no bytes to register")
	}
	pinned := Pin(b)
	r := &MR{pd: p, bytes: b, pinned: pinned, region: pinned.Region(0)}
	if err := r.register("ibv_reg_mr", ibv.AccessRegMR, access, r.plain(access)); err != nil {
		pinned.Unpin()
		return nil, err
	}
	return r, nil
}

// RegBuffer registers memory outside the garbage collector's, which cannot be closed before the region is.
func (p *PD) RegBuffer(b *Buffer, access ibv.AccessFlags) (*MR, error) {
	if err := b.hold(); err != nil {
		return nil, wrap("ibv_reg_mr", p.name, err)
	}
	r := &MR{pd: p, bytes: b.Bytes(), buffer: b, region: b.Region(0)}
	if err := r.register("ibv_reg_mr", ibv.AccessRegMR, access, r.plain(access)); err != nil {
		b.release()
		return nil, err
	}
	return r, nil
}

// RegAddress registers memory that this package knows nothing of but its address: a GPU's, say, or that of another library. It has to stay
// where it is until the region is closed. Peers and work requests name it by iova, which is mostly the address itself.
//
// C: ibv_reg_mr_iova, ibv_reg_mr_iova2
//
// Man: ibv_reg_mr(3)
func (p *PD) RegAddress(address uintptr, length, iova uint64, access ibv.AccessFlags) (*MR, error) {
	r := &MR{pd: p, region: Region{Address: iova, Length: length}}
	return made(r, r.register("ibv_reg_mr_iova", ibv.AccessRegMRIova, access, func() (*ibv.MR, error) {
		if iova == uint64(address) {
			return libibverbs.RegMR(p.c, address, length, access)
		}
		return libibverbs.RegMRIOVA(p.c, address, length, iova, access)
	}))
}

// RegDMABuf registers a part of a dma-buf, from offset on. The descriptor may be closed afterwards.
//
// C: ibv_reg_dmabuf_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegDMABuf(fd int, offset, length, iova uint64, access ibv.AccessFlags) (*MR, error) {
	r := &MR{pd: p, region: Region{Address: iova, Length: length}}
	return made(r, r.register("ibv_reg_dmabuf_mr", ibv.AccessRegDmabufMR, access, func() (*ibv.MR, error) {
		return libibverbs.RegDMABufMR(p.c, offset, length, iova, fd, access)
	}))
}

// RegImplicit registers the whole address space with on-demand paging, on devices that have it (odp_caps of Device.QueryEx,
// IBV_ODP_SUPPORT_IMPLICIT). Memory of Go must still be pinned while a device uses it: the collector may hand its pages to others.
//
// C: ibv_reg_mr
//
// Man: ibv_reg_mr(3)
func (p *PD) RegImplicit(access ibv.AccessFlags) (*MR, error) {
	access |= ibv.ACCESS_ON_DEMAND
	r := &MR{pd: p, region: Region{Length: ^uint64(0)}}
	return made(r, r.register("ibv_reg_mr", ibv.AccessRegMR, access, func() (*ibv.MR, error) { return libibverbs.RegMR(p.c, 0, ^uint64(0), access) }))
}

// RegMREx registers what attr says: any of the other kinds, with a DMA handle or memory of
// [PD.AllocBuf], which attr names by their Ptr methods.
//
// C: ibv_reg_mr_ex
//
// Man: ibv_reg_mr(3)
func (p *PD) RegMREx(attr *ibv.MRInitAttr) (*MR, error) {
	const verb = "ibv_reg_mr_ex"
	dmah, err := lookup[DMAH](p.device, verb, p.name, "DMAH", uintptr(attr.DMAH))
	if err != nil {
		return nil, err
	}
	r := &MR{pd: p, region: Region{Address: attr.IOVA, Length: attr.Length}}
	if ibv.MRInitAttrMask(attr.CompMask)&ibv.REG_MR_MASK_IOVA == 0 {
		r.region.Address = uint64(attr.Addr)
	}
	var parents []*object
	if dmah != nil {
		parents = append(parents, &dmah.object)
	}
	if ibv.MRInitAttrMask(attr.CompMask)&ibv.REG_MR_MASK_BUF != 0 {
		buf, err := lookup[Buf](p.device, verb, p.name, "Buf", uintptr(attr.Buf))
		if err != nil {
			return nil, err
		}
		if buf != nil {
			parents = append(parents, &buf.object)
		}
	}
	return made(r, r.register(verb, ibv.AccessRegMR, attr.Access, func() (*ibv.MR, error) { return libibverbs.RegMREx(p.c, attr) }, parents...))
}

// AllocNullMR registers nothing: what is read by it is zeros, and what is written is dropped.
//
// C: ibv_alloc_null_mr
//
// Man: ibv_alloc_null_mr(3)
func (p *PD) AllocNullMR() (*MR, error) {
	r := &MR{pd: p, region: Region{Length: ^uint64(0)}}
	return made(r, r.register("ibv_alloc_null_mr", ibv.AccessRegMR, 0, func() (*ibv.MR, error) { return libibverbs.AllocNullMR(p.c) }))
}

// ImportMR gives the region of another process that has the number handle there. Close forgets it, and leaves it to that process.
//
// C: ibv_import_mr, ibv_unimport_mr
//
// Man: ibv_import_mr(3)
func (p *PD) ImportMR(handle uint32) (*MR, error) {
	r := &MR{pd: p}
	if err := r.create("ibv_import_mr", func() (*ibv.MR, error) { return libibverbs.ImportMR(p.c, handle) }, libibverbs.UnimportMR); err != nil {
		return nil, err
	}
	r.region = Region{Address: uint64(r.c.Addr), Length: r.c.Length, LKey: r.c.LKey}
	return r, nil
}

// plain registers by address.
func (r *MR) plain(access ibv.AccessFlags) func() (*ibv.MR, error) {
	return func() (*ibv.MR, error) {
		return libibverbs.RegMR(r.pd.c, uintptr(r.region.Address), r.region.Length, access)
	}
}

// register checks the access and makes the region.
func (r *MR) register(verb string, use ibv.AccessUse, access ibv.AccessFlags, create func() (*ibv.MR, error), parents ...*object) error {
	if v, flag := ibv.CheckAccess(use, access); refused(v) {
		return invalid(verb, r.pd.name, "access %v: %v: %s", access, flag, v.Reason)
	}
	return r.create(verb, create, libibverbs.DeregMR, parents...)
}

func (r *MR) create(verb string, create func() (*ibv.MR, error), destroy func(*ibv.MR) error, parents ...*object) error {
	ended := func(c *ibv.MR) error {
		if err := destroy(c); err != nil {
			return err
		}
		r.letGo()
		return nil
	}
	c, err := birth(r.pd.device, &r.object, r, "MR", verb, create, ended, func(c *ibv.MR) string { return fmt.Sprintf("MR %#x", c.LKey) }, append(parents, &r.pd.object)...)
	if err != nil {
		return err
	}
	r.c, r.region.LKey, r.rkey = c, c.LKey, c.RKey
	return nil
}

// letGo gives the memory back.
func (r *MR) letGo() {
	if r.pinned != nil {
		r.pinned.Unpin()
	}
	if r.buffer != nil {
		r.buffer.release()
	}
	r.pinned, r.buffer = nil, nil
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the MR.
func (r *MR) C() *ibv.MR { return whileOpen(&r.object, r.c) }

// Ptr is the region as attributes name it.
func (r *MR) Ptr() ibv.Ptr[ibv.MR] { return ptrWhileOpen(&r.object, r.c) }

// PD is the region's protection domain.
func (r *MR) PD() *PD { return r.pd }

// Bytes is the memory, where it is a Go slice or a Buffer's, and else nil. A device may be writing it.
func (r *MR) Bytes() []byte { return r.bytes }

// Region is the memory as work requests name it.
func (r *MR) Region() Region { return r.region }

// SGE is length bytes from offset on, for a work request. Like slicing, it panics outside of the region.
func (r *MR) SGE(offset uint64, length uint32) ibv.SGE { return r.region.SGE(offset, length) }

// LKey is the key for work requests of this side, in host byte order.
func (r *MR) LKey() uint32 { return r.region.LKey }

// RKey is the key that a peer has to know to reach the memory, in host byte order.
func (r *MR) RKey() uint32 { return r.rkey }

// Address is where peers and work requests find the first byte.
func (r *MR) Address() uint64 { return r.region.Address }

// Len is the size in bytes.
func (r *MR) Len() uint64 { return r.region.Length }

// Rereg changes what the region is: its memory (REREG_MR_CHANGE_TRANSLATION), its protection domain, its access, as flags say; what they do
// not say may be nil or 0. The keys may change, and no work request may be using the region.
//
// Where C fails and says that the region is no longer valid, the error says so too; it has to be closed.
//
// C: ibv_rereg_mr
//
// Man: ibv_rereg_mr(3)
func (r *MR) Rereg(flags ibv.ReregMRFlags, pd *PD, b []byte, access ibv.AccessFlags) error {
	const verb = "ibv_rereg_mr"
	holds := []*object{&r.object}
	if flags&ibv.REREG_MR_CHANGE_PD != 0 {
		if pd == nil {
			return invalid(verb, r.name, "IBV_REREG_MR_CHANGE_PD wants a protection domain")
		}
		holds = append(holds, &pd.object)
	} else {
		pd = nil
	}
	if err := useAll(verb, holds...); err != nil {
		return err
	}
	defer doneAll(holds...)
	var pinned *Pinned
	region := r.region
	if flags&ibv.REREG_MR_CHANGE_TRANSLATION != 0 {
		if len(b) == 0 {
			return invalid(verb, r.name, "IBV_REREG_MR_CHANGE_TRANSLATION wants memory")
		}
		pinned = Pin(b)
		region = pinned.Region(0)
	}
	var domain *ibv.PD
	if pd != nil {
		domain = pd.c
	}
	code, err := libibverbs.ReregMR(r.c, flags, domain, uintptr(region.Address), region.Length, access)
	if err != nil {
		if pinned != nil && code == ibv.REREG_MR_ERR_INPUT {
			pinned.Unpin() // the region is what it was
		} else if pinned != nil {
			r.pinnedToo(pinned)
		}
		return explain(verb, r.name, reregReason(code), err)
	}
	if pinned != nil {
		r.letGo()
		r.pinned, r.bytes = pinned, b
	}
	if pd != nil {
		pd.mu.Lock()
		pd.children = append(pd.children, &r.object)
		pd.mu.Unlock()
		r.pd.leaves(&r.object)
		r.parents[len(r.parents)-1] = &pd.object
		r.pd = pd
	}
	r.region = region
	r.region.LKey, r.rkey = r.c.LKey, r.c.RKey
	return nil
}

// pinnedToo keeps memory that the region may be over by now, beside what it was over.
func (r *MR) pinnedToo(p *Pinned) {
	old := r.pinned
	if old == nil {
		r.pinned = p
		return
	}
	old.also = append(old.also, p)
}

func reregReason(code ibv.ReregMRErrCode) string {
	switch code {
	case ibv.REREG_MR_ERR_INPUT:
		return "the region is as it was"
	case ibv.REREG_MR_ERR_DONT_FORK_NEW, ibv.REREG_MR_ERR_DO_FORK_OLD:
		return fmt.Sprintf("%v: the region still works; its memory after a fork does not", code)
	}
	return fmt.Sprintf("%v: the region is no longer valid, and has to be closed", code)
}

// Advise tells the device about memory that it will use soon, in regions with on-demand paging: list names parts of regions of this
// protection domain.
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

// Close deregisters the memory, and gives it back: a pinned slice to the garbage collector, a Buffer to who wants to close it. No work
// request that uses it may be outstanding. Memory windows have to be unbound before.
//
// C: ibv_dereg_mr
//
// Man: ibv_reg_mr(3)
func (r *MR) Close() error { return r.end() }

var errBufferClosed = fmt.Errorf("the buffer is %w", ErrClosed)
