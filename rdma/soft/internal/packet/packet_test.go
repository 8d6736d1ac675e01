// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// packetList is an Output that keeps copies of the packets, in memory filled with other bytes.
type packetList [][]byte

func (k *packetList) Packet(n int) []byte {
	*k = append(*k, bytes.Repeat([]byte{0xa5}, n))
	return (*k)[len(*k)-1]
}

var (
	alice = message.Address{Link: 2, GID: gid4(192, 0, 2, 1)}
	bob   = message.Address{Link: 3, GID: gid4(192, 0, 2, 2)}
)

func gid4(a, b, c, d byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 14: c, 15: d} }

// pattern returns n varying bytes.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// segments splits bytes into several segments, including an empty one.
func segments(b []byte) (list []mem.Segment) {
	for _, n := range []int{1, 0, len(b) / 3, len(b)} {
		n = min(n, len(b))
		list = append(list, mem.Segment{Length: uint64(n)})
		if n > 0 {
			list[len(list)-1].Base = mem.AddressOf(&b[0])
		}
		b = b[n:]
	}
	return list
}

// bytesOf returns the contents of a list of segments.
func bytesOf(list []mem.Segment) []byte {
	b := make([]byte, lengthOf(list))
	(&cursor{list: list}).fill(b)
	return b
}

// example returns a request with a distinct value in every field that its packets carry.
func example(t ibv.QPType, op ibv.WROpcode, of []byte) *message.Request {
	m := &message.Request{From: alice, To: bob, Transport: t, Opcode: op, PKey: 0x8001, DestQP: 0x123456, PSN: 0xfffffe,
		Packets: 1, MTU: 1024, AckReq: reliable(t)}
	s := &shapes[requestCode(t, op, only)]
	if s.has(payload) {
		m.Payload, m.Length = segments(of), uint64(len(of))
		m.Solicited = true
	}
	if s.has(deth) {
		m.QKey, m.SourceQP = 0x81234567, 0xabcdef
	}
	if s.has(dynETH) {
		m.Key, m.Life, m.SourceQP = 0xf1e1d1c1b1a19181, 0x0807060504030201, 0xabcdef
	}
	if s.has(xrceth) {
		m.SRQ = 0x654321
	}
	if s.has(reth | atomicETH) {
		m.Remote, m.RKey = 0x1122334455667788, 0x99aabbcc
	}
	switch op {
	case ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM:
		m.Imm = ibv.ToBE32(0xdeadbeef)
	case ibv.WR_SEND_WITH_INV:
		m.Imm = 0xfeedface
	case ibv.WR_RDMA_READ:
		m.Length = uint64(len(of))
	case ibv.WR_FLUSH:
		m.Length, m.Placement, m.Level = 0xfedcba98, uint32(ibv.FLUSH_PERSISTENT), uint32(ibv.FLUSH_MR)
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		m.Length, m.Operand, m.Swap = 8, 0x0102030405060708, 0x1112131415161718
	case ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_WRITE:
		m.Length, m.Operand = 8, 0x0102030405060708
	}
	return m
}

// kinds calls a function for each kind of request, with payloads of several lengths.
func kinds(t *testing.T, f func(*testing.T, *message.Request, []byte)) {
	for _, tr := range transports {
		for op := range codes {
			op := ibv.WROpcode(op)
			if !supports(tr.transport, op) {
				continue
			}
			for _, n := range []int{0, 1, 1023, 1024, 1025, 5001} {
				if tr.transport == ibv.QPT_UD && n > 1024 {
					continue
				}
				t.Run(fmt.Sprintf("%v/%v/%d", tr.transport, op, n), func(t *testing.T) {
					of := pattern(n)
					f(t, example(tr.transport, op, of), of)
				})
			}
		}
	}
}

// supports reports whether a transport supports an operation.
func supports(t ibv.QPType, op ibv.WROpcode) (ok bool) {
	for code := range shapes {
		s := &shapes[code]
		ok = ok || s.kind == Request && s.transport == t && s.opcode == op
	}
	return ok
}

// TestRequests: decoding the packets of a request returns the request, part by part.
func TestRequests(t *testing.T) {
	seen := map[uint8]bool{}
	kinds(t, func(t *testing.T, m *message.Request, of []byte) {
		var out packetList
		AppendRequest(&out, m)
		var d Decoder
		var got message.Request
		var data []byte
		for i, p := range out {
			seen[p[0]] = true
			kind, reason := d.Decode(p, alice, bob)
			require.Equal(t, Request, kind, "%v", reason)
			r := &d.Request
			assert.Equal(t, i > 0, r.Continues)
			assert.Equal(t, i < len(out)-1, r.More)
			assert.Equal(t, (m.PSN+uint32(i))&number, r.PSN)
			if r.More {
				assert.EqualValues(t, m.MTU, lengthOf(r.Payload))
				assert.False(t, r.Solicited || r.AckReq)
			}
			if shapes[p[0]].has(payload) && !shapes[p[0]].has(reth) {
				assert.Equal(t, lengthOf(r.Payload), r.Length)
			}
			data = append(data, bytesOf(r.Payload)...)
			if i == 0 {
				got = *r
				continue
			}
			got.Opcode, got.Imm, got.Solicited, got.AckReq = r.Opcode, r.Imm, r.Solicited, r.AckReq
			got.Packets++
		}
		if shapes[out[0][0]].has(payload) {
			assert.True(t, bytes.Equal(of, data), "the payload differs")
			assert.Len(t, out, max(1, (len(of)+1023)/1024))
			got.Length = m.Length
		} else {
			assert.Len(t, out, 1)
			assert.Empty(t, data)
		}
		m.MTU, m.Packets, m.Payload, got.Payload, got.More = 0, uint32(len(out)), nil, nil, false
		assert.Equal(t, m, &got)
	})
	for code := range shapes {
		assert.Equal(t, shapes[code].kind == Request, seen[uint8(code)], "opcode %#x", code)
	}
}

// TestLengthOfWrites: the first packet of a write carries the length of the complete message, even if it is sent in
// parts.
func TestLengthOfWrites(t *testing.T) {
	m := example(ibv.QPT_RC, ibv.WR_RDMA_WRITE, pattern(5001))
	var out packetList
	AppendRequest(&out, m)
	var d Decoder
	d.Decode(out[0], alice, bob)
	assert.EqualValues(t, 5001, d.Request.Length)
	assert.EqualValues(t, 1024, lengthOf(d.Request.Payload))
}

// TestParts: a message sent in parts has the same packets as a complete one, except for acknowledgement requests.
func TestParts(t *testing.T) {
	kinds(t, func(t *testing.T, m *message.Request, of []byte) {
		if len(m.Payload) == 0 || m.Transport == ibv.QPT_UD || len(of) <= 1024 {
			return
		}
		var complete, parts packetList
		m.AckReq = false
		AppendRequest(&complete, m)
		for at := 0; at < len(of); at += 2048 {
			part := *m
			n := min(2048, len(of)-at)
			part.Payload = segments(of[at : at+n])
			part.Continues, part.More, part.PSN = at > 0, at+n < len(of), m.PSN+uint32(at/1024)
			AppendRequest(&parts, &part)
		}
		assert.Equal(t, complete, parts)
	})
}

// answerExamples are one answer of each kind.
func answerExamples(of []byte) map[string]*message.Answer {
	all := map[string]*message.Answer{}
	for name, a := range map[string]message.Answer{
		"ack":          {},
		"not ready":    {Syndrome: message.NotReady, Timer: 31},
		"invalid":      {Syndrome: message.InvalidRequest},
		"access":       {Syndrome: message.RemoteAccess},
		"operation":    {Syndrome: message.RemoteOperation},
		"out of order": {Syndrome: message.OutOfOrder},
		"atomic":       {Kind: message.AtomicData, Original: 0x0102030405060708},
		"read":         {Kind: message.ReadData, Data: segments(of), MTU: 1024},
	} {
		a.From, a.To, a.DestQP, a.PSN, a.PKey, a.Count = bob, alice, 0x123456, 0xffffff, 0x8001, 0x345678
		for _, t := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND, ibv.QPT_DRIVER} {
			a := a
			a.Transport = t
			if t == ibv.QPT_DRIVER {
				a.Life = 0x0807060504030201
			}
			all[fmt.Sprintf("%v/%s", t, name)] = &a
		}
	}
	return all
}

// TestAnswers: decoding the packets of an answer returns the answer.
func TestAnswers(t *testing.T) {
	seen := map[uint8]bool{}
	for _, n := range []int{0, 1, 1023, 1024, 1025, 5001} {
		of := pattern(n)
		for name, a := range answerExamples(of) {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				var out packetList
				AppendAnswer(&out, a)
				var d Decoder
				var got message.Answer
				var data []byte
				for i, p := range out {
					seen[p[0]] = true
					kind, reason := d.Decode(p, bob, alice)
					require.Equal(t, Answer, kind, "%v", reason)
					assert.Equal(t, i > 0, d.Answer.Continues)
					assert.Equal(t, i < len(out)-1, d.Answer.More)
					assert.Equal(t, (a.PSN+uint32(i))&number, d.Answer.PSN)
					if i == 0 || i == len(out)-1 {
						assert.Equal(t, a.Count, d.Answer.Count)
					}
					data = append(data, bytesOf(d.Answer.Data)...)
					if i == 0 {
						got = d.Answer
					}
				}
				if a.Kind == message.ReadData {
					assert.True(t, bytes.Equal(of, data), "the data differs")
					assert.Len(t, out, max(1, (n+1023)/1024))
				}
				want := *a
				want.MTU, want.Data, got.Data, got.More = 0, nil, nil, false
				assert.Equal(t, want, got)
			})
		}
	}
	for code := range shapes {
		assert.Equal(t, shapes[code].kind == Answer, seen[uint8(code)], "opcode %#x", code)
	}
}

// TestNAKsHaveNoData: a rejected request is answered with a NAK, whatever its operation.
func TestNAKsHaveNoData(t *testing.T) {
	for _, kind := range []message.Kind{message.ReadData, message.AtomicData} {
		var out packetList
		AppendAnswer(&out, &message.Answer{Kind: kind, Syndrome: message.RemoteAccess, Transport: ibv.QPT_RC,
			Data: segments(pattern(5001))})
		require.Len(t, out, 1)
		assert.EqualValues(t, ibv.OPCODE_RC_ACKNOWLEDGE, out[0][0])
		assert.EqualValues(t, 0x62, out[0][12])
	}
}

// TestNullRegion: the payload of a null region is zeros.
func TestNullRegion(t *testing.T) {
	b := pattern(3)
	var out packetList
	AppendRequest(&out, &message.Request{Transport: ibv.QPT_RC, Opcode: ibv.WR_SEND, DestQP: 1, MTU: 256,
		Payload: []mem.Segment{{Base: mem.AddressOf(&b[0]), Length: 3}, {Length: 300}}})
	require.Len(t, out, 2)
	want := make([]byte, 303+1+2*bthSize)
	copy(want[bthSize:], b)
	assert.Equal(t, want[bthSize:bthSize+256], out[0][bthSize:][:256])
	assert.Equal(t, make([]byte, 48), out[1][bthSize:][:48])
}
