// SPDX-License-Identifier: BSD-2-Clause

// Package engine implements the queue pairs of software devices: the requester sends the posted requests, the responder
// executes those of peers, the completer handles the answers. A Port is a device on the wire; an Engine is the state
// that the queue pairs of a fabric share. The package does not depend on the objects that programs hold, or on their
// addresses.
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
// poster executes all ready work under it, including the receiving side. Thus posts cannot deadlock, whichever queue
// pairs are involved, and events are totally ordered.
type Engine struct {
	resource.Core
	recovery
	Traced  bool                      // the places where objects are created are recorded; constant
	Exact   bool                      // Options.ExactCaps
	Failed  atomic.Bool               // an allocation was made to fail since the last query
	Polled  atomic.Pointer[roce.Wire] // outer
	Numbers numbers.Table[Numbered]
	GIDs    map[[16]byte]*Port
	Moves   uint64             // changes of addressOf results, from 1 on
	groups  map[[16]byte][]*QP // of multicast
	Wire    wire.Wire
	Plain   bool // wire is the wire in memory, without layers over it
	Faulty  *faulty.Wire
	Outer   *roce.Wire // connects to other fabrics; nil if no device does
	Lost    uint64     // messages, except those that faulty loses
	lives   uint64     // of queue pairs, until now

	// Of the request that is sent, and of the one that is carried out.
	to, from, framed [MaxSGE + 1]mem.Segment
	header           [GRHSize]byte
	read             [1]mem.Segment // data of a read's answer
	data             [1]mem.Segment
	original         uint64     // that an atomic found
	headers          tagHeaders // of the message that matches tags
}

// Numbered is an object with a number: one of the two.
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

// lose counts a lost message if it belongs to a connection.
func (e *Engine) lose(m *message.Request) {
	if m.Transport != ibv.QPT_UD {
		e.Lost++
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

const (
	tmhSize   = resource.TagHeader
	rvhSize   = uint64(unsafe.Sizeof(ibv.RVH{}))
	rndvBytes = 64 // max_rndv_hdr_size
)

// tagHeaders are the headers of a message that announces a rendezvous. Others have the first one.
type tagHeaders struct {
	tmh ibv.TMH
	rvh ibv.RVH
}

// Port is a device on the wire: its addresses, its keys, and what arrives. The fabric's lock guards it.
type Port struct {
	On         *Engine
	Link       uint64     // address on the wire: the Ethernet address that the GUID is made of
	GUID       uint64     // of the device
	GIDs       [][16]byte // zeros where an address was taken away
	PKeys      []uint16
	MTU        ibv.MTU
	Down       bool                    // its link
	Gone       bool                    // the device was taken away
	Links      []*roce.Link            // to other fabrics: one for each address, if it speaks to them
	Wired      bool                    // it does
	Joined     map[[16]byte]*roce.Link // groups of multicast that its queue pairs are in, then
	Groups     int                     // of multicast that its queue pairs are in
	MostGroups int
	Keys       resource.Keys
	Counts     counters.Counts
	MADs       func(*message.MAD) // takes messages of the connection manager
}

// QP is a queue pair, without the parts that only the program sees. The fabric's lock guards its fields, unless noted
// otherwise.
type QP struct {
	On        *Engine
	Port      *Port
	Number    uint32
	Kind      ibv.QPType
	reliable  bool             // it answers, or is answered
	ExpectsOf ibv.QPType       // kind of the senders that it expects
	Protects  *resource.Domain // the domain of its local keys; nil for XRC_RECV
	SendCQ    *resource.CQ
	RecvCQ    *resource.CQ
	SRQ       *resource.SRQ
	Domain    *resource.XRCDomain // of XRC_RECV
	Cap       ibv.QPCap
	Signals   bool                // sends complete, whatever their flags: sq_sig_all
	Report    func(ibv.EventType) // queues an event for the program
	User      resource.User       // of windows of type 2

	State       ibv.QPState
	Attr        ibv.QPAttr          // attributes that ibv_modify_qp set
	Recvs       *resource.RecvQueue // nil with a shared one, and for XRC
	established bool                // the first message came
	Groups      int                 // of multicast that it is in
	Unheard     bool                // it does not receive its own multicast

	// The requester and the completer.
	Out     message.Request // the message that is sent, or was last; fields that do not change stay filled in
	psn     uint32          // packet sequence number of the next message
	returns bool            // the answer to out brings data
	pending fifo[pending]   // messages that were begun and are not done, in order
	// The window. In memory it is one complete message, which is answered within Send, or else waits here.
	sender *transport.Sender // of messages that travel as packets; nil for a peer in memory
	sent   bool              // for a peer in memory: the pending message is under way
	retry  retry
	resent uint64 // packets

	// The responder, which uses only what is in the messages, never sender state.
	Receiver  transport.Receiver
	heard     bool           // a message came since the first sequence number was set
	peerLife  uint64         // of the last message
	back      message.Answer // the answer that is sent, or was last
	*arriving                // of messages that travel as packets; nil for a peer in memory

	// Posting fills the ring under post alone, then takes the fabric's lock: posted and next are under that. Positions
	// count requests that were ever posted, modulo 2³².
	Post    sync.Mutex
	ring    []Request
	sges    []ibv.SGE // cap.MaxSendSGE for each place of the ring
	inline  []byte    // cap.MaxInlineData for each place of the ring
	mask    uint32
	Posted  uint32
	next    uint32
	retired atomic.Uint32 // slots before it are free, by polling

	rendezvous fifo[rendezvous] // of messages that matched tags of the shared receive queue
	moving     bool             // in progress
}

// fifo is a queue. It reuses its memory once all elements have been dropped.
type fifo[T any] struct {
	all  []T
	done int
}

// retry is the retransmission state of unanswered messages.
type retry struct {
	timer    uint64 // 0 for none
	due      int64  // when an answer is late; the timer may be set for an earlier time, when another one was
	paused   bool   // nothing is sent before the timer fires: the peer is not ready, or the wire is full
	lost     int    // timeouts in a row
	notReady int    // RNR NAKs in a row
	fire     func() // of the timer
}

// pending is a message that was begun and has not ended.
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

// arriving is the responder's additional state for messages that arrive as packets.
type arriving struct {
	Part    part // the message that is arriving
	answers fifo[waiting]
	broke   message.Syndrome // of the request that broke the connection
	brokeAt uint32           // its sequence number
}

// waiting is an answer that is queued behind earlier ones.
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

// part is a message of which only some parts have arrived.
type part struct {
	on     bool // the first part has come, and the last has not
	writes bool
	done   uint64 // bytes that have arrived
	remote uint64 // address, key and total length of a write
	rkey   uint32
	length uint64
	Whole  []byte // of a send that is matched by its tag, which needs all of it

	Held     bool // a receive is taken for the message; it stays for the next one of an unreliable connection
	recvs    *resource.RecvQueue
	srq      *resource.SRQ
	position uint32
	id       uint64
	sges     []ibv.SGE
}

// Request is a send work request that was posted. Fields that its opcode does not use may be left over from an earlier
// request.
type Request struct {
	id      uint64
	Opcode  ibv.WROpcode
	flags   ibv.SendFlags
	Imm     uint32 // immediate data in network byte order, or the key that is to be invalidated
	RKey    uint32
	Remote  uint64
	Operand uint64 // that an atomic adds or compares with, or that is written atomically; of a flush, the length
	Swap    uint64 // of a flush, placement and level
	SGEs    int32
	Inline  int32 // bytes; -1 for none
	AH      *AH
	Number  uint32 // of the datagram's queue pair, or of the shared receive queue
	QKey    uint32
	Window  *resource.Window
	Bind    resource.Binding
}

// AH is the path of an address handle.
type AH struct {
	GID    [16]byte // where to
	Route  ibv.GlobalRoute
	to     message.Address
	moves  uint64 // Engine.moves when to was looked up
	member int    // of the queue pair that it was looked up for
}
