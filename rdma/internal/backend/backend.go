// SPDX-License-Identifier: BSD-2-Clause

// Package backend reaches devices of software backends, which are written in Go.
package backend

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path is the path to a function of a software backend: the backend, if it is a Path, or the function that the slot
// stands for. It is nil for a function in C.
func Path(fn uintptr) datapath.Path {
	b := runtime.BackendOf(fn)
	if p, ok := b.(datapath.Path); ok {
		return p
	}
	if b == nil {
		return nil
	}
	return slot(fn)
}

// slot is the address of a backend's function. Of its methods, the one that is named after the function makes sense,
// and Run.
type slot uintptr

func (s slot) call(a, b, c uintptr) int32 {
	result, _ := runtime.CallSlot(uintptr(s), &[6]uint64{uint64(a), uint64(b), uint64(c)})
	return int32(result)
}

func post[O, W any](s slot, object *O, list *W, bad *ibv.Ptr[W]) int32 {
	return s.call(uintptr(unsafe.Pointer(object)), uintptr(unsafe.Pointer(list)), uintptr(unsafe.Pointer(bad)))
}

func (s slot) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return post(s, qp, list, bad)
}

func (s slot) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(s, qp, list, bad)
}

func (s slot) PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(s, srq, list, bad)
}

func (s slot) PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(s, wq, list, bad)
}

func (s slot) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	return s.call(uintptr(unsafe.Pointer(cq)), uintptr(len(wcs)), uintptr(unsafe.Pointer(unsafe.SliceData(wcs))))
}

func (s slot) Arm(cq *ibv.CQ, solicitedOnly bool) int32 {
	only := uintptr(0)
	if solicitedOnly {
		only = 1
	}
	return s.call(uintptr(unsafe.Pointer(cq)), only, 0)
}

// Run runs a program, whose calls are of the backend's functions.
func (s slot) Run(p *program.Program) int32 { return p.Run(runtime.Blocking) }
