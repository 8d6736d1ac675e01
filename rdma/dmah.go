// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// DMAH is a DMA handle: hints for the device's accesses to a memory region.
//
// Man: ibv_alloc_dmah(3)
type DMAH struct {
	object
	c *ibv.DMAH
}

// AllocDMAH allocates a DMA handle.
//
// C: ibv_alloc_dmah
//
// Man: ibv_alloc_dmah(3)
func (d *Device) AllocDMAH(attr *ibv.DMAHInitAttr) (*DMAH, error) {
	if attr == nil {
		return nil, noAttributes("ibv_alloc_dmah", d.name)
	}
	h := &DMAH{}
	err := createObject(d, &h.object, &h.c, h, "ibv_alloc_dmah",
		func() (*ibv.DMAH, error) { return libibverbs.AllocDMAH(d.c, attr) }, libibverbs.DeallocDMAH,
		func(*ibv.DMAH) string { return fmt.Sprintf("DMA handle on %s", d.name) })
	return made(h, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the DMAH.
func (h *DMAH) C() *ibv.DMAH { return whileOpen(&h.object, h.c) }

// Ptr returns the handle for use in attributes.
func (h *DMAH) Ptr() ibv.Ptr[ibv.DMAH] { return ptrWhileOpen(&h.object, h.c) }

// Close frees the handle.
//
// C: ibv_dealloc_dmah
//
// Man: ibv_alloc_dmah(3)
func (h *DMAH) Close() error { return h.end() }
