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

// Path connects queues to their device. When a queue is created, it uses the first of: the path in [QueueOptions], that
// of [Device.UsePath], the backend of the device if it is a Path, and the functions of the provider. The methods are
// named after C functions and have the same arguments and results: 0 or an errno; Poll returns the number of
// completions or a negative number. A Path must be safe for concurrent use. A post must not keep the list, bad, or
// memory that they refer to. A post that panics must not have posted anything.
//
// Programs use the path too: a [WRProgram] is posted as a list, and a [PollProgram] calls Poll. If ibv_send_wr or
// ibv_wc cannot express a program, the error is [ErrNotSupported]. BindMW and tag matching operations of shared receive
// queues bypass the path.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// route holds the way in which a queue calls its provider or backend, and the provider's name.
type route struct {
	way      runtime.Way
	provider string
}

// Way returns the way in which the queue calls the provider.
func (s *route) Way() runtime.Way { return s.way }

// Provider returns the name of the provider whose functions the queue calls, "software" for functions in Go (a software
// device, package native, or a Path), or "" if the provider was not recognized.
func (s *route) Provider() string { return s.provider }

// callsC reports whether p is a C function that the queue may call directly.
func (s *route) callsC(p Path) bool {
	_, c := p.(*provider.Function)
	return c && s.way == runtime.System && s.provider != provider.Software && runtime.Direct()
}

// newRoute selects the way and the path by which the function at fn is called: the options' path, the backend's, or the
// provider's. name is the C verb.
func newRoute(fn ibv.FuncPtr, verb provider.Verbs, name string, o *QueueOptions) (s route, p Path, err error) {
	if o.Path != nil {
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

// driverOf returns the name of a queue's driver: its provider, or the driver of a device of package native.
func driverOf(name string, c ibv.Ptr[ibv.Context]) string {
	if name == provider.Software {
		if b, ok := runtime.BackendOf(uintptr(c)).(interface{ Driver(*ibv.Context) string }); ok {
			return b.Driver(c.Deref())
		}
	}
	return name
}

// missing returns an error if fn, the function name of an object, cannot be called. Objects of older libraries lack the
// fields of newer functions, and other data follows them in memory.
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

// errnoOf returns the errno of a failed call, or EIO for old libraries, which return -1 without an errno.
func errnoOf(result int32) runtime.Errno {
	switch {
	case result == -1:
		return syscall.EIO
	case result < 0:
		return runtime.Errno(-int64(result))
	}
	return runtime.Errno(result)
}

// directQueue is a queue whose path accesses the device's memory in Go, and the maker of the path. It is nil for other
// queues.
type directQueue struct {
	datapath.Queue
	maker datapath.Maker
}

// directQueueOf creates the path of a queue that C created if p is a Maker. Otherwise it returns p.
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

// queueOf returns the datapath.Queue of a path, or nil.
func queueOf(p Path) datapath.Queue {
	q, _ := trace.Under(p).(datapath.Queue)
	return q
}

// lockedPath locks mu around polls of a queue.
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

// misused returns a description of how C used a queue that a Go path owns, or "". The caller prevents concurrent posts.
func misused(p Path, sends bool) string {
	if q := queueOf(p); q != nil {
		return q.Misused(sends)
	}
	return ""
}

// fits reports whether a queue can be used together with queues of a path.
func (n *directQueue) fits(p Path) bool {
	maker, _ := p.(datapath.Maker)
	if n == nil {
		return maker == nil
	}
	return n.maker == maker
}

// destroy destroys the C object.
func (n *directQueue) destroy(destroy func() error) error {
	if n == nil {
		return destroy()
	}
	return n.End(destroy)
}

// misuse returns an error if C used the queue. The caller prevents concurrent posts.
func (n *directQueue) misuse(verb, name string) error {
	if n == nil {
		return nil
	}
	if reason := n.Inspect(); reason != "" {
		return &VerbError{Verb: verb, Object: name, Errno: syscall.EBUSY, Reason: reason}
	}
	return nil
}

// send posts to the queue pair like ibv_post_send.
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

// callError converts the result of a call to an error.
func callError(verb string, result int32) error {
	if result == 0 {
		return nil
	}
	return &runtime.CallError{Function: verb, Errno: errnoOf(result)}
}
