// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/backend"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
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

// Way returns how the queue is called.
func (s *route) Way() runtime.Way { return s.way }

// Provider returns the name of the provider that the queue's code belongs to, "software" if the code is in Go (a
// software device, package native, or a Path), or "" if it was not recognised.
func (s *route) Provider() string { return s.provider }

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

// driverOf returns the name of a queue's driver: that of its provider, or in package native that of the device.
func driverOf(name string, c ibv.Ptr[ibv.Context]) string {
	if name == provider.Software {
		if b, ok := runtime.BackendOf(uintptr(c)).(interface{ Driver(*ibv.Context) string }); ok {
			return b.Driver(c.Deref())
		}
	}
	return name
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

// directQueue is a queue that its path owns, and the maker of the path. It is nil for a queue that reaches the device
// in another way.
type directQueue struct {
	datapath.Queue
	maker datapath.Maker
}

// directQueueOf makes the path of a queue that C has created, if p is a Maker. Otherwise it returns p.
func directQueueOf(p Path, queue func(datapath.Maker) (datapath.Queue, error)) (Path, *directQueue, error) {
	maker, ok := p.(datapath.Maker)
	if !ok {
		return p, nil, nil
	}
	path, err := queue(maker)
	if err != nil {
		return nil, nil, err
	}
	return path, &directQueue{path, maker}, nil
}

// queueOf returns the queue that a path owns, or nil.
func queueOf(p Path) datapath.Queue {
	q, _ := trace.Under(p).(datapath.Queue)
	return q
}

// lockedPath polls a queue whose callers hold a lock.
type lockedPath struct {
	datapath.Queue
	mu *lock.Lock
}

func (p lockedPath) PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Queue.PollExtended(cq, wcs)
}

func (p lockedPath) Misused(sends bool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Queue.Misused(sends)
}

// misused returns how C has used a queue that a path in Go owns, or "". The caller keeps others from posting.
func misused(p Path, sends bool) string {
	if q := queueOf(p); q != nil {
		return q.Misused(sends)
	}
	return ""
}

// fits reports whether a queue can be used with those of a path.
func (n *directQueue) fits(p Path) bool {
	maker, _ := p.(datapath.Maker)
	if n == nil {
		return maker == nil
	}
	return n.maker == maker
}

// destroy destroys C's object.
func (n *directQueue) destroy(destroy func() error) error {
	if n == nil {
		return destroy()
	}
	return n.End(destroy)
}

// misuse is the error of a queue that C has used, or nil. The caller keeps others from posting.
func (n *directQueue) misuse(verb, name string) error {
	if n == nil {
		return nil
	}
	if reason := n.Inspect(); reason != "" {
		return &VerbError{Verb: verb, Object: name, Errno: syscall.EBUSY, Reason: reason}
	}
	return nil
}

// send posts to the queue pair, like C's ibv_post_send.
func (n *directQueue) send(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) error {
	if n == nil {
		return libibverbs.PostSend(qp, list, bad)
	}
	return callError("ibv_post_send", n.PostSend(qp, list, bad))
}

// receive is send for receives.
func (n *directQueue) receive(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error {
	if n == nil {
		return libibverbs.PostRecv(qp, list, bad)
	}
	return callError("ibv_post_recv", n.PostRecv(qp, list, bad))
}

// callError returns the error of a call's result, or nil.
func callError(verb string, result int32) error {
	if result == 0 {
		return nil
	}
	return &runtime.CallError{Function: verb, Errno: errnoOf(result)}
}
