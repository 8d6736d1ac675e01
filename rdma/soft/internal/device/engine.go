// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// Limits of messages and groups.
const (
	maxSGE      = 32
	maxMessage  = 1 << 31
	maxGroupQPs = 240
)

// Engine is what the queue pairs of a fabric share. The fabric's lock guards it, unless noted otherwise: the poster
// executes all ready work under it, including the receiving side. So posts cannot deadlock, whichever queue pairs are
// involved, and events have one order.
type Engine struct {
	Core
	recovery
	traced  bool                      // where objects are made is noted; it does not change
	exact   bool                      // Options.ExactCaps
	failed  atomic.Bool               // an allocation was made to fail, and that was not queried yet
	polled  atomic.Pointer[roce.Wire] // outer
	numbers numbers.Table[numbered]
	gids    map[[16]byte]*Port
	moves   uint64             // changes of addressOf results, from 1 on
	groups  map[[16]byte][]*QP // of multicast
	wire    wire.Wire
	plain   bool // wire is the one in memory, and nothing over it
	faulty  *faulty.Wire
	outer   *roce.Wire // leads to other fabrics; nil if no device speaks to them
	lost    uint64     // messages, but for those that faulty loses
	lives   uint64     // of queue pairs, until now

	// Of the request that is sent, and of the one that is carried out.
	to, from, framed [maxSGE + 1]mem.Segment
	header           [grhSize]byte
	read             [1]mem.Segment // data of a read's answer
	data             [1]mem.Segment
	original         uint64     // that an atomic found
	headers          tagHeaders // of the message that matches tags
}

// numbered is an object with a number: one of the two.
type numbered struct {
	qp  *QP
	srq *SRQ
}

// newLife returns a number that distinguishes a created or reset queue pair from its earlier incarnations.
func (e *Engine) newLife() uint64 {
	e.lives++
	return e.lives
}

// qpOf is the queue pair that has a number, or nil.
func (e *Engine) qpOf(number uint32) *QP { return e.numbers.Get(number).qp }

// srqOf is the shared receive queue that has a number, or nil.
func (e *Engine) srqOf(number uint32) *SRQ { return e.numbers.Get(number).srq }

// lose counts a message that does not arrive, if it is one of a connection.
func (e *Engine) lose(m *message.Request) {
	if m.Transport != ibv.QPT_UD {
		e.lost++
	}
}

// rendezvous is data that a message announced, and for which it took a tag: the receiver reads it, then sends a
// message, the FIN. Both go before requests of the receiving queue pair that were not begun. Of an eager message it
// describes the completion.
type rendezvous struct {
	tag       *resource.Tag
	headers   tagHeaders
	source    uint32 // number of the sender
	solicited bool
	isRead    bool
}

// tagHeaders are the headers of a message that announces a rendezvous. Others have the first one.
type tagHeaders struct {
	tmh ibv.TMH
	rvh ibv.RVH
}

// Port is a device on the wire: its addresses, its keys, and what arrives. The fabric's lock guards it.
type Port struct {
	on         *Engine
	link       uint64     // address on the wire: the Ethernet address that the GUID is made of
	guid       uint64     // of the device
	gids       [][16]byte // zeros where an address was taken away
	pkeys      []uint16
	mtu        ibv.MTU
	down       bool                    // its link
	gone       bool                    // the device was taken away
	links      []*roce.Link            // to other fabrics: one for each address, if it speaks to them
	wired      bool                    // it does
	joined     map[[16]byte]*roce.Link // groups of multicast that its queue pairs are in, then
	groups     int                     // of multicast that its queue pairs are in
	mostGroups int
	keys       resource.Keys
	counts     counters.Counts
	mads       func(*message.MAD) // takes messages of the connection manager
}

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

// request is a send work request that was posted. Fields that its opcode does not use may be left over from an earlier
// request.
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
	ah      *AH
	number  uint32 // of the datagram's queue pair, or of the shared receive queue
	qkey    uint32
	window  *resource.Window
	bind    resource.Binding
}
