// SPDX-License-Identifier: BSD-2-Clause

package protocol

import "fmt"

// Every other piece of a large Write is offered instead of written: while the next piece is written, the peer reads the
// offered one from staging into its place in the ring. Thus each side's device (or with software devices, each
// processor) moves half of the data. Pieces are offered only if the peer's hello has announced that it fetches.
const (
	minOffered = 32 << 10 // minimum size of an offered piece in bytes; smaller ones are faster to write
	maxOffers  = 8        // maximum number of offers that have not been fetched
)

// span is an offered piece.
type span struct {
	address uint64
	rkey    uint32
	n       uint32

	from   uint64 // offset in the stream of staged bytes
	begin  uint64 // on the offering side: offset in the stream of written bytes
	behind uint64 // on the fetching side: number of bytes written after it
}

// offers is a queue of offers that have not been fetched, oldest first.
type offers struct {
	all [maxOffers]span
	n   int
}

func (o *offers) add(s span) {
	o.all[o.n] = s
	o.n++
}

func (o *offers) drop(n int) {
	copy(o.all[:], o.all[n:o.n])
	o.n -= n
}

// agree decides whether pieces are offered. It is called when the peer's hello has arrived, and again when staging
// exists. A side whose device, or whose peer's device, does not support reads has announced that it does not fetch.
func (s *Stream) agree() {
	if s.peer.fetches && s.Reads.Theirs > 0 && len(s.staging) >= offeringParts*minOffered {
		s.parts = offeringParts
	}
}

func (s *Stream) offersPieces() bool { return s.parts == offeringParts }

// mayOffer reports whether a piece can be offered. Offered pieces alternate with written ones.
func (s *Stream) mayOffer(p Piece) bool {
	return s.offersPieces() && !s.lastOffered && p.More && p.Staged >= minOffered && s.ownOffers.n < maxOffers
}

// offer offers a piece and reports whether it succeeded.
func (s *Stream) offer(p Piece) (bool, error) {
	m, err := s.expose(uint64(p.Staged))
	if err != nil { // the device has no more keys: write everything
		s.parts = stagingParts
		return false, nil
	}
	own := uint64(len(s.staging))
	o := span{address: m.Region().Address + s.staged%own, rkey: m.RKey(), n: uint32(p.Staged), from: s.staged,
		begin: s.Written}
	s.ownOffers.add(o)
	s.staged += uint64(p.Staged)
	s.sent += uint64(p.Staged)
	return true, s.postMessage(control{offer: &o}, true, p.Staged)
}

// peerFetched handles the peer's report of its total number of fetched offers.
func (s *Stream) peerFetched(all uint32) error {
	n := all - s.peerFetchedTotal
	if n > uint32(s.ownOffers.n) {
		return fmt.Errorf("%w: it reports %d fetched offers of %d", errProtocol, n, s.ownOffers.n)
	}
	s.peerFetchedTotal = all
	s.ownOffers.drop(int(n))
	s.free()
	return nil
}

// arrive records n bytes that were written into the ring. They become readable after the offers before them are
// fetched.
func (s *Stream) arrive(n uint64) {
	s.landed += n
	if s.peerOffers.n == 0 {
		s.arrived = s.landed
		return
	}
	s.peerOffers.all[s.peerOffers.n-1].behind += n
}

// recordOffer records an offer of the peer.
func (s *Stream) recordOffer(o span) error {
	size, n := uint64(len(s.ring)), uint64(o.n)
	switch room := min(size-(s.landed-s.read), size-s.landed%size); {
	case s.Reads.Ours == 0:
		return fmt.Errorf("%w: it offers %d bytes, but this side has not announced fetching", errProtocol,
			n)
	case n == 0 || n > room:
		return fmt.Errorf("%w: it offers %d bytes, but there is room for %d", errProtocol, n, room)
	case s.peerOffers.n == maxOffers:
		return fmt.Errorf("%w: it offers more than %d pieces at once", errProtocol, maxOffers)
	}
	s.landed += n
	s.peerOffers.add(o)
	return nil
}

// fetch posts a read of the oldest offer, unless a read is in flight.
func (s *Stream) fetch() error {
	if s.peerOffers.n == 0 || s.reading > 0 || !s.mayPost() {
		return nil
	}
	o, r := &s.peerOffers.all[0], s.memory.inboundMR.Region()
	s.sends.Reset()
	s.sends.Read(s.fetchID(), o.address, o.rkey).
		SGE(r.Address+s.arrived%uint64(len(s.ring)), o.n, r.LKey).Signaled()
	if _, err := s.QP.PostSend(s.sends); err != nil {
		return err
	}
	s.reading = 1
	return nil
}

// fetchDone handles a completed read. It returns the flags that the peer sent after its last offer.
func (s *Stream) fetchDone() (flags Flags) {
	o := s.peerOffers.all[0]
	s.arrived += uint64(o.n) + o.behind
	s.peerOffers.drop(1)
	s.Fetched++
	s.reading = 0
	if s.peerOffers.n == 0 {
		flags, s.held = s.held, 0
	}
	return flags
}

// holdFlags holds flags of the peer back until all earlier offers have been read, because the peer may then leave.
func (s *Stream) holdFlags(flags Flags) Flags {
	if s.peerOffers.n == 0 {
		return flags
	}
	s.held |= flags
	return 0
}

// fetchBit distinguishes the wr_id of a fetch from those of sends.
const fetchBit = 1 << 31

// fetchID is the wr_id of a fetch.
func (l *Link) fetchID() uint64 { return l.key | fetchBit }

// IsFetch reports whether a wr_id belongs to a read of an offer.
func IsFetch(wrID uint64) bool { return wrID&(recvBit|probeID) == fetchBit }

// Offered reports whether the peer has offers left to fetch. Until then its device may read staging.
func (l *Link) Offered() bool { return l.ownOffers.n > 0 }

// free frees staging: that of completed sends, up to the oldest piece that the peer has not fetched.
func (l *Link) free() {
	l.unstaged = l.done
	if l.ownOffers.n > 0 {
		l.unstaged = min(l.unstaged, l.ownOffers.all[0].from)
	}
}
