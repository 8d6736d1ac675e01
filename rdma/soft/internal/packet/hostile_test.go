// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// TestLengths: for each opcode, a packet is accepted only with its headers and a valid payload and pad.
func TestLengths(t *testing.T) {
	for code := range shapes {
		s := &shapes[code]
		for n := range MaxSize + 8 {
			if n > 100 && n < 1020 || n > 1060 && n < MaxPayload {
				continue
			}
			for pad := range 4 {
				p := make([]byte, n)
				if n >= bthSize {
					h := bth{opcode: uint8(code), pad: uint8(pad), pkey: 1, qpn: 2}
					h.put(p)
				}
				if n >= bthSize+icrcSize && s.answer == message.Plain {
					p[bthSize] = syndromeAck
				}
				rest := n - s.size - icrcSize // payload and pad
				want := s.kind != Refused && n%4 == 0 && rest == 0 && pad == 0 ||
					s.has(payload) && n%4 == 0 && rest >= pad && rest-pad <= MaxPayload && n <= MaxSize
				var d Decoder
				kind, reason := d.Decode(p, alice, bob)
				if want != (kind == s.kind && kind != Refused) || want != (reason == Accepted) {
					assert.Fail(t, "wrong", "opcode %#x, %d bytes, pad %d: %d, %v", code, n, pad, kind, reason)
				}
			}
		}
	}
}

// cmRequest is a datagram of the connection manager.
func cmRequest() *message.MAD {
	return &message.MAD{Attribute: message.REQ, TID: 0x1122334455667788, LocalID: 0x11223344, PKey: 0xffff,
		ServiceID: 0x0000000001061234, QPN: 0x123456, PSN: 0x654321, Path: message.Path{MTU: ibv.MTU_1024},
		Source: netip.MustParseAddrPort("192.0.2.1:5555"), Dest: netip.MustParseAddr("192.0.2.2"),
		Private: bytes.Repeat([]byte{7}, 56)}
}

// TestMAD: decoding the packet of a datagram of the connection manager returns the datagram.
func TestMAD(t *testing.T) {
	var out packetList
	m := cmRequest()
	m.From, m.To = alice, bob
	require.NoError(t, AppendMAD(&out, m, 0x777777))
	require.Len(t, out, 1)
	assert.Equal(t, []byte{0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0x77, 0x77, 0x77, 0x80, 1, 0, 0, 0, 0, 0, 1},
		out[0][:20])
	var d Decoder
	kind, reason := d.Decode(out[0], alice, bob)
	require.Equal(t, MAD, kind, "%v", reason)
	assert.Equal(t, m, &d.MAD)

	m.QPN = 1 << 24
	assert.ErrorContains(t, AppendMAD(&out, m, 0), "QPN")
	assert.Len(t, out, 1, "a message that cannot be encoded is not sent")
}

// TestReasons: an invalid packet is rejected with the right reason.
func TestReasons(t *testing.T) {
	packetOf := func(m *message.Request) []byte {
		var out packetList
		AppendRequest(&out, m)
		return out[0]
	}
	send := packetOf(example(ibv.QPT_RC, ibv.WR_SEND, pattern(7)))
	datagram := packetOf(example(ibv.QPT_UD, ibv.WR_SEND, pattern(256)))
	withImm := packetOf(example(ibv.QPT_UD, ibv.WR_SEND_WITH_IMM, pattern(256)))
	var cm, acks packetList
	require.NoError(t, AppendMAD(&cm, cmRequest(), 0))
	AppendAnswer(&acks, &message.Answer{Transport: ibv.QPT_RC, PKey: 1, DestQP: 2})
	AppendAnswer(&acks, &message.Answer{Transport: ibv.QPT_RC, PKey: 1, DestQP: 2, Kind: message.AtomicData})
	ack, atomic := acks[0], acks[1]
	for _, c := range []struct {
		name string
		of   []byte
		harm func([]byte) []byte
		want Reason
	}{
		{"nothing", send, func(p []byte) []byte { return nil }, BadSize},
		{"15 bytes", send, func(p []byte) []byte { return p[:15] }, BadSize},
		{"not a multiple of 4", send, func(p []byte) []byte { return p[:len(p)-1] }, BadSize},
		{"long", send, func(p []byte) []byte { return make([]byte, MaxSize+4) }, BadSize},
		{"version", send, func(p []byte) []byte { p[1] |= 1; return p }, BadVersion},
		{"opcode of reliable datagrams", send, func(p []byte) []byte { p[0] = ibv.OPCODE_RD_SEND_ONLY; return p }, BadOpcode},
		{"opcode", send, func(p []byte) []byte { p[0] = 0x15; return p }, BadOpcode},
		{"read of UC", send, func(p []byte) []byte { p[0] = ibv.OPCODE_UC | ibv.OPCODE_RDMA_READ_REQUEST; return p },
			BadOpcode},
		{"P_Key", send, func(p []byte) []byte { p[2], p[3] = 0x80, 0; return p }, BadPKey},
		{"QPN 0", send, func(p []byte) []byte { p[5], p[6], p[7] = 0, 0, 0; return p }, BadQPN},
		{"multicast QPN", send, func(p []byte) []byte { p[5], p[6], p[7] = 0xff, 0xff, 0xff; return p }, BadQPN},
		{"pad without payload", send, func(p []byte) []byte { return p[:16] }, BadLength},
		{"response too long", ack, func(p []byte) []byte { return append(p, 0, 0, 0, 0) }, BadLength},
		{"response too short", ack, func(p []byte) []byte { return p[:16] }, BadLength},
		{"reserved kind of response", ack, func(p []byte) []byte { p[12] = 0x40; return p }, BadSyndrome},
		{"reserved bit", ack, func(p []byte) []byte { p[12] = 0x80; return p }, BadSyndrome},
		{"reserved NAK", ack, func(p []byte) []byte { p[12] = 0x65; return p }, BadSyndrome},
		{"NAK of reliable datagrams", ack, func(p []byte) []byte { p[12] = 0x64; return p }, BadSyndrome},
		{"atomic with a NAK", atomic, func(p []byte) []byte { p[12] = 0x62; return p }, BadSyndrome},
		{"Q_Key", cm[0], func(p []byte) []byte { p[12] = 0; return p }, BadQKey},
		{"class", cm[0], func(p []byte) []byte { p[21] = 3; return p }, BadMAD},
		{"to QP 1, with immediate data", withImm, toManager, BadMAD},
		{"to QP 1, too long", packetOf(example(ibv.QPT_UD, ibv.WR_SEND, pattern(260))), toManager, BadLength},
		{"to QP 1, empty", datagram, toManager, BadMAD},
	} {
		var d Decoder
		kind, reason := d.Decode(c.harm(bytes.Clone(c.of)), alice, bob)
		assert.Equal(t, Refused, kind, c.name)
		assert.Equal(t, c.want, reason, c.name)
		kind, reason = d.Decode(c.of, alice, bob)
		assert.NotEqual(t, Refused, kind, "%s, without the error: %v", c.name, reason)
	}
	names := map[string]bool{}
	for r := Accepted; r < Reasons; r++ {
		assert.Regexp(t, "^[a-z_]+$", r.String())
		names[r.String()] = true
	}
	assert.Len(t, names, int(Reasons))
}

// toManager readdresses a datagram to the connection manager.
func toManager(p []byte) []byte {
	p[5], p[6], p[7] = 0, 0, cmQPN
	order.PutUint32(p[bthSize:], cmQKey)
	return p
}

// TestIgnoredBits: meaningless bits are ignored: the acknowledgement request on unreliable transports, and the
// solicited bit before the last packet.
func TestIgnoredBits(t *testing.T) {
	var d Decoder
	for _, transport := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC} {
		m := example(transport, ibv.WR_SEND, pattern(2048))
		var out packetList
		AppendRequest(&out, m)
		for i, p := range out {
			p[1] |= solicitedBit
			p[8] |= 0x80
			d.Decode(p, alice, bob)
			assert.Equal(t, i == 1, d.Request.Solicited)
			assert.Equal(t, transport == ibv.QPT_RC, d.Request.AckReq)
		}
	}
}

// TestFlush: the FETH precedes the RETH, with the level above the placement, as on Soft-RoCE.
func TestFlush(t *testing.T) {
	var out packetList
	AppendRequest(&out, example(ibv.QPT_RC, ibv.WR_FLUSH, nil))
	assert.Equal(t, []byte{0, 0, 0, 0x12, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}, out[0][12:24])
	assert.Equal(t, []byte{0x99, 0xaa, 0xbb, 0xcc, 0xfe, 0xdc, 0xba, 0x98}, out[0][24:32])
}

// TestCongestion: a congestion notification is neither a request nor an answer.
func TestCongestion(t *testing.T) {
	p := make([]byte, 32)
	h := bth{opcode: 0x81, pkey: 0xffff, qpn: 7}
	h.put(p)
	var d Decoder
	kind, reason := d.Decode(p, alice, bob)
	assert.Equal(t, Notification, kind, "%v", reason)
}

// TestNoPacket: encoding a message without a packet format panics.
func TestNoPacket(t *testing.T) {
	for _, m := range []message.Request{
		{Transport: ibv.QPT_UC, Opcode: ibv.WR_RDMA_READ},
		{Transport: ibv.QPT_UD, Opcode: ibv.WR_SEND, More: true},
		{Transport: ibv.QPT_RC, Opcode: ibv.WR_LOCAL_INV},
		{Transport: ibv.QPT_RC, Opcode: 99},
		{Transport: ibv.QPT_RAW_PACKET, Opcode: ibv.WR_SEND},
		{Transport: ibv.QPT_RC, Opcode: ibv.WR_RDMA_READ, Continues: true},
	} {
		assert.Panics(t, func() { AppendRequest(new(packetList), &m) }, fmt.Sprint(m.Transport, m.Opcode))
	}
}

// seeds returns packets of every kind.
func seeds(f *testing.F) (out packetList) {
	for code := range shapes {
		if s := &shapes[code]; s.kind == Request {
			m := example(s.transport, s.opcode, pattern(5))
			m.Continues, m.More = s.part.continues(), s.part.more()
			AppendRequest(&out, m)
		}
	}
	for _, a := range answerExamples(pattern(1025)) {
		AppendAnswer(&out, a)
	}
	require.NoError(f, AppendMAD(&out, cmRequest(), 0))
	return out
}

// inside reports whether a payload lies within a packet, before its ICRC.
func inside(p []byte, list []mem.Segment) bool {
	for _, s := range list {
		begin, end := mem.AddressOf(&p[0]), mem.AddressOf(&p[len(p)-icrcSize])
		if s.Base < begin+bthSize || s.Base > end || s.Length > end-s.Base {
			return false
		}
	}
	return true
}

// FuzzDecode: arbitrary bytes are rejected, or decoded to a message whose payload lies within them and which encodes to
// the same packet.
func FuzzDecode(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var d, again Decoder
		var out packetList
		kind, reason := d.Decode(p, alice, bob)
		require.Equal(t, kind == Refused, reason != Accepted)
		switch kind {
		case Request:
			m := &d.Request
			require.True(t, inside(p, m.Payload))
			require.LessOrEqual(t, lengthOf(m.Payload), uint64(MaxPayload))
			AppendRequest(&out, m)
			require.Len(t, out, 1)
			_, reason = again.Decode(out[0], alice, bob)
			require.Equal(t, Accepted, reason)
			require.Equal(t, bytesOf(m.Payload), bytesOf(again.Request.Payload))
			m.Payload, again.Request.Payload = nil, nil
			require.Equal(t, d.Request, again.Request)
		case Answer:
			a := &d.Answer
			require.True(t, inside(p, a.Data))
			AppendAnswer(&out, a)
			require.Len(t, out, 1)
			_, reason = again.Decode(out[0], alice, bob)
			require.Equal(t, Accepted, reason)
			require.Equal(t, bytesOf(a.Data), bytesOf(again.Answer.Data))
			a.Data, again.Answer.Data = nil, nil
			require.Equal(t, d.Answer, again.Answer)
		case MAD:
			require.NoError(t, AppendMAD(&out, &d.MAD, 0))
			_, reason = again.Decode(out[0], alice, bob)
			require.Equal(t, Accepted, reason)
			require.Equal(t, d.MAD, again.MAD)
		}
	})
}

// FuzzCheck: sealing arbitrary bytes makes their ICRC right. Bytes that are too short have none.
func FuzzCheck(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p, uint16(0), uint16(7))
	}
	f.Fuzz(func(t *testing.T, p []byte, id, assumed uint16) {
		for _, c := range [][2]*Endpoint{{&alice4, &bob4}, {&alice6, &bob6}, {&alice4, &bob6}} {
			Check(p, c[0], c[1], assumed)
			if len(p) < bthSize+icrcSize || len(p)%4 != 0 || len(p) > MaxSize {
				continue
			}
			sealed := bytes.Clone(p)
			Seal(sealed, c[0], c[1], id)
			require.Equal(t, p[:len(p)-icrcSize], sealed[:len(p)-icrcSize])
			got, ok := Check(sealed, c[0], c[1], assumed)
			require.True(t, ok)
			if c[0].is4() && c[1].is4() {
				require.Equal(t, id, got)
			}
		}
	})
}
