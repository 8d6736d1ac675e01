// SPDX-License-Identifier: BSD-2-Clause

// Package packets is a wire for tests: it makes RoCEv2 packets of every message, and a message of each packet that
// arrives. In between, some packets are lost, repeated, late, overtaken or damaged.
package packets

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Losses are probabilities, from 0 to 1, of what becomes of a packet. Nothing happens to those of unreliable
// transports, which nobody sends again, and to hints of the connection manager (message.MAD.IsHint).
type Losses struct {
	Seed                             uint64
	Drop, Duplicate, Reorder, Damage float64
	Delay                            float64 // by up to a hundred times the usual time
	// Times is how often the same packet of a connection is lost or damaged at most; 0 is any number of times. So no
	// queue pair runs out of retries by chance.
	Times int
}

// Named are the losses that a name asks for: "lossy:2:5" are 5 % of each kind, as the seed 2 draws them; "lossy" is
// seed 1, and 10 %.
func Named(name string) (l Losses, ok bool) {
	name, numbers, _ := strings.Cut(name, ":")
	if name != "lossy" {
		return l, false
	}
	before, behind, _ := strings.Cut(numbers, ":")
	seed, _ := strconv.ParseUint(before, 10, 64)
	percent, err := strconv.ParseUint(behind, 10, 8)
	if err != nil {
		percent = 10
	}
	return Evenly(max(seed, 1), float64(percent)/100), true
}

// Evenly are losses of all kinds, each as likely as the others, that a retry count of 7 makes up for.
func Evenly(seed uint64, p float64) Losses {
	return Losses{Seed: seed, Drop: p, Duplicate: p, Reorder: p, Damage: p, Delay: p, Times: 2}
}

// Wire brings packets to the wire below it, which brings their messages.
type Wire struct {
	below   wire.Wire
	later   func(time.Duration, func())
	losses  Losses
	random  *rand.Rand
	decoder packet.Decoder
	psn     uint32 // of management datagrams
	flow    *flow  // that is filled
	Refused map[packet.Reason]int
	harmed  map[sequence]int
	watch   func(p []byte, from, to *packet.Endpoint)
}

// sequence is a packet of a connection, by the queue pair that it is for.
type sequence struct{ qpn, psn uint32 }

// remembered is how many packets the wire remembers to have harmed.
const remembered = 1 << 12

// flow is what one message, or part of one, is as packets.
type flow struct {
	from, to message.Address
	route    message.Route // of the IP header
	safe     bool          // nobody would send it again
	packets  [][]byte
}

// travel is how long a packet takes.
const travel = time.Microsecond

// Over makes a wire. Later calls a function after a time with the fabric's lock.
func Over(below wire.Wire, f Losses, later func(time.Duration, func())) *Wire {
	return &Wire{below: below, later: later, losses: f, random: rand.New(rand.NewPCG(f.Seed, 1)),
		Refused: map[packet.Reason]int{}, harmed: map[sequence]int{}}
}

// Watch has a function called with each packet that is sent, whatever becomes of it.
func (w *Wire) Watch(f func(p []byte, from, to *packet.Endpoint)) { w.watch = f }

// Packet is memory for a packet.
func (f *flow) Packet(n int) []byte {
	f.packets = append(f.packets, make([]byte, n))
	return f.packets[len(f.packets)-1]
}

// Packets says that messages to all addresses are packets.
func (w *Wire) Packets(*message.Address) bool { return true }

// Send brings the packets of a request.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	f := &flow{from: m.From, to: m.To, route: m.Route, safe: !m.IsReliable()}
	packet.AppendRequest(f, m)
	w.send(f)
	return nil, 0
}

// Answer brings the packets of an answer.
func (w *Wire) Answer(a *message.Answer) {
	f := &flow{from: a.From, to: a.To}
	packet.AppendAnswer(f, a)
	w.send(f)
}

// SendMAD brings the packet of a datagram of the connection manager.
func (w *Wire) SendMAD(m *message.MAD) {
	f := &flow{from: m.From, to: m.To, safe: m.IsHint()}
	w.psn++
	if err := packet.AppendMAD(f, m, w.psn); err != nil {
		panic(err) // what the connection manager says fits its messages
	}
	w.send(f)
}

// Routes says what the wire below says.
func (w *Wire) Routes(from, to message.Address) bool { return w.below.Routes(from, to) }

func (w *Wire) chance(p float64) bool { return p > 0 && w.random.Float64() < p }

func (w *Wire) send(f *flow) {
	for _, p := range f.packets {
		from, to := ends(f)
		packet.Seal(p, &from, &to, 0)
		if w.watch != nil {
			w.watch(p, &from, &to)
		}
		if f.safe {
			w.later(travel, func() { w.arrive(f, p) })
			continue
		}
		drop, damage := w.harms(p)
		if drop {
			continue
		}
		times := 1
		if w.chance(w.losses.Duplicate) {
			times = 2
		}
		if damage {
			p[w.random.IntN(len(p))] ^= 1 << w.random.IntN(8)
		}
		for range times {
			d := travel
			switch {
			case w.chance(w.losses.Reorder):
				d = 3 * travel / 2
			case w.chance(w.losses.Delay):
				d += time.Duration(w.random.IntN(100)) * travel
			}
			w.later(d, func() { w.arrive(f, p) })
		}
	}
}

// harms says what happens to a packet.
func (w *Wire) harms(p []byte) (drop, damage bool) {
	if drop, damage = w.chance(w.losses.Drop), w.chance(w.losses.Damage); !drop && !damage || w.losses.Times == 0 {
		return drop, damage
	}
	s := sequence{binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint32(p[8:]) &^ (1 << 31)}
	if w.harmed[s] >= w.losses.Times {
		return false, false
	}
	if len(w.harmed) == remembered {
		clear(w.harmed)
	}
	w.harmed[s]++
	return drop, damage
}

func ends(f *flow) (from, to packet.Endpoint) {
	return packet.Endpoint{GID: f.from.GID, Port: packet.Port}, packet.Endpoint{GID: f.to.GID, Port: packet.Port}
}

// arrive brings what a packet says.
func (w *Wire) arrive(f *flow, p []byte) {
	from, to := ends(f)
	if _, ok := packet.Check(p, &from, &to, 0); !ok {
		w.Refused[packet.BadICRC]++
		return
	}
	d := &w.decoder
	switch kind, reason := d.Decode(p, f.from, f.to); kind {
	case packet.Request:
		d.Request.Route = f.route
		w.below.Send(&d.Request)
	case packet.Answer:
		w.below.Answer(&d.Answer)
	case packet.MAD:
		w.below.SendMAD(&d.MAD)
	default:
		w.Refused[reason]++
	}
}
