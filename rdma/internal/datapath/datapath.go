// SPDX-License-Identifier: BSD-2-Clause

// Package datapath defines the interfaces between queues and devices. A Path posts and polls: with C functions of a
// provider (package provider), with a software backend (package backend), or with Go code of the program. A Runner is a
// Path that also runs programs. A Maker is a Path that creates a Queue for each queue of C; the Queue then owns that
// queue's memory.
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

// Runner is a Path with functions that programs can call, such as ibv_wr_start and ibv_start_poll. With other Paths,
// programs are converted: sends are posted as lists, and polls use Poll.
type Runner interface {
	Path
	// Run runs a program and returns the int result of its last call.
	Run(*program.Program) int32
}

// Maker is a Path that writes the queues of its device itself and creates a Queue for each. Its own Path methods fail.
type Maker interface {
	Path
	CQ(cq *ibv.CQ) (Queue, error)
	SRQ(srq *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (Queue, error)
	// QP creates the path of a queue pair. everyOne is the queue pair's sq_sig_all.
	QP(qp *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (Queue, error)
	// Beside informs the Maker of a queue pair on the same device to which C posts.
	Beside(qp *ibv.QP)
}

// Dynamic is a Queue that posts requests of initiators of dynamic connections.
type Dynamic interface {
	// PostDynamic posts all requests of a list, or none. to has the destination of each.
	PostDynamic(qp *ibv.QP, list []ibv.SendWR, to []Destination) int32
}

// Destination is the target of a request, which an ibv_send_wr cannot name.
type Destination struct {
	AH     ibv.Ptr[ibv.AH]
	Number uint32
	Key    uint64
	Stream uint16
}

// Queue is the path of one completion queue, shared receive queue or queue pair, which C only creates and destroys.
// Methods that do not apply to that kind of queue do nothing.
type Queue interface {
	Path
	// PollExtended is Poll that sets all fields of a successful completion, with the values that the functions of an
	// extended completion queue return, such as ibv_wc_read_byte_len.
	PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32
	// PostOne posts a request of a common kind and returns true. For others, it does nothing and returns false. It
	// panics only if memory of the request is not mapped. The caller holds the lock that Held has set.
	PostOne(w *ibv.SendWR) bool
	// Held sets a lock. For a queue pair, callers of PostOne and other posts hold it. For a completion queue, callers
	// of Poll, PollExtended and Misused hold it, and its other methods lock it. Held is called before the first post or
	// poll.
	Held(by *lock.Lock)
	// Reset is called after C has moved the queue pair to RESET.
	Reset()
	// Event is called for each event of the completion queue that the program has read.
	Event()
	// Misused checks whether C has used the queue, and returns a description, or "". For a queue pair, sends selects
	// the send queue or the receive queue. The caller prevents other posts to it. Posts to a full queue call Misused
	// repeatedly.
	Misused(sends bool) string
	// Inspect is Misused for both queues that also compares the requests themselves.
	Inspect() string
	// End calls destroy, which destroys the queue in C, and returns its error.
	End(destroy func() error) error
}
