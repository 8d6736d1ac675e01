// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// imm is the completion of a write of n bytes into the ring.
func imm(n uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM}
	*wc.ImmData() = ibv.ToBE32(n)
	return wc
}

// said is that of a control message in the first slot.
func (s *stream) said(c control) *ibv.WC {
	copy(s.slots, c.marshal(nil))
	return &ibv.WC{Opcode: ibv.WC_RECV, ByteLen: controlSize, WRID: recvBit}
}

// TestReceivedFromAHostilePeer: what the peer may not say is an error, and changes nothing.
func TestReceivedFromAHostilePeer(t *testing.T) {
	s := &stream{ring: make([]byte, 100), slots: make([]byte, 2*controlSize), sent: 10, messages: 3}
	flags, err := s.received(imm(60), 0)
	require.NoError(t, err)
	assert.Zero(t, flags)
	s.read = 10
	_, err = s.received(s.said(control{read: 10, handled: 3}), 0)
	require.NoError(t, err, "all of it")
	before := *s
	short, other := s.said(control{}), s.said(control{})
	short.ByteLen, other.Opcode = controlSize-1, ibv.WC_DRIVER1
	for name, bad := range map[string]func() (controlFlags, error){
		"more than there is room for": func() (controlFlags, error) { return s.received(imm(51), 0) },
		"far more":                    func() (controlFlags, error) { return s.received(imm(1<<32-1), 0) },
		"data after the end":          func() (controlFlags, error) { return s.received(imm(1), fin) },
		"a short control message":     func() (controlFlags, error) { return s.received(short, 0) },
		"another kind of message":     func() (controlFlags, error) { return s.received(other, 0) },
		"more read than was sent": func() (controlFlags,
			error) {
			return s.received(s.said(control{read: 11, handled: 3}), 0)
		},
		"more messages than sent": func() (controlFlags,
			error) {
			return s.received(s.said(control{read: 10, handled: 4}), 0)
		},
		"flags of another version": func() (controlFlags,
			error) {
			return s.received(s.said(control{flags: 4, read: 10}), 0)
		},
	} {
		flags, err := bad()
		assert.ErrorIs(t, err, syscall.EPROTO, name)
		assert.Zero(t, flags, name)
		assert.Equal(t, before.arrived, s.arrived, name)
		assert.Equal(t, [2]uint64{before.taken, before.peerHandled}, [2]uint64{s.taken, s.peerHandled}, name)
	}
	_, err = s.received(imm(50), 0)
	assert.NoError(t, err, "as much as there is room for")
	flags, err = s.received(s.said(control{flags: fin, read: 1, handled: 1}), 0)
	assert.NoError(t, err)
	assert.Equal(t, fin, flags)
	assert.EqualValues(t, 10, s.taken, "an old word changes nothing")
	assert.True(t, errors.Is(noAnswer{}, syscall.ETIMEDOUT))
}

// TestAQueuePairThatFails: requests are flushed without a word why, which is only right when the connection ends.
func TestAQueuePairThatFails(t *testing.T) {
	flushed := &ibv.WC{Status: ibv.WC_WR_FLUSH_ERR}
	for name, ending := range map[string]func(*Conn){
		"the peer has left": func(c *Conn) { c.gone = true },
		"Close was called":  func(c *Conn) { close(c.closed) },
	} {
		c := newConn(nil, Config{})
		ending(c)
		c.completionFailed(flushed)
		assert.NoError(t, c.err, name)
	}
	c := newConn(nil, Config{})
	c.completionFailed(flushed)
	assert.ErrorIs(t, c.err, syscall.ECONNRESET)
	assert.True(t, isDone(c.dead))
}
