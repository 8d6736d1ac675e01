// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// destroySRQ destroys the shared receive queue in C. rdma_destroy_srq does the same, but does not report a failure.
func (id *ID) destroySRQ(srq *ibv.SRQ) error {
	return id.alter(func() error {
		if err := libibverbs.DestroySRQ(srq); err != nil {
			return err
		}
		id.c.SRQ = 0
		return nil
	})
}

// SRQ returns the ID's shared receive queue, or nil. Close the queue pairs that use it before it.
//
// C: rdma_destroy_srq
//
// Man: rdma_create_srq(3)
func (id *ID) SRQ() *rdma.SRQ {
	id.changes.Lock()
	defer id.changes.Unlock()
	return id.objects.srq
}

// CreateSRQ creates the ID's shared receive queue, which queue pairs that the ID creates later use. A nil pd means
// [ID.PD]. On an ID for queue pairs of type XRC_RECV (see [Hints]), the queue is of type XRC, in the XRC domain that
// all IDs on the device share. The ID creates a completion queue for it, on which GetRecvComp waits.
//
// C: rdma_create_srq
//
// Man: rdma_create_srq(3)
func (id *ID) CreateSRQ(pd *rdma.PD, attr ibv.SRQAttr, o rdma.QueueOptions) (*rdma.SRQ, error) {
	ex := &ibv.SRQInitAttrEx{Attr: attr, CompMask: ibv.SRQ_INIT_ATTR_TYPE, SRQType: ibv.SRQT_BASIC}
	if id.queuePairType() == ibv.QPT_XRC_RECV {
		ex.SRQType = ibv.SRQT_XRC
	}
	if pd != nil {
		ex.CompMask, ex.PD = ex.CompMask|ibv.SRQ_INIT_ATTR_PD, ibv.PtrTo(pd.C())
	}
	return id.createSRQ("rdma_create_srq", ex, o)
}

// queuePairType returns the queue pair type of C's ID.
func (id *ID) queuePairType() ibv.QPType {
	if id.use("", id.name) != nil {
		return 0
	}
	defer id.done()
	return id.c.QPType
}

// CreateSRQEx is CreateSRQ for any type of queue; the CompMask of attr selects its valid fields. For XRC, attr may name
// the completion queue and the domain.
//
// C: rdma_create_srq_ex
//
// Man: rdma_create_srq(3)
func (id *ID) CreateSRQEx(attr *ibv.SRQInitAttrEx, o rdma.QueueOptions) (*rdma.SRQ, error) {
	if attr == nil {
		return nil, id.noAttributes("rdma_create_srq_ex")
	}
	own := *attr
	return id.createSRQ("rdma_create_srq_ex", &own, o)
}

func (id *ID) createSRQ(verb string, attr *ibv.SRQInitAttrEx, o rdma.QueueOptions) (*rdma.SRQ, error) {
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	s, err := id.share()
	if err != nil {
		return nil, id.failed(verb, err)
	}
	id.changes.Lock()
	defer id.changes.Unlock()
	if id.c.SRQ != 0 {
		return nil, verberr.Invalid(verb, id.name(), "already has a shared receive queue")
	}
	if attr.CompMask&ibv.SRQ_INIT_ATTR_PD == 0 || attr.PD == 0 {
		attr.CompMask, attr.PD = attr.CompMask|ibv.SRQ_INIT_ATTR_PD, ibv.PtrTo(s.pd.C())
	}
	if err := id.objects.closeSides(ofSRQ); err != nil { // left over from a queue that the caller has closed
		return nil, err
	}
	if attr.SRQType == ibv.SRQT_XRC && attr.CompMask&ibv.SRQ_INIT_ATTR_TYPE != 0 &&
		(attr.CompMask&ibv.SRQ_INIT_ATTR_CQ == 0 || attr.CQ == 0) {
		if err := id.objects.createCQ(s.device, ofSRQ, attr.Attr.MaxWR); err != nil {
			return nil, errors.Join(id.failed(verb, err), id.objects.closeSides(ofSRQ))
		}
		attr.CompMask, attr.CQ = attr.CompMask|ibv.SRQ_INIT_ATTR_CQ, id.objects.cqs[ofSRQ].Ptr()
	}
	srq, err := s.device.CreateSRQBy(verb, attr, o, func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error) {
		if err := id.alter(func() error { return librdmacm.CreateSRQEx(id.c, own) }); err != nil {
			return nil, err
		}
		return id.c.SRQ.Deref(), nil
	}, id.objects.owner.destroySRQ)
	if err != nil {
		return nil, errors.Join(err, id.objects.closeSides(ofSRQ))
	}
	id.objects.srq = srq
	return srq, nil
}
