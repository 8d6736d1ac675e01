// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// xrcDomain is an XRC domain. Shared receive queues and queue pairs of type XRC_RECV belong to one.
type xrcDomain struct {
	context *context
	record  *ibv.XRCD
	handle  uint32
}

// openXRCD is the operation open_xrcd.
func (b *Backend) openXRCD(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.XRCDInitAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	const needs = ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS
	switch _, ok := c.own.(driver.XRC); {
	case !ok:
		return 0, syscall.EOPNOTSUPP
	case attr.CompMask&^needs != 0:
		return 0, syscall.ENOSYS
	case attr.CompMask != needs:
		return 0, syscall.EINVAL
	}
	out, errno := write[uapi.IBUverbsOpenXRCDResp](c, uapi.IB_USER_VERBS_CMD_OPEN_XRCD,
		&uapi.IBUverbsOpenXRCD{FD: uint32(attr.FD), Oflags: uint32(attr.Oflags)})
	if errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.XRCD](b)
	if errno != 0 {
		c.closeXRCD(out.XRCDHandle)
		return 0, errno
	}
	record.Context = c.pointer()
	c.uses.Add(1)
	b.enter(addressOf(record), &xrcDomain{context: c, record: record, handle: out.XRCDHandle})
	return addressOf(record), 0
}

func (c *context) closeXRCD(handle uint32) syscall.Errno {
	_, errno := write[none](c, uapi.IB_USER_VERBS_CMD_CLOSE_XRCD, &uapi.IBUverbsCloseXRCD{XRCDHandle: handle})
	return errno
}

// closeXRCD is the operation close_xrcd.
func (b *Backend) closeXRCD(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	x := find[xrcDomain](b, address)
	if x == nil {
		return uint64(syscall.EINVAL), 0
	}
	if errno := x.context.closeXRCD(x.handle); errno != 0 {
		return uint64(errno), 0
	}
	b.forget(address)
	x.context.uses.Add(-1)
	free(b, x.record)
	return 0, 0
}

// openQP is the operation open_qp: a further handle of a queue pair of type XRC_RECV.
func (b *Backend) openQP(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.QPOpenAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	const needs = ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE
	if _, ok := c.own.(driver.XRC); !ok || attr.CompMask >= ibv.QP_OPEN_ATTR_RESERVED {
		return 0, syscall.EOPNOTSUPP
	}
	x := find[xrcDomain](b, uint64(attr.XRCD))
	if x == nil || x.context != c || attr.CompMask&needs != needs {
		return 0, syscall.EINVAL
	}
	record, errno := allocate[qpRecord](b)
	if errno != 0 {
		return 0, errno
	}
	out, errno := write[uapi.IBUverbsCreateQPResp](c, uapi.IB_USER_VERBS_CMD_OPEN_QP, &uapi.IBUverbsOpenQP{
		UserHandle: addressOf(record), PDHandle: x.handle, QPN: attr.QPNum, QPType: uapi.IBUverbsQPType(attr.QPType)})
	if errno != 0 {
		free(b, record)
		return 0, errno
	}
	record.QPBase = ibv.QP{Context: c.pointer(), QPContext: attr.QPContext, Handle: out.QPHandle, QPNum: attr.QPNum,
		QPType: attr.QPType, State: ibv.QPS_UNKNOWN}
	q := &queuePair{context: c, record: record, own: noQueues{}, path: noQueues{}}
	record.index = b.qps.add(q)
	c.uses.Add(1)
	b.enter(addressOf(record), q)
	return addressOf(record), 0
}

// noQueues is the driver's part of a queue pair opened by ibv_open_qp, which is not known to the driver.
type noQueues struct{}

func (noQueues) End(destroy func() syscall.Errno) syscall.Errno { return destroy() }

func (noQueues) Free() {}

func (n noQueues) Path(*ibv.QP, ibv.QPCap, bool) (driver.QPPath, syscall.Errno) { return n, 0 }

func (noQueues) Cap(cap ibv.QPCap) ibv.QPCap { return cap }

func (noQueues) Reset() {}

func (noQueues) PostSend(_ *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	*bad = ibv.PtrTo(list)
	return int32(syscall.EINVAL)
}

func (noQueues) PostRecv(_ *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	*bad = ibv.PtrTo(list)
	return int32(syscall.EINVAL)
}

// srqNumber is the operation get_srq_num: the number by which requests name a queue.
func (b *Backend) srqNumber(address, to, _, _, _, _ uint64) (uint64, runtime.Errno) {
	s := find[sharedQueue](b, address)
	if s == nil || to == 0 {
		return uint64(syscall.EINVAL), 0
	}
	if s.kind != ibv.SRQT_XRC {
		return uint64(syscall.EOPNOTSUPP), 0
	}
	*ibv.Ptr[uint32](to).Deref() = s.number
	return 0, 0
}
