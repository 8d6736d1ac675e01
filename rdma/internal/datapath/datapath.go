// SPDX-License-Identifier: BSD-2-Clause

// Package datapath has the interface between queues and devices: C functions of a provider (package provider), Go
// functions of a software backend (package backend), or a data path of the program.
package datapath

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path is how a queue accesses its device. It is chosen when the queue is created. Its methods are named after C
// functions, with the same arguments and results: 0 or an errno, and for Poll the number of completions or a negative
// number.
//
// A Path must be safe for concurrent use. A post must not keep list, bad, or memory that they refer to.
type Path interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32 // ibv_req_notify_cq
}

// Runner is a Path whose device has functions that programs call: ibv_wr_start, ibv_start_poll and others. Other Paths
// post and poll the equivalent of a program.
type Runner interface {
	Path
	// Run runs a program and returns the int result of its last call.
	Run(*program.Program) int32
}

// Extended is a Path that reads more fields of a completion than ibv_poll_cq.
type Extended interface {
	Path
	// PollExtended is Poll that also sets each field of a successful completion to the result of the functions of an
	// extended completion queue (ibv_wc_read_byte_len and others).
	PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32
}

// Maker is a Path that makes a path for each queue that C has created, for devices whose queues it writes directly. Its
// own methods of Path fail.
type Maker interface {
	Path
	CQ(cq *ibv.CQ) (Own, error)
	SRQ(srq *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (Own, error)
	// QP gets whether every request completes (sq_sig_all), and the queue pair's flags.
	QP(qp *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (Own, error)
	// Beside is called for a queue pair of the same device to which C posts.
	Beside(qp *ibv.QP)
}

// Own is the path of one queue, or of a queue pair's two. C only creates and destroys them.
type Own interface {
	Path
	// Reset is called after C has moved the queue pair to RESET.
	Reset()
	// Event is called after an event of the completion queue was read.
	Event()
	// Misused returns a description of C's use of the queue, or "": of a queue pair's send queue or receive queue. The
	// caller excludes posts. A post that finds no room calls it, perhaps repeatedly.
	Misused(sends bool) string
	// Inspect is Misused for all queues of the path, and may take the time to check the requests.
	Inspect() string
	// End destroys the queue by calling destroy, whose error it returns.
	End(destroy func() error) error
}

// Quick is the path of a queue pair with a faster method for the most common post, one request.
type Quick interface {
	Own
	// PostOne posts a request of the usual kind if there is room, or does nothing and returns false. It may panic only
	// if the request refers to unmapped memory. Callers hold the lock of Held.
	PostOne(w *ibv.SendWR) bool
	// Held sets the lock that excludes callers of PostOne from each other and from posts, before the first post.
	Held(by *lock.Lock)
}
