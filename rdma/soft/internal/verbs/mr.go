// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// Region is registered memory.
type Region struct {
	*Context
	resource.Region
	record *ibv.MR
	owner  *PD
	backing
	gone atomic.Bool
	imports[Region]
}

// backing is the owner of a region's memory; it is empty for memory of the program.
type backing struct {
	dm     *dm
	buf    *Buf
	mapped *fd.Memory // of a file, from an offset
	offset uint64
	hints  *dmah
}

// mrAccess are the access flags of regions. On-demand memory must be mapped, and is not touched before a message uses
// it.
const mrAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
	ibv.ACCESS_MW_BIND |
	ibv.ACCESS_ZERO_BASED | ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_FLUSH_PERSISTENT | ibv.ACCESS_ON_DEMAND

const PageSize = 4096 // that addresses of regions are compared in

// checkAccess checks access flags: remote write access requires local write access. Unknown optional flags are ignored.
func (d *Device) checkAccess(access ibv.AccessFlags) runtime.Errno {
	access &^= ibv.AccessFlags(ibv.ACCESS_OPTIONAL_RANGE)
	if access&ibv.ACCESS_HUGETLB != 0 { // a promise about pages that this device has no use for
		return syscall.EOPNOTSUPP
	}
	const writes = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_ATOMIC
	if access&^mrAccess != 0 || access&ibv.ACCESS_FLUSH_PERSISTENT != 0 && !d.Persistent || access&writes != 0 &&
		access&ibv.ACCESS_LOCAL_WRITE == 0 {
		return syscall.EINVAL
	}
	return 0
}

// registerAll registers all memory of the process on demand.
func (p *PD) registerAll(iova uint64, access ibv.AccessFlags, of backing) (uint64, runtime.Errno) {
	if errno := p.Device.checkAccess(access); errno != 0 {
		return 0, errno
	}
	if access&ibv.ACCESS_ON_DEMAND == 0 || iova != 0 || of != (backing{}) {
		return 0, syscall.EINVAL
	}
	if p = locked[PD](mem.AddressOf(p.Record)); p == nil {
		return 0, syscall.EINVAL
	}
	defer p.Fabric().Unlock()
	most := uint64(^uintptr(0)) // of addresses of this machine; the record has the requested length
	r, errno := p.newRegion(resource.Memory{Start: resource.Everywhere, Length: most, Base: resource.Everywhere,
		Access: access}, 0)
	if errno != 0 {
		return 0, errno
	}
	r.record.Length = ^uint64(0)
	return mem.AddressOf(r.record), 0
}

// register registers memory at an address, which peers address by iova.
func (p *PD) register(address, length uint64, iova uint64, access ibv.AccessFlags, of backing) (uint64,
	runtime.Errno) {
	if address == 0 && length == ^uint64(0) {
		return p.registerAll(iova, access, of)
	}
	if errno := p.Device.checkAccess(access); errno != 0 {
		return 0, errno
	}
	if length == 0 || length > maxMRSize || address+length < address || iova+length < iova ||
		(iova^address)%PageSize != 0 {
		return 0, syscall.EINVAL
	}
	shown := address
	if of.mapped != nil { // all of it is there, and some of it may be no memory that the kernel has pages of
		shown = of.offset // as libibverbs has it
	} else if access&ibv.ACCESS_ON_DEMAND != 0 {
		if !inAddressSpace(address, length) {
			return 0, syscall.EFAULT
		}
		if errno := mem.Mapped(uintptr(address), uintptr(length)); errno != 0 {
			return 0, errno
		}
	} else if errno := accessible(address, length, access&ibv.ACCESS_LOCAL_WRITE != 0); errno != 0 {
		return 0, errno
	}
	if p = locked[PD](mem.AddressOf(p.Record)); p == nil {
		return 0, syscall.EINVAL
	}
	defer p.Fabric().Unlock()
	if of.buf != nil && of.buf.freed || of.hints != nil && !Still(mem.AddressOf(of.hints.record), of.hints) {
		return 0, syscall.EINVAL
	}
	if access&ibv.ACCESS_ZERO_BASED != 0 {
		iova = 0
	}
	r, errno := p.newRegion(resource.Memory{Start: iova, Length: length, Base: address, Access: access}, shown)
	if errno != 0 {
		return 0, errno
	}
	if r.backing = of; of.buf != nil {
		of.buf.uses++
	}
	if of.hints != nil {
		of.hints.uses++
	}
	return mem.AddressOf(r.record), 0
}

// inAddressSpace reports whether a range lies in the address space of processes.
func inAddressSpace(address, length uint64) bool {
	last := address + length - 1
	return last >= address && uint64(uintptr(last)) == last
}

// accessible is present for a range that may lie outside the address space.
func accessible(address, length uint64, write bool) runtime.Errno {
	if !inAddressSpace(address, length) {
		return syscall.EFAULT
	}
	return mem.Present(uintptr(address), uintptr(length), write)
}

// newRegion creates a region of memory, with an address for programs or, as the record has it, without one.
func (p *PD) newRegion(of resource.Memory, address uint64) (*Region, runtime.Errno) {
	record, errno := allocate[ibv.MR](p.Device)
	if errno != 0 {
		return nil, errno
	}
	r := &Region{Context: p.Context, record: record, owner: p}
	r.of, r.handles = r, []*Region{r}
	r.Memory = of
	r.Domain = p.domain()
	p.Device.Keys.Add(&r.Memory)
	*record = ibv.MR{Context: p.Address(), PD: ibv.PtrTo(p.Record), Addr: uintptr(address), Length: of.Length,
		Handle: p.Device.handle(), LKey: r.Key, RKey: r.Key}
	p.hold(1)
	p.Context.uses++
	Enter(record, r)
	return r, 0
}

// allocNullMR implements the operation alloc_null_mr: reads by its key return zeros, and writes are dropped. Peers
// cannot use it.
func allocNullMR(p *PD) (uint64, runtime.Errno) {
	r, errno := p.newRegion(resource.Memory{Length: ^uint64(0), Access: ibv.ACCESS_LOCAL_WRITE}, 0)
	if errno != 0 {
		return 0, errno
	}
	r.record.RKey = 0
	return mem.AddressOf(r.record), 0
}

func regMR(p *PD, address, length uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	return p.register(address, length, address, access, backing{})
}

func regMRIOVA(p *PD, address, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	return p.register(address, length, iova, access, backing{})
}

// deregMR implements ibv_dereg_mr.
func deregMR(r *Region) runtime.Errno {
	of := r.of
	if errno := mayGo(r, r.record, func() bool { return of.Windows > 0 }); errno != 0 {
		return errno
	}
	of.Device.Keys.Remove(&of.Memory)
	if of.dm != nil {
		of.dm.uses--
	}
	if of.buf != nil {
		of.buf.uses--
		of.buf.release()
	}
	if of.hints != nil {
		of.hints.uses--
	}
	if of.mapped != nil {
		of.mapped.Close()
	}
	of.owner.hold(-1)
	of.gone.Store(true)
	dropHandles(r)
	return 0
}

// reregMR implements ibv_rereg_mr. Results below 0 encode the state of the region.
func reregMR(of ibv.Ptr[ibv.MR], flags ibv.ReregMRFlags, domain ibv.Ptr[ibv.PD], address, length uint64,
	access ibv.AccessFlags) (ibv.ReregMRErrCode, runtime.Errno) {
	r := locked[Region](of)
	if r == nil {
		return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
	}
	defer r.Fabric().Unlock()
	if r.of != r || r.dm != nil || r.mapped != nil || r.Base <= resource.Everywhere || flags == 0 ||
		flags&^ibv.REREG_MR_FLAGS_SUPPORTED != 0 {
		return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
	}
	to, owner := r.Memory, r.owner
	if access != 0 && flags&ibv.REREG_MR_CHANGE_ACCESS == 0 {
		return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
	}
	if flags&ibv.REREG_MR_CHANGE_PD != 0 {
		if owner = findOn[PD](r.Context, domain); owner == nil {
			return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
		}
		to.Domain = owner.domain()
	}
	if flags&ibv.REREG_MR_CHANGE_ACCESS != 0 {
		if r.Device.checkAccess(access) != 0 {
			return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
		}
		to.Access = access
	}
	if flags&ibv.REREG_MR_CHANGE_TRANSLATION != 0 {
		if address == 0 || length == 0 || address+length < address {
			return ibv.REREG_MR_ERR_INPUT, syscall.EINVAL
		}
		to.Base, to.Start, to.Length = address, address, length
	}
	if to.Access&ibv.ACCESS_ZERO_BASED != 0 {
		to.Start = 0
	}
	if errno := accessible(to.Base, to.Length, to.Access&ibv.ACCESS_LOCAL_WRITE != 0); errno != 0 {
		return ibv.REREG_MR_ERR_CMD, errno
	}
	if r.Windows > 0 {
		return ibv.REREG_MR_ERR_CMD, syscall.EBUSY
	}
	r.owner.hold(-1)
	owner.hold(1)
	r.owner, r.Memory = owner, to
	r.record.PD = ibv.PtrTo(owner.Record)
	r.record.Addr, r.record.Length = uintptr(to.Base), to.Length
	return 0, 0
}
