// SPDX-License-Identifier: BSD-2-Clause

// Package efa adds features of EFA devices to package rdma: scalable reliable datagrams (SRD).
package efa

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	_ "github.com/goverbs/goverbs/rdma/native/efa" // adds EFA to package native
)

// CreateQP creates a queue pair with EFA's attributes. For scalable reliable datagrams, set attr's type to
// IBV_QPT_DRIVER and efa's to EFADV_QP_DRIVER_TYPE_SRD. As with UD, each request needs a destination:
// [rdma.SendRequest.UD] or [rdma.WRRequest.UD], with an address handle. attr is as for [rdma.Device.CreateQPEx], and
// must name a protection domain.
//
// C: efadv_create_qp_ex
//
// Man: efadv_create_qp_ex(3)
func CreateQP(d *rdma.Device, attr *ibv.QPInitAttrEx, efa *efadv.QPInitAttr, o rdma.QueueOptions) (*rdma.QP, error) {
	const verb = "efadv_create_qp_ex"
	if d == nil {
		return nil, verberr.Invalid(verb, "", "the device is nil")
	}
	if efa == nil {
		return nil, verberr.Invalid(verb, d.Name(), "the attributes are nil")
	}
	return d.CreateQPBy(verb, attr, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) {
		return libefa.CreateQPEx(d.C(), own, efa, uint32(unsafe.Sizeof(*efa)))
	}, libibverbs.DestroyQP)
}

// CreateDriverQP is CreateQP for libraries that lack efadv_create_qp_ex. The queue pair has no [rdma.WRProgram].
//
// C: efadv_create_driver_qp
//
// Man: efadv_create_driver_qp(3)
func CreateDriverQP(p *rdma.PD, attr *ibv.QPInitAttr, kind efadv.QPDriverType, o rdma.QueueOptions) (*rdma.QP, error) {
	const verb = "efadv_create_driver_qp"
	if p == nil {
		return nil, verberr.Invalid(verb, "", "the protection domain is nil")
	}
	d := p.Device()
	if attr == nil {
		return nil, verberr.Invalid(verb, d.Name(), "the attributes are nil")
	}
	ex := &ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
		CompMask: ibv.QP_INIT_ATTR_PD, PD: p.Ptr(),
	}
	return d.CreateQPBy(verb, ex, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) {
		plain := *attr
		plain.Cap = own.Cap
		c, err := libefa.CreateDriverQP(p.C(), &plain, uint32(kind))
		own.Cap = plain.Cap
		return c, err
	}, libibverbs.DestroyQP)
}
