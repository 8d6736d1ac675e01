// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
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
	build   builder       // guarded by post

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

// findQP is the queue pair of a handle.
func findQP[A abi.Address](address A) *qp {
	if q := find[qp](address); q != nil {
		return q
	}
	if o := find[openedQP](address); o != nil {
		return o.of
	}
	return nil
}

// lockedQP finds the queue pair of a handle, or nil. It takes Fabric.mu for its caller, unless there is none.
func lockedQP[A abi.Address](address A) *qp {
	if o := locked[openedQP](address); o != nil {
		return o.of
	}
	return locked[qp](address)
}

func (q *qp) fabric() *Fabric { return q.on }

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

// verdict is what became of a request.
type verdict struct {
	status  ibv.WCStatus
	outcome outcome
}

type outcome uint8

const (
	finished outcome = iota // with a status
	notReady                // the peer has no receive
	lost                    // nobody answered
	late                    // the wire does not take it yet
)

var succeeded = verdict{status: ibv.WC_SUCCESS}

func failed(status ibv.WCStatus) verdict { return verdict{status: status} }

// reply is the answer to the message that was sent last, until the requester takes it.
type reply struct {
	there   bool
	verdict verdict
	timer   uint8 // code of the time that a peer that is not ready asks to wait
}
