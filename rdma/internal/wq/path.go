// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Path is how queues reach their device. It is chosen when a queue is made: that of the options; or the backend's,
// where the queue's structures lie in the [runtime.Space] of a backend that is a Path; or the functions of C. What its
// methods take and return is what the functions of C do that they are named after: results are 0 or an errno, and of
// Poll the number of completions, or a negative number.
//
// Many goroutines call at once. A post must not keep list and bad, and what they name.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// pathOf is the path of a queue whose function is at fn.
func pathOf(s *slot, o *QueueOptions) Path {
	if o.Path != nil {
		return o.Path
	}
	if p, ok := runtime.BackendOf(s.fn).(Path); ok {
		return p
	}
	return &function{s.fn, s.shared, nil}
}

// function is the path to one function of a provider, in C or in a backend's Space, in one way to call it.
type function struct {
	fn    uintptr
	way   runtime.Way
	stack *runtime.Stack // of an exclusive handle; or nil
}

// call calls the function.
func (f *function) call(a, b, c uintptr) int32 {
	if f.stack != nil {
		return f.stack.Call3(f.fn, a, b, c)
	}
	return f.way.Call3(f.fn, a, b, c)
}

func post[O, W any](f *function, object *O, list *W, bad *ibv.Ptr[W]) int32 {
	return f.call(uintptr(unsafe.Pointer(object)), uintptr(unsafe.Pointer(list)), uintptr(unsafe.Pointer(bad)))
}

func (f *function) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return post(f, qp, list, bad)
}

func (f *function) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, qp, list, bad)
}

func (f *function) PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, srq, list, bad)
}

func (f *function) PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return post(f, wq, list, bad)
}

func (f *function) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	at := unsafe.Pointer(unsafe.SliceData(wcs))
	r := f.call(uintptr(unsafe.Pointer(cq)), uintptr(len(wcs)), uintptr(at))
	goruntime.KeepAlive(at) // the call has an address alone, and its caller may have no further use for what C writes
	return r
}

func (f *function) Arm(cq *ibv.CQ, solicitedOnly bool) int32 {
	only := uintptr(0)
	if solicitedOnly {
		only = 1
	}
	return f.call(uintptr(unsafe.Pointer(cq)), only, 0)
}
