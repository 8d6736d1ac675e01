// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// AH is an address handle: the path to a peer for datagrams. It must exist until every request that uses it has
// completed.
//
// Man: ibv_create_ah(3)
type AH struct {
	object
	c *ibv.AH
}

// CreateAH creates an address handle. [QP.Path] returns the attributes of the path to an endpoint.
//
// C: ibv_create_ah
//
// Man: ibv_create_ah(3)
func (p *PD) CreateAH(attr *ibv.AHAttr) (*AH, error) {
	const verb = "ibv_create_ah"
	if attr == nil {
		return nil, noAttributes(verb, p.name)
	}
	return p.newAH(verb, func() (*ibv.AH, error) {
		ah, err := libibverbs.CreateAH(p.c, attr)
		if err != nil {
			refused := p.device.refused()
			err = explain("", "", cmp.Or(refused.Path(attr), refused.Unreached(attr, err)), err)
		}
		return ah, err
	})
}

// CreateAHFromWC creates an address handle for replies to the sender of a datagram. wc is the datagram's completion,
// and grh its header as returned by [Datagram].
//
// C: ibv_create_ah_from_wc
//
// Man: ibv_create_ah_from_wc(3)
func (p *PD) CreateAHFromWC(wc *ibv.WC, grh *ibv.GRH, port uint8) (*AH, error) {
	const verb = "ibv_create_ah_from_wc"
	if wc == nil || grh == nil {
		return nil, invalid(verb, p.name, "the completion or the header is nil")
	}
	return p.newAH(verb, func() (*ibv.AH, error) { return libibverbs.CreateAHFromWC(p.c, wc, grh, port) })
}

// AHAttrFromWC returns the attributes of an address handle for replies to the sender of a datagram.
//
// C: ibv_init_ah_from_wc
//
// Man: ibv_create_ah_from_wc(3)
func (d *Device) AHAttrFromWC(wc *ibv.WC, grh *ibv.GRH, port uint8) (*ibv.AHAttr, error) {
	const verb = "ibv_init_ah_from_wc"
	attr := new(ibv.AHAttr)
	if wc == nil || grh == nil {
		return attr, invalid(verb, d.name, "the completion or the header is nil")
	}
	return attr, d.query(verb, func() error { return libibverbs.InitAHFromWC(d.c, port, wc, grh, attr) })
}

func (p *PD) newAH(verb string, create func() (*ibv.AH, error)) (*AH, error) {
	a := &AH{}
	err := createObject(p.device, &a.object, &a.c, a, verb, create, libibverbs.DestroyAH,
		func(c *ibv.AH) string { return fmt.Sprintf("AH %d on %s", c.Handle, p.device.name) }, &p.object)
	return made(a, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the AH.
func (a *AH) C() *ibv.AH { return whileOpen(&a.object, a.c) }

// Ptr returns the handle for use in work requests.
func (a *AH) Ptr() ibv.Ptr[ibv.AH] { return ptrWhileOpen(&a.object, a.c) }

// Close destroys the handle. No request that uses it may be outstanding.
//
// C: ibv_destroy_ah
//
// Man: ibv_create_ah(3)
func (a *AH) Close() error { return a.end() }
