// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
)

// directQueue is a queue owned by its path, with the maker of the path. It is nil for a queue that reaches the device
// in another way.
type directQueue struct {
	datapath.Queue
	maker datapath.Maker
}

// directQueueOf creates the path of a queue that C has created, if p is a Maker. Otherwise it returns p.
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

// misused describes how C has used a queue that a path in Go owns, or returns "". The caller keeps others from posting.
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

// misuse returns the error for a queue that C has used, or nil. The caller keeps others from posting.
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
