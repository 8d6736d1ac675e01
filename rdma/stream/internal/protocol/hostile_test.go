// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// imm returns the completion of a write of n bytes into the ring.
func imm(n uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM, ByteLen: n}
	*wc.ImmData() = ibv.ToBE32(n)
	return wc
}

// controlOf returns the completion of a control message in the first slot.
func (s *Stream) controlOf(c control) *ibv.WC {
	b := c.marshal(nil)
	copy(s.slots, b)
	return &ibv.WC{Opcode: ibv.WC_RECV, ByteLen: uint32(len(b)), WRID: recvBit}
}

// TestReceiveFromHostilePeer: an invalid message is an error and changes nothing.
func TestReceiveFromHostilePeer(t *testing.T) {
	s := &Stream{ring: make([]byte, 100), slots: make([]byte, 2*offerSize), sent: 10,
		Link: Link{Messages: 3, Reads: Reads{Ours: 1}}}
	flags, err := s.Received(imm(60), 0)
	require.NoError(t, err)
	assert.Zero(t, flags)
	s.read = 10
	_, err = s.Received(s.controlOf(control{read: 10, handled: 3}), 0)
	require.NoError(t, err, "everything was read")
	before := *s
	short, other := s.controlOf(control{}), s.controlOf(control{})
	short.ByteLen, other.Opcode = controlSize-1, ibv.WC_DRIVER1
	unwritten := imm(2)
	unwritten.ByteLen = 1
	for name, bad := range map[string]func() (Flags, error){
		"more than there is room for": func() (Flags, error) { return s.Received(imm(51), 0) },
		"far more":                    func() (Flags, error) { return s.Received(imm(1<<32-1), 0) },
		"data after the end":          func() (Flags, error) { return s.Received(imm(1), Fin) },
		"more than was written":       func() (Flags, error) { return s.Received(unwritten, 0) },
		"a short control message":     func() (Flags, error) { return s.Received(short, 0) },
		"another kind of message":     func() (Flags, error) { return s.Received(other, 0) },
		"more read than was sent": func() (Flags, error) {
			return s.Received(s.controlOf(control{read: 11, handled: 3}), 0)
		},
		"more messages than sent": func() (Flags, error) {
			return s.Received(s.controlOf(control{read: 10, handled: 4}), 0)
		},
		"flags of another version": func() (Flags, error) {
			return s.Received(s.controlOf(control{flags: 4, read: 10}), 0)
		},
		"an offer without bytes": func() (Flags, error) { return s.Received(s.controlOf(control{offer: &span{}}), 0) },
		"an offer of more than there is room for": func() (Flags, error) {
			return s.Received(s.controlOf(control{offer: &span{n: 51}}), 0)
		},
		"an offer around the end of the ring": func() (Flags, error) {
			return s.Received(s.controlOf(control{offer: &span{n: 41}}), 0)
		},
		"an offer after the end": func() (Flags, error) {
			return s.Received(s.controlOf(control{offer: &span{n: 1}}), Fin)
		},
		"an invalid offer": func() (Flags, error) {
			wc := s.controlOf(control{})
			wc.ByteLen = offerSize
			return s.Received(wc, 0)
		},
		"more fetched than offered": func() (Flags, error) { return s.Received(s.controlOf(control{fetched: 1}), 0) },
	} {
		flags, err := bad()
		assert.ErrorIs(t, err, syscall.EPROTO, name)
		assert.Zero(t, flags, name)
		assert.Equal(t, before.arrived, s.arrived, name)
		assert.Equal(t, [2]uint64{before.taken, before.peerHandled}, [2]uint64{s.taken, s.peerHandled}, name)
	}
	assert.Zero(t, s.peerOffers.n)
	_, err = s.Received(imm(50), 0)
	assert.NoError(t, err, "exactly the available room")
	flags, err = s.Received(s.controlOf(control{flags: Fin, read: 1, handled: 1}), 0)
	assert.NoError(t, err)
	assert.Equal(t, Fin, flags)
	assert.EqualValues(t, 10, s.taken, "an old message changes nothing")
}

// TestOffersArriveInOrder: data and the end of data that follow an offer arrive only after the offer was fetched. Too
// many offers are an error.
func TestOffersArriveInOrder(t *testing.T) {
	reads := Link{Reads: Reads{Ours: 1}}
	s := &Stream{ring: make([]byte, 100), slots: make([]byte, offerSize), Link: reads}
	receive := func(wc *ibv.WC) (Flags, error) { return s.Received(wc, 0) }
	fetched := &ibv.WC{Opcode: ibv.WC_RDMA_READ, WRID: fetchBit}
	written := func(n uint32) func() *ibv.WC { return func() *ibv.WC { return imm(n) } }
	controlOf := func(c control) func() *ibv.WC { return func() *ibv.WC { return s.controlOf(c) } }
	for _, next := range []func() *ibv.WC{written(5), controlOf(control{offer: &span{n: 10}}), written(3),
		controlOf(control{offer: &span{n: 20}}), written(1), written(2), controlOf(control{flags: Fin})} {
		flags, err := receive(next())
		require.NoError(t, err)
		assert.Zero(t, flags)
		assert.EqualValues(t, 5, s.Unread())
	}
	_, err := receive(imm(1))
	assert.ErrorIs(t, err, syscall.EPROTO, "data after the end")
	flags, err := receive(fetched)
	require.NoError(t, err)
	assert.Zero(t, flags)
	assert.EqualValues(t, 5+10+3, s.Unread())
	flags, err = receive(fetched)
	require.NoError(t, err)
	assert.Equal(t, Fin, flags)
	assert.EqualValues(t, 5+10+3+20+1+2, s.Unread())

	s = &Stream{ring: make([]byte, 100), slots: make([]byte, offerSize), Link: reads}
	for range maxOffers {
		_, err = receive(s.controlOf(control{offer: &span{n: 1}}))
		require.NoError(t, err)
	}
	_, err = receive(s.controlOf(control{offer: &span{n: 1}}))
	assert.ErrorIs(t, err, syscall.EPROTO)
	assert.ErrorContains(t, err, "more than 8 pieces")

	s = &Stream{ring: make([]byte, 100), slots: make([]byte, offerSize)}
	_, err = receive(s.controlOf(control{offer: &span{n: 1}}))
	assert.ErrorIs(t, err, syscall.EPROTO)
	assert.ErrorContains(t, err, "but this side has not announced fetching")
}

// TestOffersOnlyToReaders: pieces are offered only if both sides allow reads and the peer announces that it fetches.
func TestOffersOnlyToReaders(t *testing.T) {
	for ours := range uint8(2) {
		for theirs := range uint8(2) {
			for _, fetches := range []bool{false, true} {
				s := &Stream{Link: Link{Reads: Reads{ours, theirs}, staging: make([]byte, 1<<20), parts: stagingParts}}
				require.NoError(t, s.ParseHello(hello{size: MinBuffer, depth: 8, fetches: fetches}.marshal()))
				assert.Equal(t, theirs > 0 && fetches, s.offersPieces(), "%v, %v", s.Reads, fetches)
			}
		}
	}
}

// TestPeerWithoutFetches: staging that the peer may still read is not reused, however much else the peer has received
// and acknowledged.
func TestPeerWithoutFetches(t *testing.T) {
	const part = 64 << 10
	s := &Stream{Link: Link{staging: make([]byte, offeringParts*part), parts: offeringParts}}
	s.peer = hello{size: 1 << 20, depth: StreamDepth, fetches: true}
	for i := range uint64(offeringParts) {
		require.Equal(t, part, s.Room(8*part, false))
		if s.lastOffered = s.mayOffer(Piece{Staged: part, More: true}); s.lastOffered {
			s.ownOffers.add(span{n: part, from: s.staged})
		}
		assert.Equal(t, i%2 == 0, s.lastOffered)
		s.staged += part
		s.behind[i] = s.staged
		s.Messages, s.sent = i+1, s.staged
		s.SendDone(i, false)
		s.taken, s.peerHandled = s.sent, s.Messages
	}
	assert.Zero(t, s.Room(8*part, false))
	assert.Zero(t, s.Room(1, false))
	require.NoError(t, s.peerFetched(1))
	assert.Equal(t, part, s.Room(8*part, false), "the fetched piece and the copied piece after it")
	assert.True(t, s.Offered())
	require.NoError(t, s.peerFetched(2))
	assert.False(t, s.Offered())
	assert.ErrorIs(t, s.peerFetched(3), syscall.EPROTO)
}
