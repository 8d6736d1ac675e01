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
// Methods, which go doc rdma/internal/wq.SendQueue explains:
//
//	BindMW(mw *ibv.MW, bind *ibv.MWBind) error
//	Way() runtime.Way
//	Provider() string
//	Free() int
//	Reset()
//	Post(b *SendBatch) (posted int, err error)
//	PostRange(b *SendBatch, from int, to int) (posted int, err error)
//	Retire(wcs []ibv.WC)
//	Exclusive() (*ExclusiveSendQueue, error)
//	PostProgram(p *WRProgram) error
//
// Man: ibv_post_send(3)
type SendQueue = wq.SendQueue

// RecvQueue posts to the receive queue of a queue pair, or to a shared one. Any number of goroutines may use it at
// once, each with its own batch.
//
// Methods, which go doc rdma/internal/wq.RecvQueue explains:
//
//	Way() runtime.Way
//	Provider() string
//	Free() int
//	Reset()
//	Post(b *RecvBatch) (posted int, err error)
//	PostRange(b *RecvBatch, from int, to int) (posted int, err error)
//	Retire(wcs []ibv.WC)
//	Exclusive() (*ExclusiveRecvQueue, error)
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue = wq.RecvQueue

// CompletionQueue polls a completion queue. Any number of goroutines may use it at once.
//
// Methods, which go doc rdma/internal/wq.CompletionQueue explains:
//
//	Way() runtime.Way
//	Provider() string
//	Track(qpNum uint32, send *SendQueue, recv *RecvQueue)
//	Untrack(qpNum uint32)
//	Poll(dst []ibv.WC) (n int, err error)
//	ReqNotify(solicitedOnly bool) error
//	Exclusive() (*ExclusiveCompletionQueue, error)
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue = wq.CompletionQueue

// ExclusiveSendQueue is a [SendQueue] for the goroutine that uses it first, until that goroutine calls Release.
//
// Methods, which go doc rdma/internal/wq.ExclusiveSendQueue explains:
//
//	BindMW(mw *ibv.MW, bind *ibv.MWBind) error
//	Way() runtime.Way
//	Provider() string
//	Release()
//	Close() error
//	Post(b *SendBatch) (posted int, err error)
//	PostRange(b *SendBatch, from int, to int) (posted int, err error)
//	Retire(wcs []ibv.WC)
//	PostProgram(p *WRProgram) error
type ExclusiveSendQueue = wq.ExclusiveSendQueue

// ExclusiveRecvQueue is a [RecvQueue] for the goroutine that uses it first, until that goroutine calls Release.
//
// Methods, which go doc rdma/internal/wq.ExclusiveRecvQueue explains:
//
//	Way() runtime.Way
//	Provider() string
//	Release()
//	Close() error
//	Post(b *RecvBatch) (posted int, err error)
//	PostRange(b *RecvBatch, from int, to int) (posted int, err error)
//	Retire(wcs []ibv.WC)
type ExclusiveRecvQueue = wq.ExclusiveRecvQueue

// ExclusiveCompletionQueue is a [CompletionQueue] for the goroutine that uses it first, until that goroutine calls
// Release.
//
// Methods, which go doc rdma/internal/wq.ExclusiveCompletionQueue explains:
//
//	Way() runtime.Way
//	Provider() string
//	Poll(dst []ibv.WC) (n int, err error)
//	ReqNotify(solicitedOnly bool) error
//	Release()
//	Close() error
type ExclusiveCompletionQueue = wq.ExclusiveCompletionQueue

// QueueOptions describe a queue where C's structures do not.
//
// Fields, which go doc rdma/internal/wq.QueueOptions explains:
//
//	Cap ibv.QPCap
//	SQSigAll bool
//	MaxMessage uint32
//	NoIPChecksum bool
//	Overcommit bool
//	Unchecked bool
//	Way string
//	Path Path
//	Providers []Provider
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
//
// Methods, which go doc rdma/internal/datapath.Path explains:
//
//	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
//	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
//	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
//	PostWQRecv(wq *ibv.WQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
//	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
//	Arm(cq *ibv.CQ, solicitedOnly bool) int32
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

// GRHBytes is the size of the global routing header. A receive of a UD queue pair needs this room in front of the
// message.
const GRHBytes = wq.GRHBytes

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

// Provider describes a provider: the verbs that it executes in user space alone, and those that enter the kernel and do
// not sleep there. They may be called without telling Go's scheduler.
//
// Fields, which go doc rdma/internal/provider.Provider explains:
//
//	Name string
//	Pure Verbs
//	Brief Verbs
//	Reason string
type Provider = provider.Provider

// Providers returns the built-in list. A provider that is not in it, or a verb that is neither in its Pure nor in its
// Brief, is called the Blocking way, which is right for all.
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
	tags.Cap()
	t := tags.AddTag(0, 0, 0, 0)
	tags.DelTag(0, 0)
	tags.Sync(0, 0)
	t = t.SGE(0, 0, 0)
	t = t.Add(entry)
	t = t.Signaled()
	t.Index()
	t.Unexpected(0)

	wrs.Len()
	wrs.Err()
}

var _ = inlined
