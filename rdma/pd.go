// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// PD is a protection domain. A queue pair can only use memory regions and other objects of its own domain.
//
// Man: ibv_alloc_pd(3)
type PD struct {
	object
	device *Device
	c      *ibv.PD
}

// AllocPD allocates a protection domain.
//
// C: ibv_alloc_pd
//
// Man: ibv_alloc_pd(3)
func (d *Device) AllocPD() (*PD, error) {
	return d.newPD("ibv_alloc_pd", func() (*ibv.PD, error) { return libibverbs.AllocPD(d.c) }, libibverbs.DeallocPD)
}

// ImportPD imports a protection domain of another process. handle is its handle in that process. Close ends the import,
// but does not free the domain.
//
// C: ibv_import_pd, ibv_unimport_pd
//
// Man: ibv_import_pd(3)
func (d *Device) ImportPD(handle uint32) (*PD, error) {
	return d.newPD("ibv_import_pd", func() (*ibv.PD, error) { return libibverbs.ImportPD(d.c, handle) },
		libibverbs.UnimportPD)
}

// AllocParentDomain creates a parent domain from a protection domain and an optional [TD], which are set in attr with
// their Ptr methods. Use it like a PD.
//
// C: ibv_alloc_parent_domain
//
// Man: ibv_alloc_parent_domain(3)
func (d *Device) AllocParentDomain(attr *ibv.ParentDomainInitAttr) (*PD, error) {
	const verb = "ibv_alloc_parent_domain"
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	pd, err := named[PD](d, verb, d.name, "PD", uintptr(attr.PD))
	if err != nil {
		return nil, err
	}
	td, err := lookup[TD](d, verb, d.name, "TD", uintptr(attr.TD))
	if err != nil {
		return nil, err
	}
	parents := []*object{&pd.object}
	if td != nil {
		parents = append(parents, &td.object)
	}
	return d.newPD(verb, func() (*ibv.PD, error) { return libibverbs.AllocParentDomain(d.c, attr) },
		libibverbs.DeallocPD, parents...)
}

func (d *Device) newPD(verb string, create func() (*ibv.PD, error), destroy func(*ibv.PD) error,
	parents ...*object) (*PD, error) {
	p := &PD{device: d}
	err := createObject(d, &p.object, &p.c, p, verb, create, destroy,
		func(c *ibv.PD) string { return fmt.Sprintf("PD %d on %s", c.Handle, d.name) }, parents...)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the PD.
func (p *PD) C() *ibv.PD { return whileOpen(&p.object, p.c) }

// Ptr returns the protection domain for use in attributes.
func (p *PD) Ptr() ibv.Ptr[ibv.PD] { return ptrWhileOpen(&p.object, p.c) }

// Device returns the device of the protection domain.
func (p *PD) Device() *Device { return p.device }

// Close frees the protection domain. Close its objects first.
//
// C: ibv_dealloc_pd
//
// Man: ibv_alloc_pd(3)
func (p *PD) Close() error { return p.end() }

// TD is a thread domain. Objects of a parent domain with a TD may be used by only one goroutine at a time, so that the
// provider can omit locks. The caller must ensure this.
//
// Man: ibv_alloc_td(3)
type TD struct {
	object
	c *ibv.TD
}

// AllocTD allocates a thread domain.
//
// C: ibv_alloc_td
//
// Man: ibv_alloc_td(3)
func (d *Device) AllocTD(attr *ibv.TDInitAttr) (*TD, error) {
	if attr == nil {
		return nil, noAttributes("ibv_alloc_td", d.name)
	}
	t := &TD{}
	err := createObject(d, &t.object, &t.c, t, "ibv_alloc_td",
		func() (*ibv.TD, error) { return libibverbs.AllocTD(d.c, attr) }, libibverbs.DeallocTD,
		func(*ibv.TD) string { return fmt.Sprintf("thread domain on %s", d.name) })
	return made(t, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the TD.
func (t *TD) C() *ibv.TD { return whileOpen(&t.object, t.c) }

// Ptr returns the domain for use in attributes.
func (t *TD) Ptr() ibv.Ptr[ibv.TD] { return ptrWhileOpen(&t.object, t.c) }

// Close frees the domain.
//
// C: ibv_dealloc_td
//
// Man: ibv_alloc_td(3)
func (t *TD) Close() error { return t.end() }
