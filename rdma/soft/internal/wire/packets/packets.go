// SPDX-License-Identifier: BSD-2-Clause

// Package packets implements a wire for tests that converts every message to RoCEv2 packets and back. In between, some
// packets are lost, repeated, delayed, reordered or damaged.
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

// Losses are probabilities, from 0 to 1, of faults of a packet. Packets of unreliable transports, which are not
// retransmitted, and hints of the connection manager (message.MAD.IsHint) are not affected.
type Losses struct {
	Seed                             uint64
	Drop, Duplicate, Reorder, Damage float64
	Delay                            float64 // by up to a hundred times the usual time
	// Times limits how often the same packet of a connection is lost or damaged, so that no queue pair runs out of
	// retries by chance; 0 means no limit.
	Times int
}

// Named parses losses: "lossy:2:5" is 5 % of each kind with seed 2; "lossy" is 10 % with seed 1.
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

// Evenly returns losses of all kinds with equal probability, from which a retry count of 7 recovers.
func Evenly(seed uint64, p float64) Losses {
	return Losses{Seed: seed, Drop: p, Duplicate: p, Reorder: p, Damage: p, Delay: p, Times: 2}
}

// Wire converts messages to packets and delivers them to the wire below.
type Wire struct {
	below   wire.Wire
	later   func(time.Duration, func())
	losses  Losses
	random  *rand.Rand
	decoder packet.Decoder
	psn     uint32 // PSN of management datagrams
	flow    *flow  // being filled
	Refused map[packet.Reason]int
	harmed  map[sequence]int
	watch   func(p []byte, from, to *packet.Endpoint)
}

// sequence identifies a packet of a connection by its destination queue pair and PSN.
type sequence struct{ qpn, psn uint32 }

// remembered is the number of damaged packets to remember.
const remembered = 1 << 12

// flow holds the packets of a message or of a part of one.
type flow struct {
	from, to message.Address
	route    message.Route // for the IP header
	safe     bool          // not retransmitted, so without faults
	packets  [][]byte
}

// travel is the usual delay of a packet.
const travel = time.Microsecond

// Over returns a wire. later calls a function after a time with the fabric's lock.
func Over(below wire.Wire, f Losses, later func(time.Duration, func())) *Wire {
	return &Wire{below: below, later: later, losses: f, random: rand.New(rand.NewPCG(f.Seed, 1)),
		Refused: map[packet.Reason]int{}, harmed: map[sequence]int{}}
}

// Watch sets a function to call for each packet sent, including lost ones.
func (w *Wire) Watch(f func(p []byte, from, to *packet.Endpoint)) { w.watch = f }

// Packet returns memory for a packet.
func (f *flow) Packet(n int) []byte {
	f.packets = append(f.packets, make([]byte, n))
	return f.packets[len(f.packets)-1]
}

// Packets returns true: all messages are sent as packets.
func (w *Wire) Packets(*message.Address) bool { return true }

// Send sends the packets of a request.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	f := &flow{from: m.From, to: m.To, route: m.Route, safe: !m.IsReliable()}
	packet.AppendRequest(f, m)
	w.send(f)
	return nil, 0
}

// Answer sends the packets of an answer.
func (w *Wire) Answer(a *message.Answer) {
	f := &flow{from: a.From, to: a.To}
	packet.AppendAnswer(f, a)
	w.send(f)
}

// SendMAD sends the packet of a datagram of the connection manager.
func (w *Wire) SendMAD(m *message.MAD) {
	f := &flow{from: m.From, to: m.To, safe: m.IsHint()}
	w.psn++
	if err := packet.AppendMAD(f, m, w.psn); err != nil {
		panic(err) // the connection manager's values fit their fields
	}
	w.send(f)
}

// Routes asks the wire below.
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

// harms draws the faults of a packet.
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

// arrive delivers the message of a packet.
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
