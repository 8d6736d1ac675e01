// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// same is an Output that reuses its memory for each packet.
type same struct {
	b []byte
	p []byte // the last packet
}

func (s *same) Packet(n int) []byte {
	s.p = s.b[:n]
	return s.p
}

// roundTrip runs the steps of a packet from the requester to the responder.
type roundTrip struct {
	out  same
	m    *message.Request
	d    Decoder
	last [2]*Endpoint
}

func newRoundTrip(n int, from, to *Endpoint) *roundTrip {
	of := pattern(n)
	m := example(ibv.QPT_RC, ibv.WR_RDMA_WRITE, nil)
	m.MTU, m.Payload, m.Length = 4096, []mem.Segment{{Base: mem.AddressOf(&of[0]), Length: uint64(n)}}, uint64(n)
	return &roundTrip{out: same{b: make([]byte, MaxSize)}, m: m, last: [2]*Endpoint{from, to}}
}

func (w *roundTrip) encode()          { AppendRequest(&w.out, w.m) }
func (w *roundTrip) seal()            { Seal(w.out.p, w.last[0], w.last[1], 7) }
func (w *roundTrip) check()           { w.checkWith(7) }
func (w *roundTrip) solve()           { w.checkWith(0x1234) }
func (w *roundTrip) checkWith(id int) { _, _ = Check(w.out.p, w.last[0], w.last[1], uint16(id)) }
func (w *roundTrip) decode()          { w.d.Decode(w.out.p, alice, bob) }

func (w *roundTrip) steps() map[string]func() {
	return map[string]func(){"encode": w.encode, "seal": w.seal, "check": w.check, "solve": w.solve, "decode": w.decode}
}

// TestAllocations: encoding and decoding packets does not allocate.
func TestAllocations(t *testing.T) {
	for _, c := range [][2]*Endpoint{{&alice4, &bob4}, {&alice6, &bob6}} {
		w := newRoundTrip(1024, c[0], c[1])
		for name, f := range w.steps() {
			assert.Zero(t, testing.AllocsPerRun(10, func() { w.encode(); w.seal(); f() }), name)
		}
		a := &message.Answer{Transport: ibv.QPT_RC, DestQP: 1, PKey: 1, Kind: message.ReadData, Data: w.m.Payload}
		assert.Zero(t, testing.AllocsPerRun(10, func() { AppendAnswer(&w.out, a); w.decode() }))
	}
}

func BenchmarkPacket(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		w := newRoundTrip(n, &alice4, &bob4)
		for name, f := range w.steps() {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				w.encode()
				w.seal()
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					f()
				}
			})
		}
	}
}
