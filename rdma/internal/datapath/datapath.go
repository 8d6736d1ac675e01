// SPDX-License-Identifier: BSD-2-Clause

// Package datapath defines the interfaces between queues and their device. A Path consists of C functions of a provider
// (package provider) or of a software backend (package backend), or is a data path of the program. A Runner also runs
// programs. A Maker creates a Path for each queue: a Queue, which owns the memory of a queue that C created.
package datapath

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path is rdma.Path.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// Runner is a Path whose device has functions for programs to call, such as ibv_wr_start and ibv_start_poll. With any
// other Path, programs are posted as lists and poll with Poll.
type Runner interface {
	Path
	// Run runs a program and returns the int result of its last call.
	Run(*program.Program) int32
}

// Maker is a Path that itself writes the queues of its device: it creates a Queue for each. Its own methods of Path
// fail.
type Maker interface {
	Path
	CQ(cq *ibv.CQ) (Queue, error)
	SRQ(srq *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (Queue, error)
	// QP creates the path of a queue pair. everyOne is sq_sig_all.
	QP(qp *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (Queue, error)
	// Beside notes that C posts to a queue pair of the same device.
	Beside(qp *ibv.QP)
}

// Queue is the path of one completion queue, shared receive queue or queue pair. C only creates and destroys it.
// Methods that do not apply to the kind of queue do nothing.
type Queue interface {
	Path
	// PollExtended is Poll, but sets each field of a successful completion to the value that the functions of an
	// extended completion queue return, such as ibv_wc_read_byte_len.
	PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32
	// PostOne posts one request of the usual kind and returns true, or does nothing and returns false. It panics only
	// if memory of the request is not mapped. Callers hold the lock that Held has set.
	PostOne(w *ibv.SendWR) bool
	// Held sets the lock that callers of PostOne and other posts hold, or of a completion queue, callers of Poll,
	// PollExtended and Misused; all other methods of that take it. It is called before the first post or poll.
	Held(by *lock.Lock)
	// Reset is called after C has moved the queue pair to RESET.
	Reset()
	// Event is called for each event of the completion queue that was read.
	Event()
	// Misused describes how C has used the queue, or returns "". Of a queue pair, it checks the send queue if sends is
	// set, otherwise the receive queue. The caller prevents other posts there. Posts to a full queue call it
	// repeatedly.
	Misused(sends bool) string
	// Inspect is Misused for both queues, and also compares the requests themselves.
	Inspect() string
	// End destroys the queue with a call of C, and returns its error.
	End(destroy func() error) error
}
