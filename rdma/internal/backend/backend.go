// SPDX-License-Identifier: BSD-2-Clause

// Package backend calls the functions of software backends, which are written in Go.
package backend

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path returns the path to a function of a software backend: the backend itself if it implements Path, or else the
// function in the slot. It returns nil for a C function, and panics if the address belongs to a backend but has no
// function.
func Path(fn uintptr) datapath.Path {
	b := runtime.BackendOf(fn)
	if p, ok := b.(datapath.Path); ok {
		return p
	}
	if b == nil {
		return nil
	}
	return function(runtime.SlotOf(fn))
}

// function is one function of a backend. Only the method named after that function, and Run, may be called.
type function runtime.SlotFunc

func (f function) call(a, b, c uintptr) int32 {
	result, _ := f(uint64(a), uint64(b), uint64(c), 0, 0, 0)
	return int32(result)
}

func post[O, W any](f function, object *O, list *W, bad *ibv.Ptr[W]) int32 {
	return f.call(uintptr(unsafe.Pointer(object)), uintptr(unsafe.Pointer(list)), uintptr(unsafe.Pointer(bad)))
}

func (f function) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return post(f, qp, list, bad)
}

func (f function) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, qp, list, bad)
}

func (f function) PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, srq, list, bad)
}

func (f function) PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, wq, list, bad)
}

func (f function) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	return f.call(uintptr(unsafe.Pointer(cq)), uintptr(len(wcs)), uintptr(unsafe.Pointer(unsafe.SliceData(wcs))))
}

func (f function) Arm(cq *ibv.CQ, solicitedOnly bool) int32 {
	only := uintptr(0)
	if solicitedOnly {
		only = 1
	}
	return f.call(uintptr(unsafe.Pointer(cq)), only, 0)
}

// Run runs a program. All of its calls must be to the backend's functions.
func (f function) Run(p *program.Program) int32 { return p.Run(runtime.Blocking) }
