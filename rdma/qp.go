package rdma

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// QP is a queue pair.
//
// Any number of goroutines may post to it at once, each with its own batch. Posting does not block, allocate, or wait for anything but
// others who post. What is posted completes in the queue pair's completion queues, whose polling gives the slots back.
//
// Man: ibv_create_qp(3)
type QP struct {
	object
	c       *ibv.QP
	ex      *ibv.QPEx // nil: without the functions of ibv_wr_post(3)
	device  *Device
	pd      *PD // nil for the receiving end of XRC
	srq     *SRQ
	sendCQ  *CQ // or nil, both
	recvCQ  *CQ
	send    *SendQueue // nil: it cannot send
	recv    *RecvQueue // nil: it has no receive queue of its own
	cap     ibv.QPCap  // what the user may use
	options QueueOptions
	endC    func(*ibv.QP) error // in C

	num     atomic.Uint32 // of a target of dynamic connections, from RTR on
	kind    ibv.QPType
	ends    occasion  // Close has begun
	lastWQE *occasion // no more of the shared receive queue will be taken

	changes  sync.Mutex // of the state, and of what follows
	local    localEnd
	groups   map[mcastGroup]bool // multicast
	received bool                // since RESET it has been where it takes of the shared receive queue
	sendMark drainMarker         // of drains that were given up
	recvMark drainMarker
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the QP.
func (q *QP) C() *ibv.QP { return whileOpen(&q.object, q.c) }

// CEx is the extended object of C, for a [WRProgram], or nil.
func (q *QP) CEx() *ibv.QPEx { return whileOpen(&q.object, q.ex) }

// Ptr is the queue pair as attributes name it.
func (q *QP) Ptr() ibv.Ptr[ibv.QP] { return ptrWhileOpen(&q.object, q.c) }

// Num is the number that peers know the queue pair by, in host byte order. A closed queue pair's number may be another's soon.
func (q *QP) Num() uint32 { return q.num.Load() }

// Type is the type of service.
func (q *QP) Type() ibv.QPType { return q.kind }

// Cap is what the queue pair can hold: the work requests that were asked for, of at least so many entries and inline bytes.
func (q *QP) Cap() ibv.QPCap { return q.cap }

// PD is the protection domain, or nil.
func (q *QP) PD() *PD { return q.pd }

// SendCQ is where sends complete, or nil.
func (q *QP) SendCQ() *CQ { return q.sendCQ }

// RecvCQ is where receives complete, or nil.
func (q *QP) RecvCQ() *CQ { return q.recvCQ }

// SRQ is the shared receive queue, or nil.
func (q *QP) SRQ() *SRQ { return q.srq }

// State is what C keeps of the queue pair's state: where it was moved to last. One that broke by itself is in ERR, which Query tells; one
// that is closed is in IBV_QPS_UNKNOWN.
func (q *QP) State() ibv.QPState {
	if q.use("State") != nil {
		return ibv.QPS_UNKNOWN
	}
	defer q.done()
	return q.state()
}

// state is State while the queue pair is known to be there. C writes it when another goroutine modifies the queue pair.
func (q *QP) state() ibv.QPState {
	return ibv.QPState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&q.c.State))))
}

// SendQueue is the queue that sends are posted to, or nil. It is usable until the queue pair is closed.
func (q *QP) SendQueue() *SendQueue { return q.send }

// RecvQueue is the queue pair's own receive queue, or nil.
func (q *QP) RecvQueue() *RecvQueue { return q.recv }

// PostSend posts a whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an error those before
// the one that failed. The error is a [*PostError], or that of the batch.
//
// The memory that the requests name, but for inline data, is the device's until they have completed.
//
// C: ibv_post_send
//
// Man: ibv_post_send(3)
func (q *QP) PostSend(b *SendBatch) (posted int, err error) {
	if q.send == nil {
		return 0, q.noSendQueue("ibv_post_send")
	}
	return wq.PostSend(q.send, b)
}

func (q *QP) noSendQueue(verb string) error {
	return q.cannot(verb, "it was created without a send queue (max_send_wr is 0, or it has no completion queue)")
}

// PostRecv posts a whole batch to the queue pair's own receive queue. What it gives is as with PostSend; the memory is the device's until the
// receives have completed.
//
// C: ibv_post_recv
//
// Man: ibv_post_recv(3)
func (q *QP) PostRecv(b *RecvBatch) (posted int, err error) {
	switch {
	case q.recv != nil:
		return q.recv.Post(b)
	case q.srq != nil:
		return 0, q.cannot("ibv_post_recv", "it receives from "+q.srq.name+": post there")
	}
	return 0, q.cannot("ibv_post_recv", "it was created without a receive queue (max_recv_wr is 0, or it has no completion queue)")
}

// PostProgram posts all requests of a program that was made for the queue pair's CEx: all of them, or with an error none. The memory that they
// name is the device's until they have completed.
//
// C: ibv_wr_start, ibv_wr_complete
//
// Man: ibv_wr_post(3)
func (q *QP) PostProgram(p *WRProgram) error {
	if q.send == nil {
		return q.noSendQueue("ibv_wr_start")
	}
	return q.send.PostProgram(p)
}

func (q *QP) cannot(verb, why string) error {
	return &VerbError{Verb: verb, Object: q.name, Errno: einval, Reason: why}
}

// NewWRProgram makes an empty program for the queue pair, which has to be an extended one, and to stay open while the program is built and run.
//
// Man: ibv_wr_post(3)
func (q *QP) NewWRProgram() (*WRProgram, error) {
	if q.ex == nil {
		return nil, q.cannot("ibv_wr_start", "it was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")
	}
	if err := q.use("ibv_wr_start"); err != nil {
		return nil, err
	}
	defer q.done()
	return NewWRProgram(q.ex), nil
}

// Query asks for the queue pair's attributes, of which mask says what is wanted; the device may tell more.
//
// C: ibv_query_qp
//
// Man: ibv_query_qp(3)
func (q *QP) Query(mask ibv.QPAttrMask) (*ibv.QPAttr, *ibv.QPInitAttr, error) {
	const verb = "ibv_query_qp"
	attr, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	if err := q.use(verb); err != nil {
		return attr, init, err
	}
	defer q.done()
	return attr, init, wrap(verb, q.name, libibverbs.QueryQP(q.c, attr, mask, init))
}

// DataInOrder says whether the device writes the data of an operation in the order of its addresses.
//
// C: ibv_query_qp_data_in_order
//
// Man: ibv_query_qp_data_in_order(3)
func (q *QP) DataInOrder(op ibv.WROpcode, flags ibv.QueryQPDataInOrderFlags) (caps int, err error) {
	const verb = "ibv_query_qp_data_in_order"
	if err := q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	caps, err = libibverbs.QueryQPDataInOrder(q.c, op, flags)
	return caps, wrap(verb, q.name, err)
}

// ECE asks for the options that the device would use with a peer of the same vendor; they are exchanged with the endpoint.
//
// C: ibv_query_ece
//
// Man: ibv_query_ece(3)
func (q *QP) ECE() (*ibv.ECE, error) {
	const verb = "ibv_query_ece"
	ece := new(ibv.ECE)
	if err := q.use(verb); err != nil {
		return ece, err
	}
	defer q.done()
	return ece, wrap(verb, q.name, libibverbs.QueryECE(q.c, ece))
}

// SetECE proposes options, before the queue pair is in RTR.
//
// C: ibv_set_ece
//
// Man: ibv_set_ece(3)
func (q *QP) SetECE(ece *ibv.ECE) error {
	const verb = "ibv_set_ece"
	if ece == nil {
		return noAttributes(verb, q.name)
	}
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	return wrap(verb, q.name, libibverbs.SetECE(q.c, ece))
}
