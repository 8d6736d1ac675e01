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
// Programs use the path, too: a [WRProgram] is posted as a list, and a [PollProgram] polls with Poll. If a list or
// ibv_poll_cq cannot express a program, its error is [ErrNotSupported]. BindMW and operations of shared receive queues
// with tag matching call the device's own functions.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// route describes how a queue calls a function of its provider or backend, with the provider's name.
type route struct {
	way      runtime.Way
	provider string
}

// callsC reports whether a queue may call the function itself: it is C's function and may be called directly.
func (s *route) callsC(p Path) bool {
	_, c := p.(*provider.Function)
	return c && s.way == runtime.System && s.provider != provider.Software && runtime.Direct()
}

// newRoute selects how the function at fn is called and through which path: that of the options, the backend's, or the
// provider's. name is the verb in C.
func newRoute(fn ibv.FuncPtr, verb provider.Verbs, name string, o *QueueOptions) (s route, p Path, err error) {
	if o.Path != nil { // called without further decisions
		s.provider = provider.Software
		p, err = trace.Of(o.Path)
		return s, p, err
	}
	if fn == 0 {
		return s, nil, &runtime.NotSupportedError{Function: name, Missing: "the device's provider lacks it"}
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

// missing returns the error of a slot that cannot be called, or nil. Objects of older libraries are too short for some
// slots: other data follows them.
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

// errnoOf returns the errno of a failed call, or EIO for old libraries that return -1 without setting one.
func errnoOf(result int32) runtime.Errno {
	switch {
	case result == -1:
		return syscall.EIO
	case result < 0:
		return runtime.Errno(-int64(result))
	}
	return runtime.Errno(result)
}
