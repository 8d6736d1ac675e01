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
// with slots. Any number of goroutines may use it at once, each with its
// own batch.
//
// On 64-bit machines a send queue takes 360 bytes, a receive queue 376. A checked one takes 8 bytes and a bit more for
// each of its slots, whose number is rounded up to a power of two. A post uses two cache lines of the queue and one or
// two of its slots.
//
// Methods, whose whole documentation go doc rdma/internal/wq.SendQueue has:
//
//	// BindMW binds a memory window of type 1 to a memory region, or with no length unbinds it.
//	BindMW(mw *ibv.MW, bind *ibv.MWBind) error
//	// Way is how the queue is called.
//	Way() runtime.Way
//	// Provider is the name of the provider that the queue's code belongs to, "software" for a software backend, or ""
//	// when it was not recognised.
//	Provider() string
//	// Free is the number of slots that can be posted to now.
//	Free() int
//	// Reset forgets what is outstanding: the queue pair was moved to RESET, which drops it without completions.
//	Reset()
//	// Post posts the whole batch in one call.
//	Post(b *SendBatch) (posted int, err error)
//	// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
//	PostRange(b *SendBatch, from int, to int) (posted int, err error)
//	// Retire gives back the slots that completions tell of: of a successful one, those of its work request and of all
//	// before it; likewise of a failed one.
//	Retire(wcs []ibv.WC)
//	// PostProgram posts all requests of the program in one call: all of them, or none and an error.
//	PostProgram(p *WRProgram) error
//
// Man: ibv_post_send(3)
type SendQueue = wq.SendQueue

// RecvQueue posts to the receive queue of a queue pair, or to a shared one. Any number of goroutines may use it at
// once, each with its own batch.
//
// Methods, whose whole documentation go doc rdma/internal/wq.RecvQueue has:
//
//	// Way is how the queue is called.
//	Way() runtime.Way
//	// Provider is the name of the provider that the queue's code belongs to, "software" for a software backend, or ""
//	// when it was not recognised.
//	Provider() string
//	// Free is the number of slots that can be posted to now.
//	Free() int
//	// Reset forgets what is outstanding: the queue pair was moved to RESET, which drops it without completions.
//	Reset()
//	// Post posts the whole batch in one call.
//	Post(b *RecvBatch) (posted int, err error)
//	// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
//	PostRange(b *RecvBatch, from int, to int) (posted int, err error)
//	// Retire gives back the slots that completions tell of, one each.
//	Retire(wcs []ibv.WC)
//
// Man: ibv_post_recv(3), ibv_post_srq_recv(3)
type RecvQueue = wq.RecvQueue

// CompletionQueue polls a completion queue. Any number of goroutines may use it at once.
//
// Methods, whose whole documentation go doc rdma/internal/wq.CompletionQueue has:
//
//	// Way is how the queue is polled.
//	Way() runtime.Way
//	// Provider is [SendQueue.Provider].
//	Provider() string
//	// Track gives the slots of checked queues back as Poll finds their completions.
//	Track(qpNum uint32, send *SendQueue, recv *RecvQueue)
//	// Untrack ends what Track began.
//	Untrack(qpNum uint32)
//	// Poll takes up to len(dst) completions out of the queue.
//	Poll(dst []ibv.WC) (n int, err error)
//	// ReqNotify asks for one event, for the next completion or only for a solicited one or an error.
//	ReqNotify(solicitedOnly bool) error
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue = wq.CompletionQueue

// QueueOptions describe a queue where C's structures do not.
//
// Fields:
//
//	// The constructors of objects know Cap, SQSigAll and MaxMessage and ignore what you set.
//
//	// Cap is the capacity of the queue pair as ibv_create_qp returned it; for a shared receive queue, set MaxRecvWR
//	// and MaxRecvSGE. A checked queue needs it.
//	Cap ibv.QPCap
//	// SQSigAll says that every send request has a completion: sq_sig_all of ibv_qp_init_attr.
//	SQSigAll bool
//	// MaxMessage is the largest message in bytes: max_msg_sz of ibv_port_attr, or the path's MTU for datagrams. 0
//	// means unknown; then 2 GiB is the limit.
//	MaxMessage uint32
//	// NoIPChecksum says that the device lacks IBV_SEND_IP_CSUM for this queue pair.
//	NoIPChecksum bool
//	// Overcommit admits the queue pair to completion queues that have no room for all its work requests. The user
//	// then has to prevent an overrun. It has an effect only on objects.
//	Overcommit bool
//	// Unchecked turns off checks and accounting. If such a queue pair uses a checked shared receive queue, each of
//	// its failed sends gives back a slot of that queue, because a failed completion does not say that it belongs to a
//	// send.
//	Unchecked bool
//	// Way forces a way to call the queue: "blocking" or "system". If it is "", GOVERBS_CALL decides, and if that is
//	// not set, the provider.
//	Way string
//	// Path is another way to the device than the functions of its provider, a data path in Go for example; nil: the
//	// device's, which are the provider's functions unless Device.UsePath was called.
//	Path Path
//	// Providers are looked up before the built-in ones.
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
// Methods, whose whole documentation go doc rdma/internal/datapath.Path has:
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

// EnvCall is the environment variable that forces one way to call every queue without a Way option: blocking or system.
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
// Fields:
//
//	Name   string // as in the name of its shared object: "mlx5" of libmlx5.so.1 and of libmlx5-rdmav34.so
//	Pure   Verbs
//	Brief  Verbs
//	Reason string // the sources that show it, and what was found when it was run
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

// onEFA says whether libefa posts to the queue pair, and onERDMA whether liberdma does.
func (q *QP) onEFA() bool   { return q.on("efa") }
func (q *QP) onERDMA() bool { return q.on("erdma") }

func (q *QP) on(provider string) bool {
	return q.send != nil && q.send.Provider() == provider || q.recv != nil && q.recv.Provider() == provider
}

// changesAs is the type by whose rules the queue pair changes its state: one of EFA's reliable datagrams does as one of
// datagrams.
func (q *QP) changesAs() ibv.QPType {
	if q.kind == ibv.QPT_DRIVER && q.onEFA() {
		return ibv.QPT_UD
	}
	return q.kind
}

// uncounted says why what is outstanding cannot be waited for, or returns nil.
func (q *QP) uncounted() error {
	if !q.options.Unchecked || !q.onEFA() && !q.onERDMA() {
		return nil
	}
	return &VerbError{Verb: "Drain", Object: q.name, Errno: einval, Reason: "its library takes no marker in ERR, and " +
		"an unchecked queue pair does not count its requests: create it without QueueOptions.Unchecked, or poll " +
		"until each request has completed"}
}
