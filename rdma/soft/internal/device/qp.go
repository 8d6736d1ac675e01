package device

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// qpRecord is a queue pair as C knows it, with its place in the host's table.
type qpRecord struct {
	ibv.QPEx
	index uint32
}

// qp is a queue pair. What does not say otherwise is under the fabric's lock.
type qp struct {
	*context
	device    *device // the context's, and its fabric: a look less for each message
	on        *Fabric
	record    *qpRecord
	index     uint32
	number    uint32
	kind      ibv.QPType
	reliable  bool       // it answers, or is answered
	expectsOf ibv.QPType // kind of the senders that it expects
	owner     *pd
	sendCQ    *cq
	recvCQ    *cq
	srq       *srq
	domain    *domain // of XRC_RECV
	cap       ibv.QPCap
	signals   bool        // sends complete, whatever their flags: sq_sig_all
	closed    bool        // its own handle was destroyed, and others are open
	handles   []*openedQP // of XRC_RECV, that ibv_open_qp gave
	asyncs    reports
	windows   int // of type 2 that are bound to it

	state       ibv.QPState
	attr        ibv.QPAttr // what ibv_modify_qp set
	recvs       *recvQueue // nil with a shared one, and for XRC
	established bool       // the first message came
	groups      int        // of multicast that it is in

	// Of the requester and the completer.
	// the message that is sent, or was last: what does not change from one to the next is filled in
	out     message.Request
	psn     uint32 // packet sequence number of the next message
	awaits  bool   // that message is under way, and no answer has come
	returns bool   // its answer brings data
	reply   reply
	reading *rendezvous // that the message is a read of, or nil

	// Of the responder: what it knows of the sender.
	heard    bool           // of one, since the first number was set
	peerLife uint64         // of the last message
	expects  uint32         // packet sequence number of the next message
	last     uint32         // that of the last one that was carried out, or noPSN
	saved    uint64         // what the last atomic found
	back     message.Answer // the answer that is sent, or was last

	// Posting fills the ring under post alone, then takes the fabric's lock: posted and next are under that. Positions
	// count requests that were ever posted, modulo 2³².
	post    sync.Mutex
	ring    []request
	sges    []ibv.SGE // cap.MaxSendSGE for each place of the ring
	inline  []byte    // cap.MaxInlineData for each place of the ring
	mask    uint32
	posted  uint32
	next    uint32
	retired atomic.Uint32 // slots before it are free, by polling
	build   builder

	rendezvous []*rendezvous // of messages that matched tags of the shared receive queue
	stall      stall
	moving     bool // in progress
}

// stall is why the first request of the send queue is not done yet.
type stall struct {
	on         bool
	rendezvous bool          // it is of a rendezvous, before that request
	timer      uint64        // 0 for none
	notReady   int           // answers of the peer that it is not ready
	lost       int           // answers that did not come
	spent      bool          // the timer is that of the last try
	wait       time.Duration // that the wire asks for
	fire       func()        // of the timer
}

// request is a send work request that was posted.
type request struct {
	id      uint64
	opcode  ibv.WROpcode
	flags   ibv.SendFlags
	imm     uint32 // immediate data in network byte order, or the key that is to be invalidated
	rkey    uint32
	remote  uint64
	operand uint64 // that an atomic adds or compares with, or that is written atomically; of a flush, the length
	swap    uint64 // of a flush, placement and level
	sges    int32
	inline  int32 // bytes; -1 for none
	ah      *ah
	number  uint32 // of the datagram's queue pair, or of the shared receive queue
	qkey    uint32
	window  *mw
	bind    binding
}

func createQP(a []uint64) (uint64, runtime.Errno) {
	p := find[pd](a[0])
	if p == nil || a[1] == 0 {
		return 0, einval
	}
	attr := at[ibv.QPInitAttr](a[1])
	ex := ibv.QPInitAttrEx{
		QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ, Cap: attr.Cap,
		QPType: attr.QPType, SQSigAll: attr.SQSigAll,
		CompMask: ibv.QP_INIT_ATTR_PD, PD: ibv.PtrTo(p.record),
	}
	q, errno := p.context.newQP(&ex)
	if errno != 0 {
		return 0, errno
	}
	attr.Cap = q.cap
	return addressOf(q.record), 0
}

// createQPEx is the operation create_qp_ex.
func createQPEx(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, einval
	}
	attr := at[ibv.QPInitAttrEx](address)
	const known = ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_XRCD | ibv.QP_INIT_ATTR_CREATE_FLAGS | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	if attr.CompMask&^known != 0 || attr.CompMask&ibv.QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.CreateFlags != 0 {
		return 0, eopnotsupp
	}
	q, errno := c.newQP(attr)
	if errno != 0 {
		return 0, errno
	}
	attr.Cap = q.cap
	return addressOf(q.record), 0
}

// newQP checks attributes and makes a queue pair, in RESET.
func (c *context) newQP(attr *ibv.QPInitAttrEx) (*qp, runtime.Errno) {
	f := c.fabric()
	f.mu.Lock()
	defer f.unlock()
	q := &qp{context: c, device: c.device, on: f, kind: attr.QPType, cap: attr.Cap, signals: attr.SQSigAll != 0}
	if errno := q.parts(attr); errno != 0 {
		return nil, errno
	}
	q.reliable, q.expectsOf = q.kind != ibv.QPT_UC && q.kind != ibv.QPT_UD, q.kind
	if q.kind == ibv.QPT_XRC_RECV {
		q.expectsOf = ibv.QPT_XRC_SEND
	}
	ops := uint64(0)
	if attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		ops = attr.SendOpsFlags
		if errno := buildable(q.kind, ibv.QPCreateSendOpsFlags(ops)); errno != 0 {
			return nil, errno
		}
	}
	record, errno := allocate[qpRecord](c.device)
	if errno != 0 {
		return nil, errno
	}
	number, ok := f.numbers.add(numbered{qp: q})
	if !ok {
		forget(record)
		return nil, enomem
	}
	q.record, q.number = record, number
	q.renew()
	size := uint32(1) << bits.Len32(max(q.cap.MaxSendWR, 1)-1)
	q.ring, q.mask = make([]request, size), size-1
	q.sges, q.inline = make([]ibv.SGE, size*q.cap.MaxSendSGE), make([]byte, size*q.cap.MaxInlineData)
	if q.srq == nil && q.kind != ibv.QPT_XRC_RECV && q.kind != ibv.QPT_XRC_SEND {
		q.recvs = newRecvQueue(q.owner.protects(), q.cap.MaxRecvWR, q.cap.MaxRecvSGE, false)
	}
	q.stall.fire = q.timeout
	q.index = all.qps.add(q)
	record.index = q.index
	base := &record.QPBase
	*base = ibv.QP{Context: c.address(), QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ,
		SRQ: attr.SRQ, Handle: q.index, QPNum: number, QPType: q.kind}
	if q.owner != nil {
		base.PD = ibv.PtrTo(q.owner.record)
		q.owner.uses++
	}
	c.uses++
	for _, uses := range q.used() {
		*uses++
	}
	if ops != 0 {
		q.extend(ibv.QPCreateSendOpsFlags(ops))
	}
	enter(record, q)
	return q, 0
}

// parts finds what the queue pair is made of.
func (q *qp) parts(attr *ibv.QPInitAttrEx) runtime.Errno {
	of := q.context
	switch q.kind {
	case ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
	case ibv.QPT_RAW_PACKET, ibv.QPT_DRIVER:
		return eopnotsupp
	default:
		return einval
	}
	if q.kind == ibv.QPT_XRC_RECV { // which has neither queues nor a protection domain
		if attr.CompMask&ibv.QP_INIT_ATTR_XRCD == 0 {
			return einval
		}
		handle := find[xrcd](uint64(attr.XRCD))
		if handle == nil || handle.device != of.device {
			return einval
		}
		q.domain, q.cap = handle.domain, ibv.QPCap{}
		return 0
	}
	if attr.CompMask&ibv.QP_INIT_ATTR_PD == 0 {
		return einval
	}
	if q.owner = find[pd](uint64(attr.PD)); q.owner == nil || q.owner.device != of.device {
		return einval
	}
	if q.sendCQ = find[cq](uint64(attr.SendCQ)); q.sendCQ == nil || q.sendCQ.device != of.device {
		return einval
	}
	if q.kind == ibv.QPT_XRC_SEND {
		q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
	} else {
		if q.recvCQ = find[cq](uint64(attr.RecvCQ)); q.recvCQ == nil || q.recvCQ.device != of.device {
			return einval
		}
		if attr.SRQ != 0 {
			if q.srq = find[srq](uint64(attr.SRQ)); q.srq == nil || q.srq.device != of.device ||
				refused(ibv.SRQAttachValidity(q.srq.kind, q.kind)) {
				return einval
			}
			q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
		}
	}
	if q.cap.MaxSendWR > maxQPWR || q.cap.MaxRecvWR > maxQPWR || q.cap.MaxSendSGE > maxSGE ||
		q.cap.MaxRecvSGE > maxSGE || q.cap.MaxInlineData > maxInline {
		return einval
	}
	return 0
}

// used are the counts of what the queue pair uses.
func (q *qp) used() (counts []*int) {
	if q.sendCQ != nil {
		counts = append(counts, &q.sendCQ.uses)
	}
	if q.recvCQ != nil {
		counts = append(counts, &q.recvCQ.uses)
	}
	if q.srq != nil {
		counts = append(counts, &q.srq.uses)
	}
	if q.domain != nil {
		counts = append(counts, &q.domain.uses)
	}
	return counts
}

// findQP is the queue pair of a handle.
func findQP(address uint64) *qp {
	if q := find[qp](address); q != nil {
		return q
	}
	if o := find[openedQP](address); o != nil {
		return o.of
	}
	return nil
}

// lockedQP finds the queue pair of a handle, or nil. It takes Fabric.mu for its caller, unless there is none.
func lockedQP(address uint64) *qp {
	if o := locked[openedQP](address); o != nil {
		return o.of
	}
	return locked[qp](address)
}

// destroyQP is ibv_destroy_qp. The queue pair goes with its last handle.
func destroyQP(a []uint64) runtime.Errno {
	if o := locked[openedQP](a[0]); o != nil {
		defer o.fabric().unlock()
		o.silence(&o.asyncs)
		if errno := mayGo(o.fabric(), a[0], o, never, &o.asyncs); errno != 0 {
			return errno
		}
		o.silence(&o.asyncs)
		q := o.of
		q.handles = slices.DeleteFunc(q.handles, func(other *openedQP) bool { return other == o })
		o.context.uses--
		forget(o.record)
		if q.closed && len(q.handles) == 0 {
			q.end()
		}
		return 0
	}
	q := locked[qp](a[0])
	if q == nil {
		return einval
	}
	f := q.fabric()
	defer f.unlock()
	busy := func() bool { return q.windows > 0 || q.groups > 0 }
	if errno := mayGo(f, a[0], q, busy); errno != 0 {
		return errno
	}
	if len(q.handles) == 0 {
		q.setState(ibv.QPS_RESET)
	}
	q.silence(&q.asyncs)
	if errno := mayGo(f, a[0], q, busy, &q.asyncs); errno != 0 {
		return errno
	}
	q.silence(&q.asyncs)
	all.qps.remove(q.index)
	q.context.uses--
	forget(q.record)
	if q.closed = true; len(q.handles) == 0 {
		q.end()
	}
	return 0
}

// end is the end of a queue pair that has no handle any more.
func (q *qp) end() {
	q.setState(ibv.QPS_RESET) // it may have been used until now
	q.fabric().numbers.remove(q.number)
	if q.owner != nil {
		q.owner.uses--
	}
	for _, uses := range q.used() {
		*uses--
	}
}

func (q *qp) fabric() *Fabric { return q.on }

func (q *qp) reported() *reports { return &q.asyncs }

// tell queues an event for all who have a handle.
func (q *qp) tell(kind ibv.EventType) {
	if !q.closed {
		q.context.tell(kind, addressOf(q.record), &q.asyncs)
	}
	for _, o := range q.handles {
		o.context.tell(kind, addressOf(o.record), &o.asyncs)
	}
}

// protects is the domain that the queue pair's own keys have to be of.
func (q *qp) protects() *pd { return q.owner.protects() }

// retire gives back the slots up to a position: the completion before it was polled.
func (q *qp) retire(position uint32) { freeUpTo(&q.retired, position) }

// refused says whether a table says no.
func refused(v ibv.Validity) bool { return v.Answer == ibv.AnswerNo || v.Answer == ibv.AnswerNotInVerb }

// qpOf is the queue pair that a slot is called with, or nil for one that is gone.
func qpOf(address uint64) *qp {
	q := all.qps.get(at[qpRecord](address).index)
	if q == nil || addressOf(q.record) != address {
		return nil
	}
	return q
}
