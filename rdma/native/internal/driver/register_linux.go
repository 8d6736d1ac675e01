// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package driver

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// Finder finds the objects of records. It returns nil for other addresses.
type Finder interface {
	Device(ibv.Ptr[ibv.Device]) (id uapi.RDMADriverID, ok bool)
	Context(ibv.Ptr[ibv.Context]) Context
	PD(ibv.Ptr[ibv.PD]) (number uint32, ok bool)
	CQ(ibv.Ptr[ibv.CQ]) CQ
	SRQ(ibv.Ptr[ibv.SRQ]) SRQ
	QP(ibv.Ptr[ibv.QP]) QP
	AH(ibv.Ptr[ibv.AH]) unsafe.Pointer // the driver's part
	MR(ibv.Ptr[ibv.MR]) bool

	// NewQP and NewCQ create objects of a context by functions of the driver, and otherwise like ibv_create_qp_ex and
	// ibv_create_cq_ex.
	NewQP(ibv.Ptr[ibv.Context], *ibv.QPInitAttrEx, CreateQP) (ibv.Ptr[ibv.QP], syscall.Errno)
	NewCQ(ibv.Ptr[ibv.Context], *ibv.CQInitAttrEx, CreateCQ) (ibv.Ptr[ibv.CQ], syscall.Errno)
}

// Vendor is a driver of one vendor's adapters, with the functions of the vendor's library. It is not part of every
// program: a package registers it.
type Vendor struct {
	ID        uapi.RDMADriverID
	Open      Driver
	Library   string // "libmlx5"
	Functions func(Finder) map[string]runtime.Func
}

// Vendors are those that packages have registered when they were initialized.
var Vendors []Vendor

// Register adds a Vendor. Only init functions call it.
func Register(v Vendor) { Vendors = append(Vendors, v) }
