// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// XRCD is a handle of an XRC domain.
type XRCD struct {
	*Context
	record *ibv.XRCD
	domain *resource.XRCDomain
}

func OpenXRCD(c *Context, attr *ibv.XRCDInitAttr) (uint64, runtime.Errno) {
	const needs = ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS
	if attr.CompMask != needs {
		return 0, syscall.EINVAL
	}
	file, errno := fd.Name(attr.FD)
	if errno != 0 {
		return 0, errno
	}
	f := c.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	d := c.Device.inodes[file]
	switch {
	case file == "" && attr.Oflags&OCreate == 0: // without a file, the domain is private
		return 0, syscall.EINVAL
	case d == nil && attr.Oflags&OCreate == 0:
		return 0, syscall.EAGAIN
	case d != nil && attr.Oflags&OExclusive != 0:
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.XRCD](c.Device)
	if errno != 0 {
		return 0, errno
	}
	if d == nil {
		d = &resource.XRCDomain{File: file, PDs: map[*resource.Domain]int{}}
		if file != "" {
			c.Device.inodes[file] = d
		}
	}
	d.Handles++
	record.Context = c.Address()
	return add(c, record, &XRCD{Context: c, record: record, domain: d})
}

// Flags of open(2) with their Linux values, as in the attribute.
const (
	OCreate    = 0o100
	OExclusive = 0o200
)

// Close implements ibv_close_xrcd. The caller holds Core.Mu.
func (x *XRCD) Close() runtime.Errno {
	d := x.domain
	return destroy(x, x.record, func() bool { return d.Handles == 1 && d.Uses > 0 }, func() {
		if d.Handles--; d.Handles == 0 {
			delete(x.Device.inodes, d.File)
		}
	})
}

// openQP implements ibv_open_qp: another handle of a receiving XRC queue pair.
func openQP(c *Context, attr *ibv.QPOpenAttr) (uint64, runtime.Errno) {
	const needs = ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE
	f, handle := c.Fabric(), findOn[XRCD](c, attr.XRCD)
	if attr.CompMask&needs != needs || attr.CompMask >= ibv.QP_OPEN_ATTR_RESERVED || attr.QPType != ibv.QPT_XRC_RECV ||
		handle == nil {
		return 0, syscall.EINVAL
	}
	of := original(func(q *QP) bool { return q.Number == attr.QPNum && q.On == f })
	if of == nil || of.Kind != ibv.QPT_XRC_RECV || of.Domain != handle.domain || of.Device != c.Device {
		return 0, syscall.EINVAL
	}
	if c.Device.Gone {
		return 0, syscall.EIO
	}
	record, errno := AllocateOf[qpRecord](f) // a handle is no queue pair more
	if errno != 0 {
		return 0, errno
	}
	record.QPBase = ibv.QP{Context: c.Address(), Handle: of.index, QPNum: of.Number, State: of.State, QPType: of.Kind}
	if attr.CompMask&ibv.QP_OPEN_ATTR_CONTEXT != 0 {
		record.QPBase.QPContext = attr.QPContext
	}
	record.index = ^uint32(0)
	o := &openedQP{Context: c, record: record, of: of}
	of.handles = append(of.handles, o)
	return add(c, record, o)
}

// openedQP is a handle from ibv_open_qp.
type openedQP struct {
	*Context
	record *qpRecord
	of     *QP
	asyncs resource.Reports
}

func (o *openedQP) reported() *resource.Reports { return &o.asyncs }
