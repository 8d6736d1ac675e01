// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
)

// StreamDepth is the number of receives of a stream. Devices round up to a power of two, which includes the slot that
// rdma adds for its markers.
const StreamDepth = 63

// recvsAtOnce is the number of receives that are posted together. Fewer are posted before a message that reports them
// to the peer as free.
const recvsAtOnce = 16

const maxPiece = 1 << 20 // maximum bytes of one write

// Stream is this package's own protocol and its state. Numbers of bytes and messages are totals since the start.
type Stream struct {
	Link
	words []byte // scratch memory for a control message

	ring  []byte // the peer writes data here
	slots []byte // the peer's control messages arrive here

	arrived, read            uint64 // bytes of the peer in the ring without a gap, and bytes read from it
	landed                   uint64 // bytes of the peer, including offers that are not yet fetched
	reportedRead             uint64 // the value of read last sent to the peer
	handled, reportedHandled uint64 // messages handled, and the value last sent to the peer
	peerOffers               offers // of the peer
	held                     Flags  // flags that the peer sent after them
	Fetched, reportedFetched uint32 // number of fetched offers, and the value last sent to the peer

	peer             hello
	sent             uint64 // bytes sent
	taken            uint64 // bytes that the peer has read
	peerHandled      uint64 // messages that the peer has received
	peerFetchedTotal uint32 // number of offers that the peer has fetched
	lastOffered      bool   // the last piece was offered
}

func (s *Stream) Objects() *Link { return &s.Link }

func (s *Stream) Open(over Device, options Options) error {
	err := s.Link.open(over, options, demand{StreamDepth, recvsAtOnce, 1, options.Buffer + StreamDepth*offerSize, offerSize})
	if err != nil {
		return err
	}
	s.words = make([]byte, 0, offerSize)
	s.ring, s.slots = s.memory.inbound.Bytes()[:options.Buffer], s.memory.inbound.Bytes()[options.Buffer:]
	for slot := range uint64(StreamDepth) {
		s.addSlot(slot)
	}
	s.agree()
	return s.PostRecvs()
}

func (s *Stream) Hello() []byte {
	r := s.memory.inboundMR.Region()
	h := hello{ring: r.Address, rkey: s.memory.inboundMR.RKey(), size: uint32(len(s.ring)), depth: StreamDepth,
		fetches: s.Reads.Ours > 0}
	return h.marshal()
}

func (s *Stream) ParseHello(b []byte) error {
	h, err := parseHello(b)
	s.peer = h
	s.agree()
	return err
}

func (s *Stream) addSlot(slot uint64) {
	r := s.memory.inboundMR.Region()
	s.Recvs.Recv(s.recvID(slot)).SGE(r.Address+uint64(len(s.ring))+slot*offerSize, offerSize, r.LKey)
}

func (s *Stream) AddRecv(wc *ibv.WC) {
	s.handled++
	s.addSlot(placeOf(wc.WRID))
}

func (s *Stream) Unread() uint64 { return s.arrived - s.read }

func (s *Stream) Consumed(n int) { s.read += uint64(n) }

// CopyOut copies bytes out of the ring. The reader owns n of them.
func (s *Stream) CopyOut(p []byte, n uint64) int { return copyRing(p, s.ring, s.read, n) }

func (s *Stream) Front(n uint64) []byte { return frontOf(s.ring, s.read, n) }

// copyRing copies up to n bytes from an offset of a ring.
func copyRing(p, ring []byte, from, n uint64) int {
	p = p[:min(uint64(len(p)), n)]
	first := copy(p, ring[from%uint64(len(ring)):])
	return first + copy(p[first:], ring)
}

// frontOf returns the contiguous first part of n bytes at an offset of a ring, at most the amount that is reported to
// the peer at once.
func frontOf(ring []byte, from, n uint64) []byte {
	at := from % uint64(len(ring))
	n = min(n, uint64(len(ring))-at, max(uint64(len(ring))/ringParts, 1))
	return ring[at : at+n : at+n]
}

// outstanding returns the number of the peer's receives that may be in use.
func (s *Stream) outstanding() uint64 { return s.Messages - s.peerHandled }

// The last receives of the peer are reserved, so that both sides can always report that receives are free again. Data
// messages leave two free, a report of read bytes leaves one, and a report of handled messages may use the last. Each
// report of handled messages frees at least half of the other side's receives, so both sides never run out at the same
// time.
const (
	keptByData  = 2
	keptByBytes = 1
)

// slotFree reports whether a message may be sent that leaves kept receives free.
func (s *Stream) slotFree(kept uint64) bool {
	return s.outstanding()+kept < uint64(s.peer.depth) && s.mayPost()
}

// mustReport reports whether a control message should be sent and may be: for flags, for many handled messages, for a
// quarter of the ring that was read, or for a fetched offer. The peer of a split link may be waiting for a first message.
func (s *Stream) mustReport(flags Flags, many uint64) bool {
	return flags != 0 || s.split && s.Messages == 0 && s.slotFree(0) ||
		s.handled-s.reportedHandled >= many && s.slotFree(0) ||
		(s.read-s.reportedRead >= uint64(len(s.ring))/ringParts || s.Fetched != s.reportedFetched) && s.slotFree(keptByBytes)
}

// A piece is at most a quarter of the ring, so that the peer can read while the next pieces are sent, and at most half
// of staging, so that one half is filled while the other is sent. Pieces of a large Write are not smaller, because each
// one wakes the reader.
const (
	ringParts     = 4
	stagingParts  = 2
	offeringParts = 4 // two pieces are offered, and two are written
)

// Room returns how many of n bytes can be sent in one piece. It returns 0 rather than a small number, because more room
// becomes free soon: the peer reports each quarter of the ring that it has read, and half of staging completes at once.
func (s *Stream) Room(n int, lent bool) int {
	size := uint64(s.peer.size)
	inbound := size - (s.sent - s.taken)
	least := size / ringParts
	if s.offersPieces() { // smaller pieces, so that offered and written ones fill the ring
		least = min(least, uint64(len(s.staging))/offeringParts)
	}
	if !s.slotFree(keptByData) || inbound < min(uint64(n), least) {
		return 0
	}
	room := min(uint64(n), inbound, size-s.sent%size, maxPiece) // contiguous in the ring
	if lent {
		return int(min(room, size/ringParts))
	}
	if s.offersPieces() && !s.lastOffered && n >= 2*minOffered {
		room = min(room, uint64(n)/2)
	}
	return int(min(room, s.roomStaged(uint64(n))))
}

func (s *Stream) PostData(p Piece) (_ bool, err error) {
	if !s.slotFree(keptByData) { // a control message took the slot
		return false, nil
	}
	if s.lastOffered = s.mayOffer(p); s.lastOffered {
		if s.lastOffered, err = s.offer(p); s.lastOffered || err != nil {
			return err == nil, err
		}
	}
	size, n := uint64(s.peer.size), uint32(p.Len())
	w := s.write(s.peer.ring+s.sent%size, s.peer.rkey, ibv.ToBE32(n))
	if err := s.data(w, p); err != nil {
		return false, err
	}
	if err := s.post(s.afterWrite(w, binary.BigEndian, n), s.mustSignal(p), p.Len()); err != nil {
		return false, err
	}
	s.sent += uint64(p.Len())
	return true, nil
}

// postControl sends a control message with all state that has not been sent to the peer.
func (s *Stream) postControl(flags Flags) error {
	return s.postMessage(control{flags: flags}, flags != 0, 0)
}

// postMessage sends a control message, with an offer of n bytes if n is not 0.
func (s *Stream) postMessage(c control, signaled bool, n int) error {
	if err := s.PostRecvs(); err != nil {
		return err
	}
	c.read, c.handled, c.fetched = s.read, s.handled, s.Fetched
	s.words = c.marshal(s.words)
	s.sends.Reset()
	w := s.sends.Send(s.sendID())
	s.setControl(w, s.words)
	if err := s.post(w, signaled, n); err != nil {
		return err
	}
	s.reportedRead, s.reportedHandled, s.reportedFetched = s.read, s.handled, s.Fetched
	return nil
}

func (s *Stream) Received(wc *ibv.WC, peer Flags) (Flags, error) {
	peer |= s.held
	s.quiet = false
	if s.isWord(wc) { // the device does not report how much the peer has written
		wc = writeOf(binary.BigEndian.Uint32(s.slots[placeOf(wc.WRID)*offerSize:]))
		wc.ByteLen = wc.ImmData().Host()
	}
	switch free := uint64(len(s.ring)) - (s.landed - s.read); {
	case IsFetch(wc.WRID):
		return s.fetchDone(), nil
	case wc.Opcode == ibv.WC_RECV_RDMA_WITH_IMM:
		n := uint64(wc.ImmData().Host())
		if peer&Fin != 0 {
			return 0, fmt.Errorf("%w: %d bytes after its end of data", errProtocol, n)
		}
		if n != uint64(wc.ByteLen) { // otherwise Read would return data of an earlier stream
			return 0, fmt.Errorf("%w: it reports %d bytes, but wrote %d", errProtocol, n, wc.ByteLen)
		}
		if n > free {
			return 0, fmt.Errorf("%w: %d bytes, but there is room for %d", errProtocol, n, free)
		}
		s.arrive(n)
		return 0, nil
	case wc.Opcode != ibv.WC_RECV, wc.ByteLen != controlSize && wc.ByteLen != offerSize:
		return 0, fmt.Errorf("%w: %v of %d bytes", errProtocol, wc.Opcode, wc.ByteLen)
	}
	b := s.slots[placeOf(wc.WRID)*offerSize:]
	m, offers := parseControl(b), wc.ByteLen == offerSize
	switch {
	case m.flags&^(Fin|Done|offerFlag) != 0, offers != (m.flags&offerFlag != 0), offers && peer&Fin != 0:
		return 0, fmt.Errorf("%w: flags %#x in %d bytes", errProtocol, m.flags, wc.ByteLen)
	case m.read > s.sent:
		return 0, fmt.Errorf("%w: it reports reading %d bytes of %d", errProtocol, m.read, s.sent)
	case m.handled > s.Messages:
		return 0, fmt.Errorf("%w: it reports handling %d messages of %d", errProtocol, m.handled, s.Messages)
	}
	if err := s.peerFetched(m.fetched); err != nil {
		return 0, err
	}
	if offers {
		if err := s.recordOffer(parseOffer(b)); err != nil {
			return 0, err
		}
	}
	s.taken, s.peerHandled = max(s.taken, m.read), max(s.peerHandled, m.handled)
	s.acknowledge(m.handled)
	return s.holdFlags(m.flags &^ offerFlag), nil
}

func (s *Stream) SendPending(flags Flags) (Flags, error) {
	if !s.slotFree(keptByData) {
		flags = 0
	}
	if !s.mustReport(flags, StreamDepth/2) {
		return 0, s.fetch()
	}
	if err := s.postControl(flags); err != nil {
		return flags, err
	}
	return flags, s.fetch()
}

func (s *Stream) ProbeAt() (address uint64, rkey uint32) { return s.peer.ring, s.peer.rkey }

func (s *Stream) AnswersEnd() bool { return true }

// Undelivered returns the number of bytes that the program of a closed peer did not read, as reported in its last
// message, or else the number of unacknowledged bytes.
func (s *Stream) Undelivered(peer Flags) uint64 {
	if peer&Done != 0 {
		return s.sent - s.taken
	}
	return s.unacknowledged()
}
