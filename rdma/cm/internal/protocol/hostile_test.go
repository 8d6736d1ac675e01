// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// imm is the completion of a write of n bytes into the ring.
func imm(n uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM, ByteLen: n}
	*wc.ImmData() = ibv.ToBE32(n)
	return wc
}

// said is that of a control message in the first slot.
func (s *Stream) said(c control) *ibv.WC {
	copy(s.slots, c.marshal(nil))
	return &ibv.WC{Opcode: ibv.WC_RECV, ByteLen: controlSize, WRID: recvBit}
}

// TestReceivedFromAHostilePeer: what the peer may not say is an error, and changes nothing.
func TestReceivedFromAHostilePeer(t *testing.T) {
	s := &Stream{ring: make([]byte, 100), slots: make([]byte, 2*controlSize), sent: 10,
		Link: Link{Messages: 3}}
	flags, err := s.Received(imm(60), 0)
	require.NoError(t, err)
	assert.Zero(t, flags)
	s.read = 10
	_, err = s.Received(s.said(control{read: 10, handled: 3}), 0)
	require.NoError(t, err, "all of it")
	before := *s
	short, other := s.said(control{}), s.said(control{})
	short.ByteLen, other.Opcode = controlSize-1, ibv.WC_DRIVER1
	unwritten := imm(2)
	unwritten.ByteLen = 1
	for name, bad := range map[string]func() (Flags, error){
		"more than there is room for": func() (Flags, error) { return s.Received(imm(51), 0) },
		"far more":                    func() (Flags, error) { return s.Received(imm(1<<32-1), 0) },
		"data after the end":          func() (Flags, error) { return s.Received(imm(1), Fin) },
		"more than it has written":    func() (Flags, error) { return s.Received(unwritten, 0) },
		"a short control message":     func() (Flags, error) { return s.Received(short, 0) },
		"another kind of message":     func() (Flags, error) { return s.Received(other, 0) },
		"more read than was sent": func() (Flags,
			error) {
			return s.Received(s.said(control{read: 11, handled: 3}), 0)
		},
		"more messages than sent": func() (Flags,
			error) {
			return s.Received(s.said(control{read: 10, handled: 4}), 0)
		},
		"flags of another version": func() (Flags,
			error) {
			return s.Received(s.said(control{flags: 4, read: 10}), 0)
		},
	} {
		flags, err := bad()
		assert.ErrorIs(t, err, syscall.EPROTO, name)
		assert.Zero(t, flags, name)
		assert.Equal(t, before.arrived, s.arrived, name)
		assert.Equal(t, [2]uint64{before.taken, before.peerHandled}, [2]uint64{s.taken, s.peerHandled}, name)
	}
	_, err = s.Received(imm(50), 0)
	assert.NoError(t, err, "as much as there is room for")
	flags, err = s.Received(s.said(control{flags: Fin, read: 1, handled: 1}), 0)
	assert.NoError(t, err)
	assert.Equal(t, Fin, flags)
	assert.EqualValues(t, 10, s.taken, "an old word changes nothing")
}
