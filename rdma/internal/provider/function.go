// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// Function is the path to one C function of a provider. Only the method named after that function, and Run, may be
// called.
type Function struct {
	fn  uintptr
	way runtime.Way
}

// New returns the path to a function. It is safe for concurrent use.
func New(fn uintptr, way runtime.Way) *Function { return &Function{fn: fn, way: way} }

func post[O, W any](f *Function, object *O, list *W, bad *ibv.Ptr[W]) int32 {
	return f.way.Call3(f.fn, uintptr(unsafe.Pointer(object)), uintptr(unsafe.Pointer(list)), uintptr(unsafe.Pointer(bad)))
}

func (f *Function) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return post(f, qp, list, bad)
}

func (f *Function) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, qp, list, bad)
}

func (f *Function) PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, srq, list, bad)
}

func (f *Function) PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, wq, list, bad)
}

func (f *Function) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	at := unsafe.Pointer(unsafe.SliceData(wcs))
	r := f.way.Call3(f.fn, uintptr(unsafe.Pointer(cq)), uintptr(len(wcs)), uintptr(at))
	goruntime.KeepAlive(at) // the call has only the address, so the compiler may consider the memory unused
	return r
}

func (f *Function) Arm(cq *ibv.CQ, solicitedOnly bool) int32 {
	only := uintptr(0)
	if solicitedOnly {
		only = 1
	}
	return f.way.Call3(f.fn, uintptr(unsafe.Pointer(cq)), only, 0)
}

// Run runs a program the way the function is called.
func (f *Function) Run(p *program.Program) int32 {
	return p.Run(f.way)
}
