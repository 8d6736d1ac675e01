// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/runtime"
)

// native is the path of one queue whose memory it writes by itself, and what made the path. nil is a queue that reaches
// the device in another way.
type native struct {
	datapath.Own
	maker datapath.Maker
}

// nativeOf makes the path of a queue that C has made, if the options name a path that does so, and puts it there.
func nativeOf(o *QueueOptions, own func(datapath.Maker) (datapath.Own, error)) (*native, error) {
	maker, ok := o.Path.(datapath.Maker)
	if !ok {
		return nil, nil
	}
	path, err := own(maker)
	if err != nil {
		return nil, err
	}
	o.Path = path
	return &native{path, maker}, nil
}

// end destroys C's object.
func (n *native) end(destroy func() error) error {
	if n == nil {
		return destroy()
	}
	return n.End(destroy)
}

// event counts an event of a completion queue.
func (n *native) event() {
	if n != nil {
		n.Event()
	}
}

// reset says that a queue pair begins anew.
func (n *native) reset() {
	if n != nil {
		n.Reset()
	}
}

// postSend posts to the queue pair, like C's ibv_post_send.
func (n *native) postSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) error {
	if n == nil {
		return libibverbs.PostSend(qp, list, bad)
	}
	return errorOf("ibv_post_send", n.PostSend(qp, list, bad))
}

// postRecv is postSend of receives.
func (n *native) postRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error {
	if n == nil {
		return libibverbs.PostRecv(qp, list, bad)
	}
	return errorOf("ibv_post_recv", n.PostRecv(qp, list, bad))
}

// errorOf is the error of a path's result.
func errorOf(verb string, errno int32) error {
	if errno == 0 {
		return nil
	}
	return &runtime.CallError{Function: verb, Errno: runtime.Errno(errno)}
}

// fits reports whether queues with these options can be used with a queue.
func (n *native) fits(o *QueueOptions) bool {
	maker, _ := o.Path.(datapath.Maker)
	if n == nil {
		return maker == nil
	}
	return n.maker == maker
}

// otherPath says why a queue cannot be used with those of other options.
func otherPath(verb, object, queue string) error {
	return invalid(verb, object, "%s reaches the device by another data path: create both with the same Path", queue)
}
