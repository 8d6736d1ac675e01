// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
)

// rsocketDepth is the number of receives of an rsocket. With the slot that rdma adds, the queue has a power of two.
const rsocketDepth = 255

// maxControls is the maximum number of control messages in flight. Data leaves this many slots of the send queue free.
const maxControls = 4

// RSocket is the protocol of librdmacm's rsockets. Each side announces halves of its ring by writing targets into the
// peer's list. The peer writes its data into announced halves in order, and a half is announced again when it is free.
type RSocket struct {
	Link
	ring    []byte // the peer writes data here
	targets []byte // this side's list: the peer writes announcements here
	words   []byte // received words of writes, if the link is split

	arrived, read            uint64 // total bytes written to the ring, and read from it
	announced                uint64 // total bytes that the peer may write
	handled, reportedHandled uint64 // total messages handled, and the total last reported; only those that use credit
	nextTarget               uint32 // next index in the peer's list
	controls                 [maxControls]uint64
	unfinished               int // number of control messages in flight, which controls contains
	over                     bool

	peer         rsocketHello
	mapped       []mapped              // memory that the peer has mapped
	windows      [targetEntries]target // announced by the peer, and still writable
	current      int                   // index of the window in use
	nextWindow   int                   // index of the window that the peer announces next
	sent, credit uint16                // messages that use credit: sent so far, and the limit
	credited     bool                  // a message of the peer has carried credit
}

// target is a peer's memory that this side may write.
type target struct {
	address     uint64
	key, length uint32
}

func (r *RSocket) Objects() *Link { return &r.Link }

func (r *RSocket) Open(over Device, options Options) error {
	size := options.Buffer
	r.mapped = make([]mapped, options.Maps)
	lists := targetEntries*targetSize + options.Maps*mappedSize
	want := demand{rsocketDepth, 1, 1, size + lists + rsocketDepth*wordSize, mappedSize}
	if err := r.Link.open(over, options, want); err != nil {
		return err
	}
	in := r.memory.inbound.Bytes()
	r.ring, r.targets, r.words = in[:size], in[size:size+lists], in[size+lists:]
	r.announced = uint64(size / 2)
	r.nextTarget = 1
	r.nextWindow = 1
	for place := range uint64(rsocketDepth) {
		r.addPlace(place)
	}
	return r.PostRecvs()
}

func (r *RSocket) Hello() []byte {
	m := r.memory.inboundMR.Region()
	key := r.memory.inboundMR.RKey()
	return rsocketHello{
		bigEndian: hostIsBigEndian, credits: rsocketDepth, maps: len(r.mapped),
		list: target{m.Address + uint64(len(r.ring)), key, targetEntries},
		data: target{m.Address, key, uint32(len(r.ring) / 2)},
	}.marshal()
}

func (r *RSocket) ParseHello(b []byte) (err error) {
	if r.peer, err = parseRSocketHello(b); err != nil {
		return err
	}
	r.windows[0] = r.peer.data
	if !r.credited {
		r.credit = r.peer.credits
	}
	return nil
}

func (r *RSocket) Unread() uint64 { return r.arrived - r.read }

func (r *RSocket) Consumed(n int) { r.read += uint64(n) }

func (r *RSocket) CopyOut(p []byte, n uint64) int { return copyRing(p, r.ring, r.read, n) }

func (r *RSocket) Front(n uint64) []byte { return frontOf(r.ring, r.read, n) }

// Room returns any room, however small, because the peer announces half of its ring at a time.
func (r *RSocket) Room(n int, lent bool) int {
	if r.sent == r.credit {
		return 0
	}
	return int(min(uint64(r.roomHere(n, lent)), uint64(r.windows[r.current].length)))
}

// roomHere returns how many of n bytes this side's send queue and staging have room for.
func (r *RSocket) roomHere(n int, lent bool) int {
	if r.Messages-r.Completed+maxControls >= sendDepth || r.quiet {
		return 0
	}
	room := min(uint64(n), maxPiece)
	if !lent {
		room = min(room, r.roomStaged(uint64(n)))
	}
	return int(room)
}

func (r *RSocket) PostData(p Piece) (bool, error) {
	to := &r.windows[r.current]
	if r.over || r.Room(p.Len(), p.isLent()) < p.Len() {
		return false, nil
	}
	imm := word(opData, uint32(p.Len()))
	w := r.write(to.address, to.key, imm)
	if err := r.data(w, p); err != nil {
		return false, err
	}
	if err := r.post(r.afterWrite(w, binary.NativeEndian, imm.Host()), r.mustSignal(p), p.Len()); err != nil {
		return false, err
	}
	to.address += uint64(p.Len())
	if to.length -= uint32(p.Len()); to.length == 0 {
		r.current = (r.current + 1) % targetEntries
	}
	r.sent++
	return true, nil
}

// Received handles a message. peer has the flags of earlier messages; the result has the flags of this one.
func (r *RSocket) Received(wc *ibv.WC, peer Flags) (Flags, error) {
	r.quiet = false
	if r.isWord(wc) {
		wc = r.written(binary.NativeEndian.Uint32(r.words[placeOf(wc.WRID)*wordSize:]))
	}
	if wc.Opcode != ibv.WC_RECV_RDMA_WITH_IMM {
		return 0, fmt.Errorf("%w: %v of %d bytes", errRSocket, wc.Opcode, wc.ByteLen)
	}
	imm := wc.ImmData().Host()
	switch op, value := imm>>opShift, imm&(1<<opShift-1); op {
	case opData:
		room := r.announced - r.arrived
		switch {
		case peer&Fin != 0:
			return 0, fmt.Errorf("%w: %d bytes after its end of data", errRSocket, value)
		case uint64(value) > room:
			return 0, fmt.Errorf("%w: %d bytes, but there is room for %d", errRSocket, value, room)
		case value != wc.ByteLen:
			return 0, fmt.Errorf("%w: it reports %d bytes, but wrote %d", errRSocket, value, wc.ByteLen)
		}
		r.arrived += uint64(value)
		r.handled++
		return 0, nil
	case opSGL:
		switch wc.ByteLen {
		case 0:
		case targetSize:
			entry := r.targets[r.nextWindow*targetSize:][:targetSize]
			r.windows[r.nextWindow] = parseTarget(entry)
			clear(entry)
			r.nextWindow = (r.nextWindow + 1) % targetEntries
		default:
			return 0, fmt.Errorf("%w: an announcement of %d bytes", errRSocket, wc.ByteLen)
		}
		r.credit, r.credited = uint16(value), true
		return 0, nil
	case opMap:
		if value >= uint32(len(r.mapped)) || wc.ByteLen != mappedSize {
			return 0, fmt.Errorf("%w: mapping %d of %d in a message of %d bytes", errRSocket, value, len(r.mapped),
				wc.ByteLen)
		}
		r.mapped[value] = parseMapped(r.targets[targetEntries*targetSize+value*mappedSize:])
		r.handled++
		return 0, nil
	case opControl:
		switch value {
		case controlDisconnect:
			r.over = true
			return Fin | Done, nil
		case controlKeepalive:
			return 0, nil
		case controlShutdown:
			return Fin, nil
		}
	}
	return 0, fmt.Errorf("%w: message %#08x", errRSocket, imm)
}

// written returns the completion that a write with immediate data would have for a received word. The device does not
// report the length of a plain write, so an announcement is recognized by its entry in the list, which is not empty.
func (r *RSocket) written(word uint32) *ibv.WC {
	wc := writeOf(word)
	switch op, value := word>>opShift, word&(1<<opShift-1); op {
	case opData:
		wc.ByteLen = value
	case opSGL:
		entry := r.targets[r.nextWindow*targetSize:][:targetSize]
		if parseTarget(entry).length > 0 {
			wc.ByteLen = targetSize
		}
	case opMap:
		wc.ByteLen = mappedSize
	}
	return wc
}

func (r *RSocket) AddRecv(wc *ibv.WC) { r.addPlace(placeOf(wc.WRID)) }

// addPlace adds a receive, with room for a word if the link is split.
func (r *RSocket) addPlace(place uint64) {
	w := r.Recvs.Recv(r.recvID(place))
	if r.split {
		m := r.memory.inboundMR.Region()
		w.SGE(m.Address+uint64(len(r.ring)+len(r.targets))+place*wordSize, wordSize, m.LKey)
	}
}

// SendPending sends pending notifications one at a time. It sends nothing to a peer that has disconnected, whose memory
// may be gone.
func (r *RSocket) SendPending(flags Flags) (sent Flags, err error) {
	for err == nil && !r.over && r.mayControl() {
		half := uint64(len(r.ring) / 2)
		credit := word(opSGL, uint32(uint16(r.handled+rsocketDepth)))
		switch {
		case flags != sent:
			value := uint32(controlShutdown)
			if flags&Done != 0 {
				value = controlDisconnect
			}
			sent = flags
			err = r.postControl(word(opControl, value), 0, nil)
		case sent&Done != 0:
			return sent, nil
		case r.announced+half-r.read <= uint64(len(r.ring)):
			m := r.memory.inboundMR.Region()
			next := target{m.Address + r.announced%uint64(len(r.ring)), r.memory.inboundMR.RKey(), uint32(half)}
			at := r.peer.list.address + uint64(r.nextTarget)*targetSize
			err = r.postControl(credit, at, next.marshal(r.peer.order()))
			r.announced += half
			r.nextTarget = (r.nextTarget + 1) % r.peer.list.length
			r.reportedHandled = r.handled
		case r.handled-r.reportedHandled >= rsocketDepth/2:
			err = r.postControl(credit, 0, nil)
			r.reportedHandled = r.handled
		default:
			return sent, nil
		}
	}
	return sent, err
}

// mayControl reports whether one more control message may be sent.
func (r *RSocket) mayControl() bool {
	for r.unfinished > 0 && r.controls[0] < r.Completed {
		copy(r.controls[:], r.controls[1:r.unfinished])
		r.unfinished--
	}
	return r.unfinished < maxControls && r.mayPost()
}

// postControl sends a control message and writes b, if any, to an address in the peer's list.
func (r *RSocket) postControl(imm ibv.BE32, at uint64, b []byte) error {
	var key uint32
	if b != nil {
		key = r.peer.list.key
	}
	w := r.write(at, key, imm)
	if b != nil {
		r.setControl(w, b)
	}
	r.controls[r.unfinished] = r.Messages
	r.unfinished++
	return r.post(r.afterWrite(w, binary.NativeEndian, imm.Host()), true, 0)
}

func (r *RSocket) ProbeAt() (address uint64, rkey uint32) {
	return r.peer.list.address, r.peer.list.key
}

// AnswersEnd returns false: a peer that received the end sends its own when its program closes.
func (r *RSocket) AnswersEnd() bool { return false }

// Undelivered returns 0 once the peer's program has closed. The peer does not report how much it has read, and no
// further message can be sent whose completion would prove that everything arrived.
func (r *RSocket) Undelivered(peer Flags) uint64 {
	if peer&Done != 0 {
		return 0
	}
	return r.unacknowledged()
}

var hostIsBigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1
