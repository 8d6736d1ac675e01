// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// QP is a queue pair, as peers know it. The fabric's lock guards its fields, unless noted otherwise.
type QP struct {
	on        *Engine
	port      *Port
	number    uint32
	kind      ibv.QPType
	reliable  bool             // it answers, or is answered
	expectsOf ibv.QPType       // kind of the senders that it expects
	protects  *resource.Domain // the domain of its local keys; nil for XRC_RECV
	sendCQ    *CQ
	recvCQ    *CQ
	srq       *SRQ
	domain    *XRCDomain // of XRC_RECV
	cap       ibv.QPCap
	signals   bool                // sends complete, whatever their flags: sq_sig_all
	report    func(ibv.EventType) // queues an event for the program
	user      resource.User       // of windows of type 2

	state       ibv.QPState
	attr        ibv.QPAttr          // attributes that ibv_modify_qp set
	recvs       *resource.RecvQueue // nil with a shared one, and for XRC
	established bool                // the first message came
	groups      int                 // of multicast that it is in
	unheard     bool                // it does not receive its own multicast

	// The requester and the completer.
	out     message.Request // the message that is sent, or was last; fields that do not change stay filled in
	psn     uint32          // packet sequence number of the next message
	returns bool            // the answer to out brings data
	pending fifo[pending]   // messages that were begun and are not done, in order
	// The window. In memory it is one complete message, which is answered within Send, or else waits here.
	sender *transport.Sender // of messages that travel as packets; nil for a peer in memory
	sent   bool              // for a peer in memory: the pending message is under way
	retry  retry
	resent uint64 // packets

	// The responder, which uses only what is in the messages, never sender state.
	receiver  transport.Receiver
	heard     bool           // a message came since the first sequence number was set
	peerLife  uint64         // of the last message
	back      message.Answer // the answer that is sent, or was last
	*arriving                // of messages that travel as packets; nil for a peer in memory

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

	rendezvous fifo[rendezvous] // of messages that matched tags of the shared receive queue
	moving     bool             // in progress
}

// fifo is a queue. Its memory is used again once all that was added is dropped.
type fifo[T any] struct {
	all  []T
	done int
}

func (l *fifo[T]) len() int    { return len(l.all) - l.done }
func (l *fifo[T]) first() *T   { return &l.all[l.done] }
func (l *fifo[T]) last() *T    { return &l.all[len(l.all)-1] }
func (l *fifo[T]) at(i int) *T { return &l.all[l.done+i] }
func (l *fifo[T]) add(v T)     { l.all = append(l.all, v) }
func (l *fifo[T]) reset()      { l.all, l.done = nil, 0 }

func (l *fifo[T]) drop() {
	if l.done++; l.done == len(l.all) {
		l.all, l.done = l.all[:0], 0
	}
}

// retry is the retransmission state of unanswered messages.
type retry struct {
	timer    uint64 // 0 for none
	due      int64  // when an answer is late; the timer may be set for an earlier time, when another one was
	paused   bool   // nothing is sent before the timer fires: the peer is not ready, or the wire takes nothing
	lost     int    // timeouts in a row
	notReady int    // RNR NAKs in a row
	fire     func() // of the timer
}

// pending is a message that was begun and is not done.
type pending struct {
	position uint32 // of its request
	step     step
	status   ibv.WCStatus // how it ends; until then WC_SUCCESS
	done     bool         // it was answered, by a peer in memory
}

// step is the state of a pending message.
type step uint8

const (
	ownRequest step = iota // a request of the send queue
	readStep               // the read of a rendezvous
	finStep                // the message that ends a rendezvous
)

func (q *QP) count(c counters.Counter) { q.port.counts[c]++ }

// refused reports whether a table entry forbids the operation.
func refused(v ibv.Validity) bool { return v.Answer == ibv.AnswerNo || v.Answer == ibv.AnswerNotInVerb }

// completes is the completion queue that a receive completes in.
func (q *QP) completes(s *SRQ) *CQ {
	if s != nil && s.cq != nil {
		return s.cq
	}
	return q.recvCQ
}

// arriving is the rest of a responder's state where messages travel as packets.
type arriving struct {
	part    part // the message that is arriving
	answers fifo[waiting]
	broke   message.Syndrome // of the request that broke the connection
	brokeAt uint32           // its sequence number
}

// waiting is an answer that waits for those before it to be sent.
type waiting struct {
	answer  message.Answer // without its data
	reading readRange
}

// readRange is the memory that an answer carries; a length of 0 means no memory.
type readRange struct {
	remote uint64
	rkey   uint32
	length uint64
}

// part is a message that arrives in parts, of which some have come.
type part struct {
	on     bool // the first part has come, and the last has not
	writes bool
	done   uint64 // bytes that came
	remote uint64 // where a write goes, its key, and its whole length
	rkey   uint32
	length uint64
	whole  []byte // of a send that is matched by its tag, which needs all of it

	held     bool // a receive is taken for the message; it stays for the next one of an unreliable connection
	recvs    *resource.RecvQueue
	srq      *SRQ
	position uint32
	id       uint64
	sges     []ibv.SGE
}

// orphaned reports whether the receive that was taken is of a destroyed shared receive queue, as can happen with XRC.
func (p *part) orphaned() bool { return p.srq != nil && p.srq.gone }

// giveBack frees the slot of the receive that was taken, without a completion.
func (p *part) giveBack() {
	if p.held && p.srq != nil && !p.orphaned() {
		p.recvs.Retire(p.position, 1)
	}
	p.held = false
}

// psnMask are the bits of a packet sequence number.
const psnMask = 1<<24 - 1
