// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/made"
)

// Sizes of a connection's send queue. With the slot that rdma adds for its markers, it is a power of two, to which
// devices round up.
const (
	sendDepth   = 63
	signalEvery = 8  // at least one of this many sends is signalled
	MaxInline   = 64 // bytes that a request carries itself: requested from the device
)

// A wr_id is a number of the sends, or a place of a receive, in its lower half, and the connection's key above, which
// distinguishes its completions from those of other connections in the same queue: a queue pair may have the number of
// one that was closed, a connection never has its key. Bit 63 marks receives.
const (
	recvBit  = 1 << 63
	keyShift = 32
)

// MostKeys is the largest key of a connection, and a mask of all keys.
const MostKeys = 1<<31 - 1

// KeyOf returns the key of the connection whose completion has the wr_id.
func KeyOf(wrID uint64) uint32 { return uint32(wrID>>keyShift) & MostKeys }

// IsRecv reports whether the wr_id is a receive's.
func IsRecv(wrID uint64) bool { return wrID&recvBit != 0 }

// Link holds the queue pair and the memory of a connection, and the progress of its sends, whatever the protocol.
// Numbers of bytes and messages count from the beginning.
type Link struct {
	QP       *rdma.QP
	pd       *rdma.PD
	Reads    Reads
	pool     *Pool
	memory   *memory
	key      uint64 // of the connection, where wr_ids have it
	sends    *rdma.SendBatch
	Recvs    *rdma.RecvBatch
	RecvsOut int            // receives that are posted and have not completed
	Inline   int            // bytes that a request can carry inline
	note     int            // bytes of a control message, at most
	split    bool           // IsSplit
	quiet    bool           // nothing may be sent before the peer's first message
	word     [wordSize]byte // of the next message behind a write

	staging []byte // data that is being sent

	Messages   uint64 // sent
	Completed  uint64 // messages whose send has completed
	Acked      uint64 // messages that the peer has acknowledged
	Written    uint64 // bytes of the program in messages
	ackedBytes uint64 // bytes of the program in acknowledged messages
	failed     bool   // a send has failed
	staged     uint64 // bytes that were copied into staging
	done       uint64 // bytes of staging that the device has sent
	unstaged   uint64 // bytes of staging that are free again
	unsignaled uint64 // bytes that were staged since the last signalled send
	behind     [sendDepth]uint64
	ends       [sendDepth]uint64 // Written after each message
	parts      uint64            // of staging: a piece is one at most
	given      offers            // pieces of staging that the peer may read
	reading    uint64            // fetches of the peer's offers in flight
	probing    uint64            // probes in flight
	Answered   bool              // the peer's device has answered a probe
}

// Device is where a link is made: an ID that has a device.
type Device interface {
	Device() (*rdma.Device, error)
	PD() (*rdma.PD, error)
	CreateQP(pd *rdma.PD, attr *ibv.QPInitAttr, options rdma.QueueOptions) (*rdma.QP, error)
}

// Options are the settings of a program, and objects that connections share.
type Options struct {
	Buffer int      // bytes that a side can receive before its program reads them
	Reads  Reads    // that the connection has room for, as far as is known
	Maps   int      // memory that the peer of an RSocket may map
	CQ     *rdma.CQ // has room for [Entries]
	Key    uint32   // of the connection's completions
	Pool   *Pool

	Passive  bool // the connection was accepted
	OnDemand bool // memory takes pages when it is used: the device does not pin it
}

// Reads is how many RDMA READs may be under way at once: of this end, and of the other one.
type Reads struct{ Ours, Theirs uint8 }

// AtMost is the lower of both.
func (r Reads) AtMost(most Reads) Reads {
	return Reads{min(r.Ours, most.Ours), min(r.Theirs, most.Theirs)}
}

// IsSplit reports whether a device lacks immediate data, like all of iWARP. Its connections send a plain write, and
// then a message with the word that the immediate data would have been.
func IsSplit(d *rdma.Device) bool { return d.Info().Transport == ibv.TRANSPORT_IWARP }

// wordSize is the size of the message behind a write, in bytes.
const wordSize = 4

// requests returns the maximum number of send requests in flight.
func requests(split bool) int {
	if split {
		return 2 * sendDepth
	}
	return sendDepth
}

// Entries is how many completions a connection may have in its queue. Unsignaled requests complete if they fail.
func Entries(p Protocol, d *rdma.Device) int {
	if _, ok := p.(*RSocket); ok {
		return requests(IsSplit(d)) + rsocketDepth
	}
	return requests(IsSplit(d)) + StreamDepth
}

// Limits of Buffer.
const (
	MinBuffer = 4 << 10
	MaxBuffer = 1 << 30
)

// stagingPart of the buffer is for sends.
const stagingPart = 2

// demand is a protocol's requirements of a link.
type demand struct {
	recvs int // receives that are posted
	sges  int // of a receive
	there int // bytes that the peer writes into
	note  int // bytes of a control message, at most
}

// open creates the queue pair and its memory.
func (l *Link) open(over Device, options Options, want demand) (err error) {
	pd, err := over.PD()
	if err != nil {
		return err
	}
	d, err := over.Device()
	if err != nil {
		return err
	}
	l.split = IsSplit(d)
	l.quiet = l.split && options.Passive // a rule of iWARP (RFC 5044, 7.1.3)
	l.pool, l.key, l.Reads = options.Pool, uint64(options.Key)<<keyShift, options.Reads
	attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: options.CQ.Ptr(), RecvCQ: options.CQ.Ptr(), Cap: ibv.QPCap{
		MaxSendWR: uint32(requests(l.split)), MaxRecvWR: uint32(want.recvs), MaxSendSGE: 1, MaxRecvSGE: uint32(want.sges),
		MaxInlineData: MaxInline,
	}}
	if l.QP, err = over.CreateQP(pd, attr, rdma.QueueOptions{}); err != nil {
		return err
	}
	l.Inline = int(min(l.QP.Cap().MaxInlineData, MaxInline))
	staged := options.Buffer / stagingPart
	if l.note = want.note; l.note > l.Inline {
		staged += sendDepth * l.note
	}
	shape := shape{want.there, staged, want.recvs, want.sges, 0}
	if options.OnDemand {
		shape.access = ibv.ACCESS_ON_DEMAND
	}
	if l.memory, err = l.pool.get(pd, shape); err != nil {
		return err
	}
	if l.note > l.Inline {
		clear(l.memory.staged.Bytes()[options.Buffer/stagingPart:]) // a peer may read it, and not a former stream's
		if _, err = l.memory.region(pd); err != nil {
			return err
		}
	}
	l.staging = l.memory.staged.Bytes()[:options.Buffer/stagingPart]
	l.sends, l.Recvs = l.memory.sends, l.memory.recvs
	l.pd, l.parts = pd, stagingParts
	return nil
}

// PostRecvs posts the receives of the batch.
func (l *Link) PostRecvs() error {
	n, err := l.QP.PostRecv(l.Recvs)
	l.RecvsOut += n
	l.Recvs.Reset()
	return err
}

// sendID is the wr_id of the next send.
func (l *Link) sendID() uint64 { return l.key | l.Messages%fetchBit }

// recvID is the wr_id of a receive at a place, which placeOf returns.
func (l *Link) recvID(place uint64) uint64 { return recvBit | l.key | place }

func placeOf(wrID uint64) uint64 { return uint64(uint32(wrID)) }

// roomStaged returns how much of n bytes may be staged in one piece: none rather than small pieces.
func (l *Link) roomStaged(n uint64) uint64 {
	own := uint64(len(l.staging))
	free := own - (l.staged - l.unstaged)
	if free < min(n, own/l.parts) {
		return 0
	}
	return min(free, own-l.staged%own, own/l.parts)
}

// Stage copies bytes to the place from which PostData sends a piece, at an offset in the piece. The writer owns this
// memory.
func (l *Link) Stage(at int, b []byte) {
	copy(l.staging[l.staged%uint64(len(l.staging))+uint64(at):], b)
}

// data returns the memory from which a piece is sent.
func (l *Link) data(w rdma.SendRequest, p Piece) error {
	switch {
	case p.isLent():
		w.Add(p.Lent)
	case p.Staged == 0:
		w.Inline(p.Inline)
	default:
		r, err := l.memory.region(l.pd)
		if err != nil {
			return err
		}
		w.SGE(r.Address+l.staged%uint64(len(l.staging)), uint32(p.Staged), r.LKey)
		l.staged += uint64(p.Staged)
		l.unsignaled += uint64(p.Staged)
	}
	return nil
}

// mustSignal reports whether the send of a piece must be signaled: the program waits for it, or enough was staged.
func (l *Link) mustSignal(p Piece) bool {
	return p.isLent() || l.unsignaled >= uint64(len(l.staging))/l.parts
}

// text sets the source of a control message: the request itself, or a separate place behind staging.
func (l *Link) text(w rdma.SendRequest, b []byte) {
	if len(b) <= l.Inline {
		w.Inline(b)
		return
	}
	r := l.memory.mr.Region()
	at := len(l.staging) + int(l.Messages%sendDepth)*l.note
	copy(l.memory.staged.Bytes()[at:], b)
	w.SGE(r.Address+uint64(at), uint32(len(b)), r.LKey)
}

// write starts a write with a word for the peer. The word is immediate data, or the message that behind adds.
func (l *Link) write(at uint64, key uint32, word ibv.BE32) rdma.SendRequest {
	l.sends.Reset()
	if l.split {
		return l.sends.Write(l.key|splitID, at, key)
	}
	return l.sends.WriteImm(l.sendID(), at, key, word)
}

// behindWrite returns the request whose completion is that of a write: itself, or that of the message with its word.
func (l *Link) behindWrite(w rdma.SendRequest, order binary.ByteOrder, word uint32) rdma.SendRequest {
	if !l.split {
		return w
	}
	order.PutUint32(l.word[:], word)
	return l.sends.Send(l.sendID()).Inline(l.word[:])
}

// isWord reports whether a receive has the word of a write.
func (l *Link) isWord(wc *ibv.WC) bool {
	return l.split && wc.Opcode == ibv.WC_RECV && wc.ByteLen == wordSize
}

// writeOf returns the completion of a write with immediate data that has a word, for one without.
func writeOf(word uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM}
	*wc.ImmData() = ibv.ToBE32(word)
	return wc
}

// post posts the request in the batch, which carries n bytes of the program.
func (l *Link) post(w rdma.SendRequest, signaled bool, n int) error {
	if signaled || l.Messages%signalEvery == signalEvery-1 {
		w.Signaled()
		l.unsignaled = 0
	}
	l.behind[l.Messages%sendDepth] = l.staged
	if _, err := l.QP.PostSend(l.sends); err != nil {
		return err
	}
	l.Written += uint64(n)
	l.ends[l.Messages%sendDepth] = l.Written
	l.Messages++
	return nil
}

// Probe makes the peer's device acknowledge a write of 0 bytes, unless an acknowledgement is pending or the send queue
// is full. C's keepalives are the same. It is not a message of the protocol: a peer that posts or handles no receives
// must answer, too.
func (l *Link) Probe(address uint64, rkey uint32) error {
	if l.probing > 0 || !l.mayPost() {
		return nil
	}
	l.sends.Reset()
	l.sends.Write(l.key|probeID, address, rkey).Signaled()
	if _, err := l.QP.PostSend(l.sends); err != nil {
		return err
	}
	l.probing = 1
	return nil
}

// ProbeDone records that the peer's device has answered.
func (l *Link) ProbeDone() { l.probing, l.Answered = 0, true }

// probeID is the wr_id of a probe, distinct from that of a fetch. Writes with splitID complete only if they fail, like a
// fetch.
const (
	probeID = fetchBit | 1
	splitID = fetchBit
)

// IsProbe reports whether the wr_id is a probe's.
func IsProbe(wrID uint64) bool { return wrID&(recvBit|probeID) == probeID }

// mayPost reports whether the send queue has a free slot.
func (l *Link) mayPost() bool {
	return l.Messages-l.Completed+l.reading+l.probing < sendDepth && !l.quiet
}

// SendDone records completed sends, up to the one with the wr_id. The peer has acknowledged them, or if that one is the
// first that failed, those before it.
func (l *Link) SendDone(wrID uint64, failed bool) {
	seq := l.Completed + (wrID-l.Completed)%fetchBit
	l.done = l.behind[seq%sendDepth]
	l.Completed = seq + 1
	switch {
	case !failed:
		l.acknowledge(l.Completed)
	case !l.failed:
		l.failed = true
		l.acknowledge(seq)
	}
	l.free()
}

// acknowledge records that the peer has acknowledged a number of messages: its device did, or it has reported them.
func (l *Link) acknowledge(messages uint64) {
	if messages > l.Acked {
		l.Acked, l.ackedBytes = messages, l.ends[(messages-1)%sendDepth]
	}
}

// unacknowledged returns how many bytes of the program the peer has not acknowledged, or not fetched.
func (l *Link) unacknowledged() uint64 {
	if l.given.n > 0 {
		return l.Written - min(l.ackedBytes, l.given.all[0].begin)
	}
	return l.Written - l.ackedBytes
}

// expose lets the peer's device read staging, and returns the memory region for that. The first time, it clears data of
// former connections: everything but data in flight, and n bytes that were staged and are not yet sent.
func (l *Link) expose(n uint64) (*rdma.MR, error) {
	m, own := l.memory, uint64(len(l.staging))
	if m.exposed != nil {
		return m.exposed, nil
	}
	end := l.staged + n
	for left := own - (end - l.unstaged); left > 0; {
		part := l.staging[end%own:]
		part = part[:min(uint64(len(part)), left)]
		clear(part)
		end += uint64(len(part))
		left -= uint64(len(part))
	}
	var err error
	made.Shared(func() { m.exposed, err = l.pd.RegBuffer(m.staged, ibv.ACCESS_REMOTE_READ|m.shape.access) })
	return m.exposed, err
}

// Close releases everything, or keeps it for the next connection.
func (l *Link) Close() error {
	var err error
	if l.QP != nil {
		err = l.QP.Close()
	}
	m := l.memory
	if l.memory = nil; m == nil {
		return err
	}
	held, left := m.leave()
	switch {
	case held:
		return errors.Join(err, left)
	case err != nil: // the queue pair may still receive
		return errors.Join(err, m.close())
	}
	return l.pool.put(m)
}
