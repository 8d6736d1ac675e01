// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// createSRQ is rdma_create_srq.
func createSRQ(id *identifier, pd ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.SRQInitAttr]) runtime.Errno {
	if init == 0 {
		return syscall.EINVAL
	}
	attr := init.Deref()
	ex := &ibv.SRQInitAttrEx{
		SRQContext: attr.SRQContext, Attr: attr.Attr, CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD,
		SRQType: ibv.SRQT_BASIC, PD: pd,
	}
	if id.kind == ibv.QPT_XRC_RECV {
		ex.SRQType = ibv.SRQT_XRC
	}
	errno := id.createSRQ(ex)
	attr.Attr = ex.Attr
	return errno
}

// createSRQ is rdma_create_srq_ex.
func (id *identifier) createSRQ(attr *ibv.SRQInitAttrEx) runtime.Errno {
	r := id.record
	c := verbs.Find[verbs.Context](uint64(r.Verbs))
	if c == nil || attr.CompMask&ibv.SRQ_INIT_ATTR_TYPE == 0 {
		return syscall.EINVAL
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.SRQ_INIT_ATTR_PD, r.PD
	}
	if attr.SRQType == ibv.SRQT_XRC {
		if errno := id.xrcParts(attr); errno != 0 {
			return errno
		}
	}
	address, errno := verbs.CreateSRQEx(c, attr)
	if errno != 0 {
		id.destroyCQs()
		return errno
	}
	r.SRQ = ibv.Ptr[ibv.SRQ](address)
	return 0
}

// xrcParts sets the missing parts of an XRC shared receive queue: the domain of all identifiers on the device, and a
// completion queue.
func (id *identifier) xrcParts(attr *ibv.SRQInitAttrEx) runtime.Errno {
	if attr.CompMask&ibv.SRQ_INIT_ATTR_XRCD == 0 || attr.XRCD == 0 {
		domain, errno := id.xrcDomain()
		if errno != 0 {
			return errno
		}
		attr.XRCD = domain
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_CQ == 0 || attr.CQ == 0 {
		if errno := id.createCQs(false, 0, true, attr.Attr.MaxWR); errno != 0 {
			return errno
		}
		attr.CQ = id.record.RecvCQ
	}
	attr.CompMask |= ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ
	return 0
}

// destroySRQ is rdma_destroy_srq.
func destroySRQ(id *identifier) runtime.Errno {
	verbs.DestroySRQ(id.record.SRQ)
	id.record.SRQ = 0
	id.destroyCQs()
	return 0
}
