package rdma

import (
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// QueueOptions are what a queue has to know that the structures of C do not say.
type QueueOptions struct {
	// Cap is what the queue can hold, as ibv_create_qp gave it back; for a shared receive queue, MaxRecvWR and MaxRecvSGE.
	Cap ibv.QPCap
	// SQSigAll says that every send request completes: sq_sig_all of ibv_qp_init_attr.
	SQSigAll bool
	// MaxMessage is the most bytes of a message: max_msg_sz of ibv_port_attr, or for datagrams the path's MTU. 0 means not known.
	MaxMessage uint32
	// NoIPChecksum says that the device is known not to have IBV_SEND_IP_CSUM for this queue pair.
	NoIPChecksum bool
	// Unchecked leaves checks and accounting out.
	Unchecked bool
	// Way forces how the queue is called: "blocking", "system" or "exclusive", the last one meaning a private stack for Exclusive and
	// the system stack otherwise. "" leaves it to GOVERBS_CALL, and that to what is known of the provider.
	Way string
	// Providers are looked up before the built-in ones.
	Providers []Provider
}

func (o *QueueOptions) call() *callOptions { return &callOptions{o.Way, o.Providers} }

// SendQueue posts to the send queue of a queue pair. Any number of goroutines may use it at once, each with its own batch.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	slot
	qp *ibv.QP
}

// NewSendQueue is the send queue of a queue pair, which has to outlive it. The slot is read now: no provider changes it later.
func NewSendQueue(qp *ibv.QP, o QueueOptions) (*SendQueue, error) {
	s, err := newSlot(uintptr(qp.Context.Deref().Ops.PostSend), uintptr(unsafe.Pointer(qp)), PostSend, "ibv_post_send", o.call())
	if err != nil {
		return nil, err
	}
	return &SendQueue{slot: s, qp: qp}, nil
}

// Way is how the queue is called.
func (q *SendQueue) Way() runtime.Way { return q.shared() }

// Provider is the name of the provider that the queue's code belongs to, "software" for a software backend, or "" when it was not
// recognised.
func (q *SendQueue) Provider() string { return q.provider }

// Post posts the whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an error those
// before the one that failed. See [PostError] for an error that does not say which.
func (q *SendQueue) Post(b *SendBatch) (posted int, err error) { return q.PostRange(b, 0, b.n) }

// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say.
func (q *SendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	if from >= to {
		return 0, b.err
	}
	first, last := &b.wrs[from], &b.wrs[:b.n][to-1]
	next := last.Next
	last.Next = 0
	*b.bad = 0
	r := q.shared().Call3(q.fn, q.object, uintptr(unsafe.Pointer(first)), uintptr(unsafe.Pointer(b.bad)))
	last.Next = next
	if r == 0 {
		return to - from, nil
	}
	return 0, runtime.Errno(r)
}

// Exclusive gives a handle of the queue that is for one goroutine, the fastest way to post. The queue itself must not be
// used until the handle is closed.
func (q *SendQueue) Exclusive() (*ExclusiveSendQueue, error) {
	s, err := runtime.NewStack()
	return &ExclusiveSendQueue{q, s}, err
}

// ExclusiveSendQueue is a [SendQueue] for the goroutine that uses it first, until that says Release. In another one its methods panic
// with runtime.ErrNotOwner.
type ExclusiveSendQueue struct {
	q     *SendQueue
	stack *runtime.Stack
}

// Way is how the queue is called.
func (x *ExclusiveSendQueue) Way() runtime.Way { return x.q.way }

// Provider is the name of the provider that the queue's code belongs to.
func (x *ExclusiveSendQueue) Provider() string { return x.q.provider }

// Post is [SendQueue.Post].
func (x *ExclusiveSendQueue) Post(b *SendBatch) (posted int, err error) {
	return x.PostRange(b, 0, b.n)
}

// PostRange is [SendQueue.PostRange].
func (x *ExclusiveSendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	return x.q.PostRange(b, from, to)
}

// Release lets another goroutine own the handle. Only the owner may say so.
func (x *ExclusiveSendQueue) Release() { x.stack.Release() }

// Close gives the queue back. A second Close does nothing.
func (x *ExclusiveSendQueue) Close() error { return x.stack.Close() }

// shortName is the name of a queue pair type as the man page's table has it: RC.
func shortName(t ibv.QPType) string { return strings.TrimPrefix(t.String(), "IBV_QPT_") }
