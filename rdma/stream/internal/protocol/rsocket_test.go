// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"encoding/hex"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestRSocketHello tests the encoding and invalid hellos.
func TestRSocketHello(t *testing.T) {
	h := rsocketHello{credits: 384, list: target{0x1122334455667788, 0x99aabbcc, 2}, data: target{0x1000, 7, 65536}}
	b := h.marshal()
	assert.Equal(t, "0102018000000000"+"112233445566778899aabbcc00000002"+"00000000000010000000000700010000",
		hex.EncodeToString(b))
	got, err := parseRSocketHello(append(b, make([]byte, 16)...)) // padded, as private data is
	require.NoError(t, err)
	assert.Equal(t, h, got)
	h.bigEndian, h.maps = true, 5
	got, err = parseRSocketHello(h.marshal())
	require.NoError(t, err)
	assert.Equal(t, binary.ByteOrder(binary.BigEndian), binary.ByteOrder(got.order()))
	assert.Equal(t, 5, got.maps)
	many := h.marshal()
	many[7] = 0x82
	got, err = parseRSocketHello(many)
	require.NoError(t, err)
	assert.Equal(t, 512, got.maps)
	many[1] = 0
	got, err = parseRSocketHello(many)
	require.NoError(t, err)
	assert.Zero(t, got.maps, "the hello does not announce maps")
	for name, change := range map[string]func(b []byte) []byte{
		"nothing":         func(b []byte) []byte { return nil },
		"too short":       func(b []byte) []byte { return b[:rsocketHelloSize-1] },
		"another version": func(b []byte) []byte { b[0] = 2; return b },
		"no credits":      func(b []byte) []byte { b[2], b[3] = 0, 0; return b },
		"a list of one":   func(b []byte) []byte { b[23] = 1; return b },
		"a stream's":      func(b []byte) []byte { return hello{size: MinBuffer, depth: StreamDepth}.marshal() },
	} {
		_, err := parseRSocketHello(change(h.marshal()))
		assert.ErrorIs(t, err, errNoRSocket, name)
	}
}

// rsocketReceived returns the completion of a message that wrote n bytes.
func rsocketReceived(op, value, n uint32) *ibv.WC {
	wc := &ibv.WC{Opcode: ibv.WC_RECV_RDMA_WITH_IMM, WCFlags: ibv.WC_WITH_IMM, ByteLen: n}
	*wc.ImmData() = word(op, value)
	return wc
}

// TestRSocketMeetsLate: if the peer's first message is handled before its hello, the message takes precedence.
func TestRSocketMeetsLate(t *testing.T) {
	hello := rsocketHello{bigEndian: hostIsBigEndian, credits: 9, list: target{1, 2, targetEntries},
		data: target{1 << 30, 4, 64}}.marshal()
	r := &RSocket{targets: make([]byte, targetEntries*targetSize), nextWindow: 1}
	target{1 << 40, 5, 32}.put(r.targets[targetSize:])
	_, err := r.Received(rsocketReceived(opSGL, 11, targetSize), 0)
	require.NoError(t, err)
	require.NoError(t, r.ParseHello(hello))
	assert.EqualValues(t, 11, r.credit)
	assert.Equal(t, [2]target{{1 << 30, 4, 64}, {1 << 40, 5, 32}}, r.windows)
	r = &RSocket{}
	require.NoError(t, r.ParseHello(hello))
	assert.EqualValues(t, 9, r.credit)
}

// TestRSocketHostilePeer: an invalid message is an error and changes nothing.
func TestRSocketHostilePeer(t *testing.T) {
	r := &RSocket{ring: make([]byte, 128), targets: make([]byte, targetEntries*targetSize), announced: 64, nextWindow: 1}
	flags, err := r.Received(rsocketReceived(opData, 60, 60), 0)
	require.NoError(t, err)
	assert.Zero(t, flags)
	before := *r
	send := rsocketReceived(opData, 1, 1)
	send.Opcode = ibv.WC_RECV
	for name, bad := range map[string]struct {
		wc   *ibv.WC
		peer Flags
	}{
		"more than it was given":        {rsocketReceived(opData, 5, 5), 0},
		"far more":                      {rsocketReceived(opData, 1<<opShift-1, 1<<opShift-1), 0},
		"bytes that it has not written": {rsocketReceived(opData, 4, 0), 0},
		"data after the end":            {rsocketReceived(opData, 1, 1), Fin},
		"half an announcement":          {rsocketReceived(opSGL, 9, 8), 0},
		"an unknown message":            {rsocketReceived(5, 0, 0), 0},
		"a map that was not offered":    {rsocketReceived(opMap, 0, mappedSize), 0},
		"an unknown control message":    {rsocketReceived(opControl, 3, 0), 0},
		"a send":                        {send, 0},
	} {
		flags, err := r.Received(bad.wc, bad.peer)
		assert.ErrorIs(t, err, syscall.EPROTO, name)
		assert.Zero(t, flags, name)
		assert.Equal(t, before, *r, name)
	}
	target{1 << 40, 5, 32}.put(r.targets[targetSize:])
	_, err = r.Received(rsocketReceived(opSGL, 70_000, targetSize), 0)
	require.NoError(t, err)
	assert.Equal(t, target{1 << 40, 5, 32}, r.windows[1])
	assert.EqualValues(t, 70_000-1<<16, r.credit)
	flags, err = r.Received(rsocketReceived(opControl, controlShutdown, 0), 0)
	assert.Equal(t, Fin, flags)
	assert.NoError(t, err)
	flags, err = r.Received(rsocketReceived(opControl, controlDisconnect, 0), Fin)
	assert.Equal(t, Fin|Done, flags)
	assert.NoError(t, err)
}

// put writes an entry as a peer does.
func (t target) put(b []byte) { copy(b, t.marshal(binary.NativeEndian)) }
