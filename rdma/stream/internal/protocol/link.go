// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/made"
)

// Size of a connection's send queue. Devices round up to a power of two, which includes the slot that rdma adds for its
// markers.
const (
	sendDepth   = 63
	signalEvery = 8  // at least one of this many sends is signaled
	MaxInline   = 64 // bytes of inline data that is requested from the device
)

// The upper half of a wr_id is the connection's key, which distinguishes its completions from those of other
// connections in the same queue; queue pair numbers are not sufficient, because a closed queue pair's number is reused.
// The lower half is the number of a send or the slot of a receive. Bit 63 marks receives.
const (
	recvBit  = 1 << 63
	keyShift = 32
)

// MostKeys is the largest key of a connection, and the mask of keys.
const MostKeys = 1<<31 - 1

// KeyOf returns the connection's key in a wr_id.
func KeyOf(wrID uint64) uint32 { return uint32(wrID>>keyShift) & MostKeys }

// IsRecv reports whether a wr_id belongs to a receive.
func IsRecv(wrID uint64) bool { return wrID&recvBit != 0 }

// Link holds a connection's queue pair and memory, and the progress of its sends, for any protocol. Numbers of bytes
// and messages are totals since the start of the connection.
type Link struct {
	QP     *rdma.QP
	pd     *rdma.PD
	Reads  Reads
	pool   *Pool
	memory *memory
	key    uint64 // of the connection, shifted to its position in wr_ids
	sends  *rdma.SendBatch
	Recvs  *rdma.RecvBatch

	RecvsAtOnce int            // number of receives that are posted together
	RecvsOut    int            // number of posted receives that have not completed
	Inline      int            // maximum inline bytes of a request
	maxControl  int            // maximum bytes of a control message
	split       bool           // IsSplit
	quiet       bool           // nothing may be sent before the peer's first message
	word        [wordSize]byte // of the next message after a write

	staging []byte // ring of data to send

	Messages   uint64 // messages sent
	Completed  uint64 // messages whose send has completed
	Acked      uint64 // messages that the peer has acknowledged
	Written    uint64 // program bytes in messages
	ackedBytes uint64 // program bytes in acknowledged messages
	failed     bool   // a send has failed
	staged     uint64 // bytes copied into staging
	done       uint64 // bytes of staging that the device has sent
	unstaged   uint64 // bytes of staging that are free again
	unsignaled uint64 // bytes staged since the last signaled send
	behind     [sendDepth]uint64
	ends       [sendDepth]uint64 // Written after each message
	parts      uint64            // a piece is at most this fraction of staging
	ownOffers  offers            // pieces of staging that the peer may read
	reading    uint64            // fetches in flight
	probing    uint64            // probes in flight
	Answered   bool              // the peer's device has answered a probe
}

// Device is an ID that has a device. A Link is created on it.
type Device interface {
	Device() (*rdma.Device, error)
	PD() (*rdma.PD, error)
	CreateQP(pd *rdma.PD, attr *ibv.QPInitAttr, options rdma.QueueOptions) (*rdma.QP, error)
}

// Options are the program's settings, and objects that connections share.
type Options struct {
	Buffer int      // bytes that a side can receive before its program reads them
	Reads  Reads    // limits of the device and the peer, as far as known
	Maps   int      // number of regions that the peer of an RSocket may map
	CQ     *rdma.CQ // has room for [Entries]
	Key    uint32   // of the connection's completions
	Pool   *Pool

	Passive  bool // the connection was accepted
	OnDemand bool // pages are allocated on first use; the device does not pin them
}

// Reads is the maximum number of RDMA READs in flight: this side's, and the peer's.
type Reads struct{ Ours, Theirs uint8 }

// AtMost returns the lower number for each side.
func (r Reads) AtMost(limit Reads) Reads {
	return Reads{min(r.Ours, limit.Ours), min(r.Theirs, limit.Theirs)}
}

// IsSplit reports whether a device lacks immediate data, as all iWARP devices do. Its connections send a plain write
// followed by a message with the word that the immediate data would contain.
func IsSplit(d *rdma.Device) bool { return d.Info().Transport == ibv.TRANSPORT_IWARP }

// wordSize is the size of the message after a write, in bytes.
const wordSize = 4

// requests returns the maximum number of send requests in flight.
func requests(split bool) int {
	if split {
		return 2 * sendDepth
	}
	return sendDepth
}

// Entries returns the number of completions that a connection may have in its queue. Unsignaled requests complete if they
// fail.
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

// Staging has the size of Buffer divided by stagingPart.
const stagingPart = 2

// demand is a protocol's requirements for its link.
type demand struct {
	recvs      int // number of posted receives
	atOnce     int // number of receives that are posted together
	sges       int // scatter/gather entries per receive
	inbound    int // bytes of memory that the peer writes into
	maxControl int // maximum bytes of a control message
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
	l.RecvsAtOnce = want.atOnce
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
	if l.maxControl = want.maxControl; l.maxControl > l.Inline {
		staged += sendDepth * l.maxControl
	}
	shape := shape{want.inbound, staged, want.recvs, want.sges, 0}
	if options.OnDemand {
		shape.access = ibv.ACCESS_ON_DEMAND
	}
	if l.memory, err = l.pool.get(pd, shape); err != nil {
		return err
	}
	if l.maxControl > l.Inline {
		clear(l.memory.staged.Bytes()[options.Buffer/stagingPart:]) // readable by the peer
		if _, err = l.memory.region(pd); err != nil {
			return err
		}
	}
	l.staging = l.memory.staged.Bytes()[:options.Buffer/stagingPart]
	l.sends, l.Recvs = l.memory.sends, l.memory.recvs
	l.pd, l.parts = pd, stagingParts
	return nil
}

// PostRecvs posts the receives in the batch.
func (l *Link) PostRecvs() error {
	if l.Recvs.Len() == 0 {
		return nil
	}
	n, err := l.QP.PostRecv(l.Recvs)
	l.RecvsOut += n
	l.Recvs.Reset()
	return err
}

// sendID returns the wr_id of the next send.
func (l *Link) sendID() uint64 { return l.key | l.Messages%fetchBit }

// recvID returns the wr_id of the receive for a slot; placeOf returns the slot.
func (l *Link) recvID(place uint64) uint64 { return recvBit | l.key | place }

func placeOf(wrID uint64) uint64 { return uint64(uint32(wrID)) }

// roomStaged returns how many of n bytes may be staged in one piece. It returns 0 rather than a small number.
func (l *Link) roomStaged(n uint64) uint64 {
	own := uint64(len(l.staging))
	free := own - (l.staged - l.unstaged)
	if free < min(n, own/l.parts) {
		return 0
	}
	return min(free, own-l.staged%own, own/l.parts)
}

// Stage copies bytes to the staging memory of the next piece, at an offset in the piece. The writer owns this memory.
func (l *Link) Stage(at int, b []byte) {
	copy(l.staging[l.staged%uint64(len(l.staging))+uint64(at):], b)
}

// data sets the memory from which a piece is sent.
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

// mustSignal reports whether the send of a piece must be signaled, because the program waits for its memory or because
// enough was staged.
func (l *Link) mustSignal(p Piece) bool {
	return p.isLent() || l.unsignaled >= uint64(len(l.staging))/l.parts
}

// setControl sets the data of a control message: inline, or in memory behind staging.
func (l *Link) setControl(w rdma.SendRequest, b []byte) {
	if len(b) <= l.Inline {
		w.Inline(b)
		return
	}
	r := l.memory.mr.Region()
	at := len(l.staging) + int(l.Messages%sendDepth)*l.maxControl
	copy(l.memory.staged.Bytes()[at:], b)
	w.SGE(r.Address+uint64(at), uint32(len(b)), r.LKey)
}

// write starts a write with a word for the peer: immediate data, or the message that afterWrite adds.
func (l *Link) write(at uint64, key uint32, word ibv.BE32) rdma.SendRequest {
	l.sends.Reset()
	if l.split {
		return l.sends.Write(l.key|splitID, at, key)
	}
	return l.sends.WriteImm(l.sendID(), at, key, word)
}

// afterWrite returns the request whose completion is that of a write: the write itself, or the message with its word.
func (l *Link) afterWrite(w rdma.SendRequest, order binary.ByteOrder, word uint32) rdma.SendRequest {
	if !l.split {
		return w
	}
	order.PutUint32(l.word[:], word)
	return l.sends.Send(l.sendID()).Inline(l.word[:])
}

// isWord reports whether a receive contains the word of a write.
func (l *Link) isWord(wc *ibv.WC) bool {
	return l.split && wc.Opcode == ibv.WC_RECV && wc.ByteLen == wordSize
}

// writeOf returns the completion that a write with immediate data would have for a word.
func writeOf(word uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM}
	*wc.ImmData() = ibv.ToBE32(word)
	return wc
}

// post posts the request in the batch, which contains n bytes of the program's data.
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

// Probe makes the peer's device acknowledge a write of 0 bytes, like the keepalives of C's rsockets. It does nothing if
// a probe is in flight or the send queue is full. A probe is not a message of the protocol, so it works even if the
// peer posts or handles no receives.
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

// ProbeDone records that the peer's device has acknowledged a probe.
func (l *Link) ProbeDone() { l.probing, l.Answered = 0, true }

// probeID is the bits of a probe's wr_id, which differ from those of a fetch. Writes with splitID complete only if they
// fail, like fetches.
const (
	probeID = fetchBit | 1
	splitID = fetchBit
)

// IsProbe reports whether a wr_id belongs to a probe.
func IsProbe(wrID uint64) bool { return wrID&(recvBit|probeID) == probeID }

// mayPost reports whether the send queue has a free slot.
func (l *Link) mayPost() bool {
	return l.Messages-l.Completed+l.reading+l.probing < sendDepth && !l.quiet
}

// SendDone records that the sends up to the one with the wr_id have completed. The peer has acknowledged them; if
// failed, the last one is the first that failed, and the peer has acknowledged those before it.
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

// acknowledge records that the peer has acknowledged a total number of messages, by its device or in a control message.
func (l *Link) acknowledge(messages uint64) {
	if messages > l.Acked {
		l.Acked, l.ackedBytes = messages, l.ends[(messages-1)%sendDepth]
	}
}

// unacknowledged returns the number of program bytes that the peer has not acknowledged, or not fetched.
func (l *Link) unacknowledged() uint64 {
	if l.ownOffers.n > 0 {
		return l.Written - min(l.ackedBytes, l.ownOffers.all[0].begin)
	}
	return l.Written - l.ackedBytes
}

// expose returns a memory region through which the peer's device may read staging. The first call clears data of
// earlier connections: everything except data in flight, and n bytes that are staged but not yet sent.
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

// Close releases everything, or puts the memory into the pool.
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
	case err != nil: // the queue pair may still write into the memory
		return errors.Join(err, m.close())
	}
	return l.pool.put(m)
}
