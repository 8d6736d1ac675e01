// SPDX-License-Identifier: BSD-2-Clause

// Package datapath has the interface between queues and what reaches their device: functions of a provider in C
// (package provider), those of a software backend in Go (package backend), or a data path of a program's own.
package datapath

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/runtime/program"
)

// Path is how queues reach their device. It is chosen when a queue is made. Its methods are named after functions of C
// and take and return what those do: the results are 0 or an errno, and of Poll the number of completions, or a
// negative number.
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

// Runner is a Path whose device has functions for programs to call: ibv_wr_start, ibv_start_poll and their like. Any
// other Path posts and polls what a program stands for.
type Runner interface {
	Path
	// Run runs a program and returns the int result of its last call.
	Run(*program.Program) int32
}

// Extended is a Path that reads more of a completion than ibv_poll_cq does.
type Extended interface {
	Path
	// PollExtended is Poll, and sets each field of a completion that succeeded to the value that the functions of an
	// extended completion queue return (ibv_wc_read_byte_len and its like).
	PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32
}

// Maker is a Path that makes one for each queue, of what C has just made: for devices whose queues it writes by itself.
// Its own methods of Path refuse.
type Maker interface {
	Path
	CQ(cq *ibv.CQ) (Own, error)
	SRQ(srq *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (Own, error)
	// QP is told whether every request completes (sq_sig_all), and the queue pair's flags.
	QP(qp *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (Own, error)
	// Beside says that C posts to a queue pair of the same device.
	Beside(qp *ibv.QP)
}

// Own is the path of one queue, or of a queue pair's two. C does not touch them any more, but makes and destroys them.
type Own interface {
	Path
	// Reset says that C has moved the queue pair to RESET.
	Reset()
	// Event says that an event of the completion queue was taken.
	Event()
	// Misused says what C has done to the queue that is not C's, or gives "": to a queue pair's send queue, or to the
	// other one. The caller keeps others from posting there. A post that finds no room asks, maybe again and again.
	Misused(sends bool) string
	// Inspect is Misused of all that the path has, where there is time to look at the requests themselves.
	Inspect() string
	// End destroys the queue by a call of C, whose error it returns.
	End(destroy func() error) error
}

// Quick is the path of a queue pair that has a shorter way for the usual post, one request.
type Quick interface {
	Own
	// PostOne posts a request, if it is of the usual kind and there is room, or does nothing and says false. It may
	// panic only where memory is gone that the request names. Its callers hold the lock of Held.
	PostOne(w *ibv.SendWR) bool
	// Held says which lock excludes callers of PostOne from each other and from posts. None has posted yet.
	Held(by *lock.Lock)
}
