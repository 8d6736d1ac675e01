package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// WQ is a work queue: a receive queue by itself, of which a table makes the receiving side of a queue pair.
//
// Man: ibv_create_wq(3)
type WQ struct {
	object
	c *ibv.WQ
}

// RWQIndTable is a table of work queues, over which received packets are spread by a hash.
//
// Man: ibv_create_rwq_ind_table(3)
type RWQIndTable struct {
	object
	c *ibv.RWQIndTable
}

// CreateWQ makes a work queue. attr names its completion queue and protection domain by their Ptr methods.
//
// C: ibv_create_wq
//
// Man: ibv_create_wq(3)
func (d *Device) CreateWQ(attr *ibv.WQInitAttr) (*WQ, error) {
	const verb = "ibv_create_wq"
	pd, err := lookup[PD](d, verb, d.name, "PD", uintptr(attr.PD))
	if err != nil {
		return nil, err
	}
	cq, err := lookup[CQ](d, verb, d.name, "CQ", uintptr(attr.CQ))
	if err != nil {
		return nil, err
	}
	if pd == nil || cq == nil {
		return nil, invalid(verb, d.name, "PD and CQ have to be named")
	}
	w := &WQ{}
	c, err := birth(d, &w.object, w, "WQ", verb, func() (*ibv.WQ, error) { return libibverbs.CreateWQ(d.c, attr) }, libibverbs.DestroyWQ,
		func(c *ibv.WQ) string { return fmt.Sprintf("WQ %#x", c.WQNum) }, &cq.object, &pd.object)
	w.c = c
	return made(w, err)
}
