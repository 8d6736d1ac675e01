// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/backend"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
)

// Path is how queues access their device. A queue takes the first of these when it is created: that of [QueueOptions];
// that of [Device.UsePath]; the backend of the device, if it is a Path; the functions of the provider. Its methods are
// named after C functions and have the same arguments and results: 0 or an errno; Poll returns the number of
// completions, or a negative number. A Path must be safe for concurrent use. A post must not keep the list, bad, or
// memory that they refer to. A post that panics has posted nothing.
//
// Programs use it, too: a [WRProgram] is posted as a list, and a [PollProgram] polls with Poll. The error of a program
// that lists or ibv_poll_cq cannot express is [ErrNotSupported]. BindMW and operations of shared receive queues with
// tag matching call the device's own functions.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// route is the way a queue calls the function of its provider or backend, and the provider's name.
type route struct {
	way      runtime.Way
	provider string
}

// callsC reports whether a queue with this path may call the function by itself: it is C's, and may be called directly.
func (s *route) callsC(p Path) bool {
	_, c := p.(*provider.Function)
	return c && s.way == runtime.System && s.provider != provider.Software && runtime.Direct()
}

// newRoute decides how the function at fn is called, and by which path: that of the options, the backend's, or the
// provider's. name is the verb in C.
func newRoute(fn ibv.FuncPtr, verb provider.Verbs, name string, o *QueueOptions) (s route, p Path, err error) {
	if o.Path != nil { // which is called as it is
		s.provider = provider.Software
		p, err = trace.Of(o.Path)
		return s, p, err
	}
	if fn == 0 {
		return s, nil, &runtime.NotSupportedError{Function: name, Missing: "the device's provider does not have it"}
	}
	s.provider, s.way, err = provider.WayOf(uintptr(fn), verb, o.Way, o.ways())
	if p = backend.Path(uintptr(fn)); p == nil {
		p = provider.New(uintptr(fn), s.way)
	}
	if err == nil {
		p, err = trace.Of(p)
	}
	return s, p, err
}

// driverOf returns the name of a queue's driver: that of its provider, or in package native that of the device.
func driverOf(name string, c ibv.Ptr[ibv.Context]) string {
	if name == provider.Software {
		if b, ok := runtime.BackendOf(uintptr(c)).(interface{ Driver(*ibv.Context) string }); ok {
			return b.Driver(c.Deref())
		}
	}
	return name
}

// missing returns the error of a slot that cannot be called, or nil. Objects of older libraries are too
// short for some slots: what stands there is something else.
func missing(fn ibv.FuncPtr, name, object string) error {
	since := ""
	for _, f := range libibverbs.NewSlots {
		switch {
		case f.Name != name:
		case fn != 0:
			return f.Has(uintptr(fn))
		default:
			since = f.Since
		}
	}
	if fn != 0 {
		return nil
	}
	return &runtime.NotSupportedError{Function: name, Missing: object +
		" lacks the function: it was created without it",
		Project: "rdma-core", Since: since}
}

// errnoOf returns the errno of a failed call. Some old libraries return -1 without setting one: that is EIO.
func errnoOf(result int32) runtime.Errno {
	switch {
	case result == -1:
		return syscall.EIO
	case result < 0:
		return runtime.Errno(-int64(result))
	}
	return runtime.Errno(result)
}
