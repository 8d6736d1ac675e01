// SPDX-License-Identifier: BSD-2-Clause

package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDistance(t *testing.T) {
	assert.EqualValues(t, 1, Distance(0, psnMask))
	assert.EqualValues(t, -1, Distance(psnMask, 0))
	assert.EqualValues(t, 1<<23-1, Distance(1<<23-1, 0))
	assert.EqualValues(t, -1<<23, Distance(1<<23, 0))
	assert.EqualValues(t, 3, Next(psnMask, 4))
}

// packet is a request of one packet, or a response.
type packet struct {
	psn     uint32
	message int
	ask     bool
	reads   uint32 // packets requested by a read
	last    bool
	answers bool
	kind    string // responses: ack, nak, data
}

// channel loses, repeats and reorders packets.
type channel struct {
	*rand.Rand
	loss    float64
	packets []packet
}

func (c *channel) send(p packet) {
	for range 1 + c.bit() {
		if c.Float64() < c.loss {
			continue
		}
		at := len(c.packets)
		for at > 0 && c.Float64() < c.loss {
			at--
		}
		c.packets = append(c.packets[:at], append([]packet{p}, c.packets[at:]...)...)
	}
}

func (c *channel) bit() int {
	if c.Float64() < c.loss {
		return 1
	}
	return 0
}

// world is a sender of messages, some of which are reads, and their receiver.
type world struct {
	t        *testing.T
	random   *rand.Rand
	sender   Sender
	recv     Receiver
	forward  channel
	backward channel

	messages []struct {
		packets uint32
		reads   bool
	}
	begun, taken int
	arrived      []int          // executed messages
	data         map[int]uint32 // received packets of each read
}

// step moves one packet, and reports whether it made progress.
func (w *world) step() bool {
	s := &w.sender
	for s.Done() {
		s.Take()
		w.taken++
	}
	if p, ok := s.Next(4); ok {
		m := w.messages[w.taken+p.Message]
		s.Sent(p)
		if m.reads {
			w.forward.send(packet{psn: p.PSN, message: w.taken + p.Message, reads: p.Packets, last: p.Last})
			return true
		}
		ask := s.Asks(p, w.begun < len(w.messages) && !w.messages[w.begun].reads)
		for i := range p.Packets {
			w.forward.send(packet{psn: Next(p.PSN, i), message: w.taken + p.Message, ask: ask && i == p.Packets-1,
				last: p.Last && i == p.Packets-1})
		}
		return true
	}
	if w.begun < len(w.messages) && w.random.IntN(3) > 0 {
		m := w.messages[w.begun]
		s.Begin(m.packets, m.reads)
		w.begun++
		return true
	}
	if n := len(w.forward.packets); n > 0 {
		p := w.forward.packets[0]
		w.forward.packets = w.forward.packets[1:]
		w.receive(p)
		return true
	}
	if len(w.backward.packets) > 0 {
		p := w.backward.packets[0]
		w.backward.packets = w.backward.packets[1:]
		switch p.kind {
		case "ack":
			s.Acknowledge(Next(p.psn, 1))
		case "nak":
			s.Acknowledge(p.psn)
			if s.Oldest() == p.psn && s.Waits() {
				s.Missing()
			}
		case "data":
			if i, n, ok := s.Answer(p.psn); ok {
				require.Equal(w.t, w.data[w.taken+i], n, "data in order, once")
				w.data[w.taken+i]++
				s.Answered(i)
			}
		}
		return true
	}
	return w.begun < len(w.messages)
}

func (w *world) receive(p packet) {
	r := &w.recv
	data := func() {
		for i := range p.reads {
			w.backward.send(packet{psn: Next(p.psn, i), kind: "data"})
		}
	}
	switch r.Arrives(p.psn) {
	case Gap:
		w.backward.send(packet{psn: r.Expects, kind: "nak"})
	case Repeated:
		if p.reads > 0 {
			more := Distance(Next(p.psn, p.reads), r.Expects)
			require.LessOrEqual(w.t, more, int32(0), "a repeated read requests the same packets")
			data()
		} else if p.ask {
			w.backward.send(packet{psn: Next(r.Expects, psnMask), kind: "ack"})
		}
	case Expected:
		if p.last {
			w.arrived = append(w.arrived, p.message)
		}
		if p.reads > 0 {
			r.Took(p.reads, p.last)
			data()
			return
		}
		if r.Took(1, p.last); p.ask {
			w.backward.send(packet{psn: p.psn, kind: "ack"})
		}
	}
}

// TestLoss: under loss, repetition and reordering, every message is executed once, in order, and every read is
// answered, even when sequence numbers wrap.
func TestLoss(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			loss := float64(seed%4) * 0.08
			w := &world{t: t, random: random, forward: channel{Rand: random, loss: loss},
				backward: channel{Rand: random, loss: loss}, data: map[int]uint32{}}
			psn := uint32(psnMask - random.IntN(300))
			w.sender.Reset(psn, uint32(8+random.IntN(121)))
			w.recv.Reset(psn)
			for range 200 {
				packets, reads := uint32(1), random.IntN(4) == 0
				if random.IntN(3) == 0 {
					packets += uint32(random.IntN(40))
				}
				w.messages = append(w.messages, struct {
					packets uint32
					reads   bool
				}{packets, reads})
			}
			timeouts := 0
			for w.taken < len(w.messages) {
				if w.step() || w.taken == len(w.messages) {
					continue
				}
				require.True(t, w.sender.Waits(), "no packet is in flight, but %d of %d messages are incomplete",
					len(w.messages)-w.taken, len(w.messages))
				timeouts++
				require.Less(t, timeouts, 20000)
				w.sender.Back(true)
			}
			require.Len(t, w.arrived, len(w.messages))
			for i, m := range w.arrived {
				require.Equal(t, i, m)
				if w.messages[i].reads {
					require.Equal(t, w.messages[i].packets, w.data[i])
				}
			}
			if loss == 0 {
				assert.Zero(t, timeouts)
			}
			assert.Zero(t, w.sender.Asking())
			assert.Zero(t, w.sender.Len())
		})
	}
}

// TestRetransmitAlone: the first retransmitted packet is sent alone with an acknowledgement request. Later packets are
// sent in parts as before.
func TestRetransmitAlone(t *testing.T) {
	for _, backward := range []func(*Sender){
		func(s *Sender) { s.Back(true) }, func(s *Sender) { s.Back(false) }, func(s *Sender) { s.Missing() },
	} {
		var s Sender
		s.Reset(5, 64)
		s.Begin(40, false)
		parts := func() (all []Part, asks []bool) {
			for p, ok := s.Next(8); ok; p, ok = s.Next(8) {
				all, asks = append(all, p), append(asks, s.Asks(p, true))
				s.Sent(p)
			}
			return all, asks
		}
		first, _ := parts()
		require.EqualValues(t, 8, first[0].Packets)
		backward(&s)
		again, asks := parts()
		require.EqualValues(t, 5, again[0].PSN)
		require.EqualValues(t, 1, again[0].Packets)
		require.True(t, asks[0])
		require.Greater(t, again[1].Packets, uint32(1))
	}
}
