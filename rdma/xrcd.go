// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// XRCD is an XRC domain. Processes can share a domain through a file.
//
// Man: ibv_open_xrcd(3)
type XRCD struct {
	object
	c *ibv.XRCD
}

// OpenXRCD opens or creates a domain.
//
// C: ibv_open_xrcd
//
// Man: ibv_open_xrcd(3)
func (d *Device) OpenXRCD(attr *ibv.XRCDInitAttr) (*XRCD, error) {
	if attr == nil {
		return nil, noAttributes("ibv_open_xrcd", d.name)
	}
	x := &XRCD{}
	err := createObject(d, &x.object, &x.c, x, "ibv_open_xrcd",
		func() (*ibv.XRCD, error) { return libibverbs.OpenXRCD(d.c, attr) }, libibverbs.CloseXRCD,
		func(*ibv.XRCD) string { return fmt.Sprintf("XRCD on %s", d.name) })
	return made(x, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the XRCD.
func (x *XRCD) C() *ibv.XRCD { return whileOpen(&x.object, x.c) }

// Ptr returns the domain for use in attributes.
func (x *XRCD) Ptr() ibv.Ptr[ibv.XRCD] { return ptrWhileOpen(&x.object, x.c) }

// Close closes the domain.
//
// C: ibv_close_xrcd
//
// Man: ibv_open_xrcd(3)
func (x *XRCD) Close() error { return x.end() }
