// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// TD is a thread domain: a promise that only one goroutine at a time uses the objects that a parent domain creates with
// it, so that the provider may omit its locks. The user has to keep that promise.
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
	err := birth(d, &t.object, &t.c, t, "TD", "ibv_alloc_td",
		func() (*ibv.TD, error) { return libibverbs.AllocTD(d.c, attr) }, libibverbs.DeallocTD,
		func(*ibv.TD) string { return fmt.Sprintf("thread domain of %s", d.name) })
	return made(t, err)
}

// C returns C's object, for calls of generated/libibverbs. It belongs to the TD.
func (t *TD) C() *ibv.TD { return whileOpen(&t.object, t.c) }

// Ptr returns the domain for use in attributes.
func (t *TD) Ptr() ibv.Ptr[ibv.TD] { return ptrWhileOpen(&t.object, t.c) }

// Close frees the domain.
//
// C: ibv_dealloc_td
//
// Man: ibv_alloc_td(3)
func (t *TD) Close() error { return t.end() }
