// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"strings"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/rxe"
	"github.com/goverbs/goverbs/rdma/native/internal/siw"
	"github.com/goverbs/goverbs/runtime"
)

// driverOf returns a supported driver of the kernel, or nil.
func driverOf(id uapi.RDMADriverID) driver.Driver {
	switch id {
	case uapi.RDMA_DRIVER_RXE:
		return rxe.Open
	case uapi.RDMA_DRIVER_SIW:
		return siw.Open
	}
	for _, v := range driver.Vendors {
		if v.ID == id {
			return v.Open
		}
	}
	return nil
}

// Driver returns the name of a device's driver as a vendor's library has it, such as "efa", "siw", or "".
func (b *Backend) Driver(c *ibv.Context) string {
	of := find[context](b, addressOf(c))
	if of == nil {
		return ""
	}
	if uapi.RDMADriverID(of.File.Driver) == uapi.RDMA_DRIVER_SIW {
		return "siw"
	}
	for _, v := range driver.Vendors {
		if v.ID == uapi.RDMADriverID(of.File.Driver) {
			return strings.TrimPrefix(v.Library, "lib")
		}
	}
	return ""
}

// finder implements [driver.Finder].
type finder struct{ *Backend }

func (f finder) Device(p ibv.Ptr[ibv.Device]) (id uapi.RDMADriverID, ok bool) {
	if d := find[device](f.Backend, uint64(p)); d != nil {
		return uapi.RDMADriverID(d.Driver), true
	}
	return 0, false
}

func (f finder) Context(p ibv.Ptr[ibv.Context]) driver.Context {
	if c := find[context](f.Backend, uint64(p)); c != nil {
		return c.own
	}
	return nil
}

func (f finder) PD(p ibv.Ptr[ibv.PD]) (number uint32, ok bool) {
	if d := find[domain](f.Backend, uint64(p)); d != nil {
		return d.number, true
	}
	return 0, false
}

func (f finder) CQ(p ibv.Ptr[ibv.CQ]) driver.CQ {
	if q := find[completionQueue](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

func (f finder) SRQ(p ibv.Ptr[ibv.SRQ]) driver.SRQ {
	if q := find[sharedQueue](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

func (f finder) QP(p ibv.Ptr[ibv.QP]) driver.QP {
	if q := find[queuePair](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

func (f finder) AH(p ibv.Ptr[ibv.AH]) unsafe.Pointer {
	if h := find[handle](f.Backend, uint64(p)); h != nil {
		return h.record.Part()
	}
	return nil
}

func (f finder) MR(p ibv.Ptr[ibv.MR]) bool { return find[region](f.Backend, uint64(p)) != nil }

func (f finder) NewQP(c ibv.Ptr[ibv.Context], attr *ibv.QPInitAttrEx, create driver.CreateQP) (ibv.Ptr[ibv.QP],
	syscall.Errno) {
	qp, errno := f.makeQPEx(find[context](f.Backend, uint64(c)), attr, create)
	return ibv.Ptr[ibv.QP](qp), errno
}

func (f finder) NewCQ(c ibv.Ptr[ibv.Context], attr *ibv.CQInitAttrEx, create driver.CreateCQ) (ibv.Ptr[ibv.CQ],
	syscall.Errno) {
	cq, errno := f.makeCQEx(find[context](f.Backend, uint64(c)), attr, create)
	return ibv.Ptr[ibv.CQ](cq), errno
}

// vendorFunctions returns the functions of vendors' libraries by library and name.
func (b *Backend) vendorFunctions() map[string]map[string]runtime.Func {
	all := map[string]map[string]runtime.Func{}
	for _, v := range driver.Vendors {
		functions := v.Functions(finder{b})
		for name, f := range functions {
			functions[name] = guarded(f)
		}
		all[v.Library] = functions
	}
	return all
}
