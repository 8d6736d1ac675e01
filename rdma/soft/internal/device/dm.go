// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
	"runtime/debug"
)

// maxDM is how much memory a device has, in bytes.
const maxDM = 1 << 20

const maxDMAlign = 12 // log2 of the largest alignment that can be asked for

// dm is memory of the device. Programs have no address of it.
type dm struct {
	*context
	record *ibv.DM
	words  []uint64 // which is aligned as atomics want it
	length uint64
	uses   int // regions
}

func (m *dm) base() uint64 { return addressOf(&m.words[0]) }

// holds says whether a range is in the memory.
func (m *dm) holds(offset, length uint64) bool {
	return offset <= m.length && length <= m.length-offset
}

// allocDM is the operation alloc_dm.
func allocDM(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, errnos.EINVAL
	}
	attr := at[ibv.AllocDMAttr](address)
	if attr.CompMask != 0 || attr.Length == 0 || attr.Length > maxDM || attr.LogAlignReq > maxDMAlign {
		return 0, errnos.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().unlock()
	if c.device.dmUsed+attr.Length > maxDM {
		return 0, errnos.ENOMEM
	}
	record, errno := allocate[ibv.DM](c.device)
	if errno != 0 {
		return 0, errno
	}
	*record = all.slots.dm
	record.Context, record.Handle = c.address(), c.device.handle()
	c.device.dmUsed += attr.Length
	c.uses++
	enter(record, &dm{context: c, record: record, words: make([]uint64, (attr.Length+7)/8), length: attr.Length})
	return addressOf(record), 0
}

// freeDM is the operation free_dm.
func freeDM(address uint64) runtime.Errno {
	m := locked[dm](address)
	if m == nil {
		return errnos.EINVAL
	}
	defer m.fabric().unlock()
	if errno := mayGo(m.fabric(), address, m, func() bool { return m.uses > 0 }); errno != 0 {
		return errno
	}
	m.device.dmUsed -= m.length
	m.context.uses--
	forget(m.record)
	return 0
}

// regDMMR is the operation reg_dm_mr. Addresses of the region count from 0.
func regDMMR(domain, address, offset, length, flags, _ uint64) (uint64, runtime.Errno) {
	p, access := locked[pd](domain), ibv.AccessFlags(flags)
	if p == nil {
		return 0, errnos.EINVAL
	}
	defer p.fabric().unlock()
	m := find[dm](address)
	if m == nil || m.device != p.device || length == 0 || !m.holds(offset, length) ||
		access&ibv.ACCESS_ZERO_BASED == 0 {
		return 0, errnos.EINVAL
	}
	if errno := p.device.checkAccess(access); errno != 0 {
		return 0, errno
	}
	r, errno := p.newRegion(memory{length: length, base: m.base() + offset, access: access}, 0)
	if errno != 0 {
		return 0, errno
	}
	r.dm = m
	m.uses++
	return addressOf(r.record), 0
}

// memcpyToDM is the slot memcpy_to_dm, and memcpyFromDM is memcpy_from_dm.
func memcpyToDM(address, offset, host, length, _, _ uint64) (uint64, runtime.Errno) {
	return uint64(copyDM(address, offset, length, host, func(device uint64) { move(device, host, length) })), 0
}

func memcpyFromDM(host, address, offset, length, _, _ uint64) (uint64, runtime.Errno) {
	return uint64(copyDM(address, offset, length, host, func(device uint64) { move(host, device, length) })), 0
}

func copyDM(address, offset, length, host uint64, do func(device uint64)) runtime.Errno {
	m := locked[dm](address)
	if m == nil {
		return errnos.EINVAL
	}
	defer m.fabric().unlock()
	if !m.holds(offset, length) || host == 0 && length > 0 {
		return errnos.EFAULT
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the host's memory may be gone
	do(m.base() + offset)
	return 0
}
