// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// Queues, batches and programs are types of package wq, under names that users can write.

// SendQueue posts to the send queue of a queue pair. Post, PostRange, PostProgram and BindMW post; Free and Retire deal
// with slots; Exclusive returns a handle for one goroutine. Any number of goroutines may use it at once, each with its
// own batch.
//
// On 64-bit machines a send queue takes 312 bytes, a receive queue 384. A checked one takes 8 bytes and a bit more for
// each of its slots, whose number is rounded up to a power of two. A post uses two cache lines of the queue and one or
// two of its slots.
//
// Man: ibv_post_send(3)
type SendQueue = wq.SendQueue

// RecvQueue posts to the receive queue of a queue pair, or to a shared one. Any number of goroutines may use it at
// once, each with its own batch.
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue = wq.RecvQueue

// CompletionQueue polls a completion queue. Any number of goroutines may use it at once.
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue = wq.CompletionQueue

// ExclusiveSendQueue is a [SendQueue] for the goroutine that uses it first, until that goroutine calls Release.
type ExclusiveSendQueue = wq.ExclusiveSendQueue

// ExclusiveRecvQueue is a [RecvQueue] for the goroutine that uses it first, until that goroutine calls Release.
type ExclusiveRecvQueue = wq.ExclusiveRecvQueue

// ExclusiveCompletionQueue is a [CompletionQueue] for the goroutine that uses it first, until that goroutine calls
// Release.
type ExclusiveCompletionQueue = wq.ExclusiveCompletionQueue

// QueueOptions describe a queue where C's structures do not.
type QueueOptions = wq.QueueOptions

// Path is how queues reach their device. It is chosen when a queue is made: that of [QueueOptions]; or the device's,
// see [Device.UsePath]; or the backend's, if the backend of the device is a Path; or the functions of the provider. Its
// methods are named after functions of C, and take and return what those do: the results are 0 or an errno, and of Poll
// the number of completions, or a negative number. Many goroutines call at once. A post must not keep the list, bad, or
// what they point to.
//
// Programs use it, too: a [WRProgram] is posted as a list, and a [PollProgram] polls, with the values that ibv_poll_cq
// has. What lists and ibv_poll_cq cannot say is [ErrNotSupported]. BindMW, and operations of shared receive queues with
// tag matching, are calls of the device's own functions.
type Path = datapath.Path

// NewSendQueue returns the send queue of a queue pair, which has to outlive it; see [QP.SendQueue] for that of an
// object.
func NewSendQueue(qp *ibv.QP, o QueueOptions) (*SendQueue, error) { return wq.NewSendQueue(qp, o) }

// NewRecvQueue returns the receive queue of a queue pair, which has to outlive it. A queue pair with a shared receive
// queue has none of its own.
func NewRecvQueue(qp *ibv.QP, o QueueOptions) (*RecvQueue, error) { return wq.NewRecvQueue(qp, o) }

// NewSharedRecvQueue returns a shared receive queue, which has to outlive it. Of Cap, it uses MaxRecvWR and MaxRecvSGE:
// max_wr and max_sge of ibv_srq_attr.
func NewSharedRecvQueue(srq *ibv.SRQ, o QueueOptions) (*RecvQueue, error) {
	return wq.NewSharedRecvQueue(srq, o)
}

// NewCompletionQueue returns a completion queue, which has to outlive it. Of the options, Way,
// Providers and Path have an effect.
func NewCompletionQueue(cq *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	return wq.NewCompletionQueue(cq, o)
}

// SendBatch is a chain of send work requests with their scatter/gather entries and inline bytes, in one piece of memory
// that the garbage collector does not own. A method named after an operation appends a request and returns it; methods
// of the request set everything else:
//
//	b.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// A batch can be posted any number of times; WR and SGEs change fields in between. It is for one goroutine at a time
// and allocates nothing.
type SendBatch = wq.SendBatch

// SendRequest is a work request in a [SendBatch]; its methods set everything but the operation. It is valid until
// Reset.
type SendRequest = wq.SendRequest

// NewSendBatch creates an empty batch with room for requests of a number of entries each, and with inline bytes in each
// request for the data that Inline and TSO copy.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	return wq.NewSendBatch(requests, sges, inline)
}

// RecvBatch is a chain of receive work requests with their scatter entries, for a [RecvQueue] of a queue pair or a
// shared one:
//
//	b.Recv(id).SGE(address, length, lkey)
//
// Everything else is as with [SendBatch].
type RecvBatch = wq.RecvBatch

// RecvRequest is a work request in a [RecvBatch]. It is valid until Reset.
type RecvRequest = wq.RecvRequest

// NewRecvBatch creates an empty batch with room for requests of a number of entries each.
func NewRecvBatch(requests, sges int) (*RecvBatch, error) { return wq.NewRecvBatch(requests, sges) }

// TagBatch is a chain of operations on the tag list of an [SRQ] of type IBV_SRQT_TM, with their scatter entries, for
// [SRQ.PostTags]:
//
//	add := b.Add(id, recvID, tag, mask).SGE(address, length, lkey).Signaled()
//
// Man: ibv_post_srq_ops(3)
type TagBatch = wq.TagBatch

// TagRequest is an operation in a [TagBatch]. It is valid until Reset.
type TagRequest = wq.TagRequest

// NewTagBatch creates an empty batch with room for operations of a number of entries each.
func NewTagBatch(operations, sges int) (*TagBatch, error) { return wq.NewTagBatch(operations, sges) }

// WRProgram is work that is posted through an extended queue pair: a region from ibv_wr_start to ibv_wr_complete, which
// runs as one call. Build it once, run it any number of times with [QP.PostProgram], and change fields in between:
//
//	p.Write(id, ibv.SEND_SIGNALED, remoteAddress, rkey).SGE(address, length, lkey)
//
// Man: ibv_wr_post(3)
type WRProgram = wq.WRProgram

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
type WRRequest = wq.WRRequest

// NewWRProgram creates an empty program for a queue pair, which has to outlive it; see [QP.NewWRProgram] for that of an
// object.
func NewWRProgram(qp *ibv.QPEx) *WRProgram { return wq.NewWRProgram(qp) }

// PollProgram polls an extended completion queue: a region from ibv_start_poll to ibv_end_poll, which runs as one call;
// see [CQ.PollProgram].
//
// Man: ibv_create_cq_ex(3)
type PollProgram = wq.PollProgram

// Completion holds what a [PollProgram] reads of a completion.
type Completion = wq.Completion

// NewPollProgram creates a program that reads up to n completions of a queue, which has to outlive it. flags select the
// values to read; the queue must have been created with them. Of the options, Way and Providers have an effect.
func NewPollProgram(cq *ibv.CQEx, n int, flags ibv.CreateCQWCFlags, o QueueOptions) (*PollProgram, error) {
	return wq.NewPollProgram(cq, n, flags, o)
}

// PostError says why a list was not posted, or only a part of it. errors.Is finds Errno in it.
type PostError = wq.PostError

// CompletionError says that a work request failed, what the status means, and which causes are likely. errors.As finds
// it.
//
// Man: ibv_poll_cq(3)
type CompletionError = wq.CompletionError

// CompletionErr returns nil for a successful completion, and a [*CompletionError] for any other.
func CompletionErr(wc *ibv.WC) error { return wq.CompletionErr(wc) }

// GRHBytes is the size of the global routing header. A receive of a UD queue pair needs this room in front of the
// message.
const GRHBytes = wq.GRHBytes

// Datagram splits a completed receive of a UD queue pair. buffer is the posted memory, in one piece from its first
// byte, and wc the completion. payload is the part of buffer with the message. grh is the header in front of it, or nil
// if the completion says that there is none; the bytes mean nothing then. Neither is a copy.
//
// Man: ibv_poll_cq(3)
func Datagram(wc *ibv.WC, buffer []byte) (payload []byte, grh *ibv.GRH, err error) {
	return wq.Datagram(wc, buffer)
}

// EnvCall is the environment variable that forces one way to call every queue without a Way option: blocking, system or
// exclusive.
const EnvCall = provider.EnvCall

// Verbs is a set of verbs of the data path.
type Verbs = provider.Verbs

// Values of Verbs.
const (
	PostSend  = provider.PostSend  // ibv_post_send, and ibv_wr_start to ibv_wr_complete
	PostRecv  = provider.PostRecv  // ibv_post_recv and ibv_post_srq_recv
	Poll      = provider.Poll      // ibv_poll_cq, and ibv_start_poll to ibv_end_poll
	ReqNotify = provider.ReqNotify // ibv_req_notify_cq
)

// Provider describes a provider: the verbs that it executes in user space alone. They may be called without telling
// Go's scheduler.
type Provider = provider.Provider

// Providers returns the built-in list. A provider that is not in it, or a verb that is not in its Pure, is called the
// Blocking way, which is right for all.
func Providers() []Provider { return provider.Providers() }

// inlined is never called. The compiler puts the body of a function of another package into this one's export data only
// if it inlines the function here. A program that uses the types of package wq under their names here would otherwise
// inline none of their methods, for which many of them are short: posting costs a third more then. conformance/house
// looks after it.
func inlined() {
	var (
		send  SendBatch
		recv  RecvBatch
		tags  TagBatch
		sq    SendQueue
		rq    RecvQueue
		cq    CompletionQueue
		xsq   ExclusiveSendQueue
		xrq   ExclusiveRecvQueue
		xcq   ExclusiveCompletionQueue
		wrs   WRProgram
		entry ibv.SGE
	)
	sq.Post(&send)
	sq.PostRange(&send, 0, 1)
	sq.Retire(nil)
	rq.Post(&recv)
	rq.PostRange(&recv, 0, 1)
	rq.Retire(nil)
	cq.ReqNotify(false)
	xsq.Post(&send)
	xsq.PostRange(&send, 0, 1)
	xrq.Post(&recv)
	xrq.PostRange(&recv, 0, 1)
	xcq.ReqNotify(false)

	send.Reset()
	send.Len()
	send.Cap()
	send.WR(0)
	send.WRs()
	send.SGEs(0)
	send.Fill(1)
	send.Send(0)
	send.SendImm(0, 0)
	send.SendInv(0, 0)
	send.LocalInv(0, 0)
	send.Driver(0)
	send.Write(0, 0, 0)
	send.Read(0, 0, 0)
	send.CompareSwap(0, 0, 0, 0, 0)
	send.FetchAdd(0, 0, 0, 0)
	var s SendRequest
	s = s.SGE(0, 0, 0)
	s = s.Add(entry)
	s = s.Flags(0)
	s = s.Signaled()
	s = s.UD(0, 0, 0)
	s = s.XRC(0)
	s.Index()

	recv.Reset()
	recv.Len()
	recv.Cap()
	recv.WR(0)
	recv.WRs()
	recv.SGEs(0)
	r := recv.Recv(0)
	r = r.SGE(0, 0, 0)
	r = r.Add(entry)
	r.Index()

	tags.Reset()
	tags.Len()
	t := tags.Add(0, 0, 0, 0)
	tags.Del(0, 0)
	tags.Sync(0, 0)
	t = t.SGE(0, 0, 0)
	t = t.Signaled()
	t.Unexpected(0)

	wrs.Len()
	wrs.Err()
}

var _ = inlined
