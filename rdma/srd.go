package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// CreateEFAQP makes a queue pair of EFA's: with attr's type IBV_QPT_DRIVER and EFADV_QP_DRIVER_TYPE_SRD, one of scalable reliable datagrams.
// Each request says where it goes, as a UD datagram does: [SendRequest.UD] and [WRRequest.UD], with an address handle. attr is that of
// CreateQPEx, and names a protection domain.
//
// C: efadv_create_qp_ex
//
// Man: efadv_create_qp_ex(3)
func (d *Device) CreateEFAQP(attr *ibv.QPInitAttrEx, efa *efadv.QPInitAttr, o QueueOptions) (*QP, error) {
	if efa == nil {
		return nil, noAttributes("efadv_create_qp_ex", d.name)
	}
	return d.createQPEx("efadv_create_qp_ex", attr, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) {
		return libefa.CreateQPEx(d.c, own, efa, uint32(unsafe.Sizeof(*efa)))
	}, libibverbs.DestroyQP)
}

// CreateEFADriverQP is CreateEFAQP for libraries that are older than that: without a [WRProgram].
//
// C: efadv_create_driver_qp
//
// Man: efadv_create_driver_qp(3)
func (p *PD) CreateEFADriverQP(attr *ibv.QPInitAttr, kind efadv.QPDriverType, o QueueOptions) (*QP, error) {
	return p.createQP("efadv_create_driver_qp", attr, o, func(own *ibv.QPInitAttr) (*ibv.QP, error) {
		return libefa.CreateDriverQP(p.c, own, uint32(kind))
	})
}
