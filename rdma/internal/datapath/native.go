// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// Native is the path of a queue whose memory it writes directly, with its maker. nil is a queue that accesses the
// device in another way.
type Native struct {
	Own
	maker Maker
}

// NativeOf returns the path of a queue that C has created if p is a Maker, or else p.
func NativeOf(p Path, own func(Maker) (Own, error)) (Path, *Native, error) {
	maker, ok := p.(Maker)
	if !ok {
		return p, nil, nil
	}
	path, err := own(maker)
	if err != nil {
		return nil, nil, err
	}
	return path, &Native{path, maker}, nil
}

// Fits reports whether a queue can be used with those of a path.
func (n *Native) Fits(p Path) bool {
	maker, _ := p.(Maker)
	if n == nil {
		return maker == nil
	}
	return n.maker == maker
}

// Maker returns the maker of the path.
func (n *Native) Maker() Maker { return n.maker }

// Destroy destroys C's object.
func (n *Native) Destroy(destroy func() error) error {
	if n == nil {
		return destroy()
	}
	return n.End(destroy)
}

// Misuse returns the error for a queue that C has used, or nil. The caller excludes posts.
func (n *Native) Misuse(verb, name string) error {
	if n == nil {
		return nil
	}
	if reason := n.Inspect(); reason != "" {
		return &verberr.VerbError{Verb: verb, Object: name, Errno: syscall.EBUSY, Reason: reason}
	}
	return nil
}

// Took is called after an event of the completion queue was read.
func (n *Native) Took() {
	if n != nil {
		n.Event()
	}
}

// Anew is called after the queue pair was reset.
func (n *Native) Anew() {
	if n != nil {
		n.Reset()
	}
}

// Send posts to the queue pair, like C's ibv_post_send.
func (n *Native) Send(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) error {
	if n == nil {
		return libibverbs.PostSend(qp, list, bad)
	}
	return errorOf("ibv_post_send", n.PostSend(qp, list, bad))
}

// Recv is Send of receives.
func (n *Native) Recv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error {
	if n == nil {
		return libibverbs.PostRecv(qp, list, bad)
	}
	return errorOf("ibv_post_recv", n.PostRecv(qp, list, bad))
}

// errorOf returns the error for a path's result.
func errorOf(verb string, errno int32) error {
	if errno == 0 {
		return nil
	}
	return &runtime.CallError{Function: verb, Errno: runtime.Errno(errno)}
}
