// SPDX-License-Identifier: BSD-2-Clause

// Package engine implements the queue pairs of software devices: the requester sends the posted requests, the responder
// executes those of peers, the completer takes the answers. A Port is a device on the wire; an Engine is the state that
// the queue pairs of a fabric share. The package knows neither the objects of programs nor their addresses.
package engine

import (
	"sync"
	"sync/atomic"
	"unsafe"

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
	MaxSGE      = 32
	MaxMessage  = 1 << 31
	MaxGroupQPs = 240
)

// Engine is the state that the queue pairs of a fabric share. The fabric's lock guards it, unless noted otherwise: the
// poster executes all ready work under it, including the receiving side. Posts therefore cannot deadlock, whichever
// queue pairs are involved, and events have one order.
type Engine struct {
	resource.Core
	recovery
	Traced  bool                      // records where objects are created; constant
	Exact   bool                      // Options.ExactCaps
	Failed  atomic.Bool               // an injected allocation failure was not queried yet
	Polled  atomic.Pointer[roce.Wire] // outer
	Numbers numbers.Table[Numbered]
	GIDs    map[[16]byte]*Port
	Moves   uint64             // number of changes to the results of AddressOf, from 1
	groups  map[[16]byte][]*QP // multicast
	Wire    wire.Wire
	Plain   bool // Wire is the one in memory, without faults
	Faulty  *faulty.Wire
	Outer   *roce.Wire // to other fabrics; nil if no device has sockets
	Lost    uint64     // lost messages, except those that Faulty drops
	lives   uint64     // lives of queue pairs so far

	// Scratch memory of the request being sent and of the one being executed.
	to, from, framed [MaxSGE + 1]mem.Segment
	header           [GRHSize]byte
	read             [1]mem.Segment // data of the response to a read
	data             [1]mem.Segment
	original         uint64     // value that an atomic found
	headers          tagHeaders // of the message being matched
}

// Numbered is an object with a number: a queue pair or a shared receive queue.
type Numbered struct {
	QP  *QP
	SRQ *resource.SRQ
}

// newLife returns a number that distinguishes a created or reset queue pair from its earlier incarnations.
func (e *Engine) newLife() uint64 {
	e.lives++
	return e.lives
}

// QPOf returns the queue pair with a number, or nil.
func (e *Engine) QPOf(number uint32) *QP { return e.Numbers.Get(number).QP }

// srqOf returns the shared receive queue with a number, or nil.
func (e *Engine) srqOf(number uint32) *resource.SRQ { return e.Numbers.Get(number).SRQ }

// lose counts a message of a connection that does not arrive.
func (e *Engine) lose(m *message.Request) {
	if m.Transport != ibv.QPT_UD {
		e.Lost++
	}
}

// rendezvous is a transfer that a matched message announced: the receiver reads the data, then sends a FIN message.
// Both precede the requests of the receiving queue pair that have not started. For an eager message it only describes
// the completion.
type rendezvous struct {
	tag       *resource.Tag
	headers   tagHeaders
	source    uint32 // number of the sender
	solicited bool
	isRead    bool // the read is done
}

const (
	tmhSize   = resource.TagHeader
	rvhSize   = uint64(unsafe.Sizeof(ibv.RVH{}))
	rndvBytes = 64 // max_rndv_hdr_size
)

// tagHeaders are the headers of a message that announces a rendezvous. Other messages have only the first one.
type tagHeaders struct {
	tmh ibv.TMH
	rvh ibv.RVH
}

// Port is a device on the wire: its addresses, its keys, and its arriving messages. The fabric's lock guards it.
type Port struct {
	On         *Engine
	Link       uint64     // address on the wire: the Ethernet address from which the GUID is derived
	GUID       uint64     // of the device
	GIDs       [][16]byte // zero where an address was removed
	PKeys      []uint16
	MTU        ibv.MTU
	Down       bool                    // the link is down
	Gone       bool                    // the device was removed
	Links      []*roce.Link            // to other fabrics: one for each address, if Wired
	Wired      bool                    // it has sockets to other fabrics
	Joined     map[[16]byte]*roce.Link // if Wired, the multicast groups of its queue pairs
	Groups     int                     // number of multicast groups of its queue pairs
	MostGroups int
	Keys       resource.Keys
	Counts     counters.Counts
	MADs       func(*message.MAD) // handles messages of the connection manager
}

// QP is a queue pair, as its peers see it. The fabric's lock guards its fields, unless noted otherwise. The fields that
// every message uses are first: short offsets make for short code.
type QP struct {
	On       *Engine
	Port     *Port
	Kind     ibv.QPType
	State    ibv.QPState
	reliable bool // requests are acknowledged
	Signals  bool // every send completes: sq_sig_all

	// The requester and the completer. The window in memory is one complete message: Send returns its answer, or it is
	// pending.
	sent    bool              // for a peer in memory: the pending message is in flight
	moving  bool              // Progress is running
	psn     uint32            // packet sequence number of the next message
	sender  *transport.Sender // of messages that travel as packets; nil for a peer in memory
	Dynamic *Dynamic          // with dynamic connections; nil for others
	pending fifo[pending]     // messages in progress, in order

	// Posting fills the ring under Post alone, then takes the fabric's lock, which guards Posted and next. Positions
	// count all posted requests, modulo 2³².
	Posted uint32
	next   uint32
	mask   uint32
	ring   []Request

	rendezvous fifo[rendezvous] // transfers that messages with matching tags announced
	Protects   *resource.Domain // protection domain of its local keys; nil for XRC_RECV
	SendCQ     *resource.CQ
	RecvCQ     *resource.CQ
	SRQ        *resource.SRQ
	Recvs      *resource.RecvQueue // nil with a shared one, and for XRC
	Domain     *resource.XRCDomain // of XRC_RECV
	User       resource.User       // of windows of type 2
	Number     uint32
	ExpectsOf  ibv.QPType // kind of its peers
	Cap        ibv.QPCap
	Report     func(ibv.EventType) // queues an event for the program

	Attr        ibv.QPAttr // set by ibv_modify_qp
	established bool       // the first message arrived
	Groups      int        // number of its multicast groups
	Unheard     bool       // its own multicast is not delivered to it

	Out    message.Request // the message being sent, or the last one; constant fields stay filled in
	retry  retry
	resent uint64 // number of retransmitted packets

	// The responder, which uses only the contents of messages, never the sender's state.
	Receiver  transport.Receiver
	heard     bool           // a message arrived since the first sequence number was set
	peerLife  uint64         // of the last message
	back      message.Answer // the answer being sent, or the last one
	*arriving                // of messages that travel as packets; nil for a peer in memory

	Post    sync.Mutex
	inline  []byte        // memory for the inline data of the ring
	retired atomic.Uint32 // slots before it were freed by polls
}

// fifo is a queue. Its memory is reused once it is empty.
type fifo[T any] struct {
	all  []T
	done int
}

// retry is the retransmission state of unanswered messages.
type retry struct {
	timer    uint64 // 0: not set
	due      int64  // deadline of the answer; the timer may fire earlier, set for a previous deadline
	paused   bool   // nothing is sent before the timer fires: the peer is not ready, or the wire is full
	lost     int    // consecutive timeouts
	notReady int    // consecutive RNR NAKs
	fire     func() // called by the timer
}

// pending is a message in progress.
type pending struct {
	position uint32       // of its request
	transfer bool         // it has none: it is the read or the FIN of the first rendezvous
	status   ibv.WCStatus // final status; until then WC_SUCCESS
	done     bool         // a peer in memory has answered it
}

// arriving is the additional state of a responder whose messages travel as packets.
type arriving struct {
	Part    part // the incomplete message
	answers fifo[waiting]
	broke   message.Syndrome // of the request that broke the connection
	brokeAt uint32           // its sequence number
}

// waiting is an answer that is sent after the answers before it.
type waiting struct {
	answer  message.Answer // without its data
	reading readRange
}

// readRange is the memory whose data an answer carries; the length is 0 if it carries none.
type readRange struct {
	remote uint64
	rkey   uint32
	length uint64
}

// part is a message of which some parts have arrived.
type part struct {
	on     bool // the first part has arrived, and the last has not
	writes bool
	done   uint64 // bytes that have arrived
	remote uint64 // target of a write, its key, and its total length
	rkey   uint32
	length uint64
	Whole  []byte // data of a send to be matched by its tag once it is complete

	Held     bool // a receive is taken; on an unreliable connection, the next message uses it if this one is dropped
	recvs    *resource.RecvQueue
	srq      *resource.SRQ
	position uint32
	id       uint64
	sges     []ibv.SGE
}

// Request is a posted send work request. Fields that its opcode does not use may have values of an earlier request.
type Request struct {
	id      uint64
	Opcode  ibv.WROpcode
	flags   ibv.SendFlags
	Imm     uint32 // immediate data in network byte order, or the key to invalidate
	RKey    uint32
	Remote  uint64
	Operand uint64    // addend, compare value or value of an atomic; length of a flush
	Swap    uint64    // swap value of an atomic; placement and level of a flush
	SGEs    []ibv.SGE // in memory of the place of the ring, for Cap.MaxSendSGE entries
	Inline  int32     // bytes of inline data; -1: none
	data    uint64    // address of its memory, in QP.inline, for Cap.MaxInlineData bytes
	AH      *AH
	Number  uint32 // of the datagram's destination queue pair, or of the shared receive queue
	QKey    uint32
	Key     uint64 // access key of a target of dynamic connections
	Window  *resource.Window
	Bind    resource.Binding
}

// AH is the path of an address handle.
type AH struct {
	GID    [16]byte // destination
	Route  ibv.GlobalRoute
	to     message.Address
	moves  uint64 // Engine.Moves at the lookup of to
	member int    // process of the queue pair for which to was looked up
}
