// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// xrcd is a handle of an XRC domain.
type xrcd struct {
	*context
	record *ibv.XRCD
	domain *XRCDomain
}

func openXRCD(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.XRCDInitAttr](address)
	const needs = ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS
	if attr.CompMask != needs {
		return 0, syscall.EINVAL
	}
	file, errno := fd.Name(attr.FD)
	if errno != 0 {
		return 0, errno
	}
	f := c.fabric()
	f.mu.Lock()
	defer f.Unlock()
	d := c.device.inodes[file]
	switch {
	case file == "" && attr.Oflags&oCreate == 0: // without a file, the domain is private
		return 0, syscall.EINVAL
	case d == nil && attr.Oflags&oCreate == 0:
		return 0, syscall.EAGAIN
	case d != nil && attr.Oflags&oExclusive != 0:
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.XRCD](c.device)
	if errno != 0 {
		return 0, errno
	}
	if d == nil {
		d = &XRCDomain{file: file, PDs: map[*resource.Domain]int{}}
		if file != "" {
			c.device.inodes[file] = d
		}
	}
	d.handles++
	c.uses++
	record.Context = c.address()
	enter(record, &xrcd{context: c, record: record, domain: d})
	return mem.AddressOf(record), 0
}

// Flags of open(2) with their Linux values, as in the attribute.
const (
	oCreate    = 0o100
	oExclusive = 0o200
)

func closeXRCD(address uint64) runtime.Errno {
	x := locked[xrcd](address)
	if x == nil {
		return syscall.EINVAL
	}
	defer x.fabric().Unlock()
	return x.close()
}

// close is closeXRCD with the fabric's lock.
func (x *xrcd) close() runtime.Errno {
	f := x.fabric()
	last := func() bool { return x.domain.handles == 1 }
	if errno := mayGo(f, mem.AddressOf(x.record), x, func() bool { return last() && x.domain.Uses > 0 }); errno != 0 {
		return errno
	}
	if last() {
		delete(x.device.inodes, x.domain.file)
	}
	x.domain.handles--
	x.context.leave()
	forget(x.record)
	return 0
}

// openQP is ibv_open_qp: another handle of a receiving XRC queue pair.
func openQP(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.QPOpenAttr](address)
	const needs = ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE
	f := c.fabric()
	f.mu.Lock()
	defer f.Unlock()
	handle := find[xrcd](uint64(attr.XRCD))
	if attr.CompMask&needs != needs || attr.CompMask >= ibv.QP_OPEN_ATTR_RESERVED || attr.QPType != ibv.QPT_XRC_RECV ||
		handle == nil || handle.device != c.device {
		return 0, syscall.EINVAL
	}
	of := original(func(q *qp) bool { return q.number == attr.QPNum && q.on == f })
	if of == nil || of.kind != ibv.QPT_XRC_RECV || of.domain != handle.domain || of.device != c.device {
		return 0, syscall.EINVAL
	}
	if c.device.gone {
		return 0, syscall.EIO
	}
	record, errno := allocateOf[qpRecord](f) // a handle is no queue pair more
	if errno != 0 {
		return 0, errno
	}
	record.QPBase = ibv.QP{Context: c.address(), Handle: of.index, QPNum: of.number, State: of.state, QPType: of.kind}
	if attr.CompMask&ibv.QP_OPEN_ATTR_CONTEXT != 0 {
		record.QPBase.QPContext = attr.QPContext
	}
	record.index = ^uint32(0)
	c.uses++
	o := &openedQP{context: c, record: record, of: of}
	of.handles = append(of.handles, o)
	enter(record, o)
	return mem.AddressOf(record), 0
}

// openedQP is a handle that ibv_open_qp gave.
type openedQP struct {
	*context
	record *qpRecord
	of     *qp
	asyncs Reports
}

func (o *openedQP) reported() *Reports { return &o.asyncs }
