// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

// batch is packets to be sent, one behind the other. Neighbours of one size to one peer are a group, which one system
// call sends.
type batch struct {
	bytes  []byte
	groups []group
	to     toward // where the message goes that is written
	alone  bool   // its packets share no system call with others
	mark   int    // groups before it
	size   int    // packets of the last group before it
	open   bool   // a message is written: if another one begins, its memory was gone
}

// toward is where packets go: several processes may have one address, each with some of the numbers of queue pairs.
type toward struct {
	gid    [16]byte
	member uint8
}

// managerQP is the queue pair of the connection manager. Which process its messages are for is in each of them.
const managerQP = 1

// group is packets of one size, but for the last, which may be shorter.
type group struct {
	to      toward
	alone   bool
	segment int
	begin   int // in bytes
	end     int
	count   int // of packets
}

func (b *batch) isEmpty() bool { return len(b.groups) == 0 }

func (b *batch) reset() { b.bytes, b.groups, b.open = b.bytes[:0], b.groups[:0], false }

// begin begins a message to a queue pair at an address.
func (b *batch) begin(to [16]byte, qpn uint32) {
	if b.open {
		b.cancel()
	}
	b.to, b.alone = toward{to, uint8(udp.MemberOfQP(qpn))}, qpn == managerQP
	b.open, b.mark, b.size = true, len(b.groups), 0
	if n := len(b.groups); n > 0 {
		b.size = b.groups[n-1].count
	}
}

// end ends it.
func (b *batch) end() { b.open = false }

// cancel takes back the packets of the message that was begun: its memory turned out to be gone while they were
// written.
func (b *batch) cancel() {
	b.open = false
	b.groups = b.groups[:b.mark]
	if b.mark > 0 {
		g := &b.groups[b.mark-1]
		g.end = min(g.end, g.begin+b.size*g.segment)
		g.count = b.size
	}
	b.bytes = b.bytes[:0]
	if b.mark > 0 {
		b.bytes = b.bytes[:b.groups[b.mark-1].end]
	}
}

// Packet is memory for a packet of n bytes.
func (b *batch) Packet(n int) []byte {
	at := len(b.bytes)
	if at+n <= cap(b.bytes) {
		b.bytes = b.bytes[:at+n]
	} else {
		b.bytes = append(b.bytes, make([]byte, n)...)
	}
	if k := len(b.groups); k > 0 {
		g := &b.groups[k-1]
		if !b.alone && !g.alone && g.to == b.to && n <= g.segment && g.end-g.begin == g.count*g.segment &&
			g.count < udp.MaxSegments && g.end-g.begin+n <= udp.MaxWrite {
			g.end, g.count = at+n, g.count+1
			return b.bytes[at:]
		}
	}
	g := group{to: b.to, alone: b.alone, segment: n, begin: at, end: at + n, count: 1}
	b.groups = append(b.groups, g)
	return b.bytes[at:]
}

// Take takes the packets that were written, and returns a function that sends them; the caller gives up Fabric.mu in
// between. It waits while others are being sent, so that packets stay in their order. The caller holds Fabric.mu.
func (w *Wire) Take() (send func()) {
	taken := w.filled
	for _, l := range taken {
		if l.out.open { // its memory was gone
			l.out.cancel()
		}
		l.sending.Lock()
		l.out, l.sent = l.sent, l.out
		l.out.reset()
	}
	if len(taken) == 1 { // as it mostly is
		w.filled = w.filled[:0]
		return taken[0].flushes
	}
	w.filled = nil
	return func() {
		for _, l := range taken {
			l.flush()
		}
	}
}

// flush seals and sends. The caller holds Link.sending, which it gives up.
func (l *Link) flush() {
	defer l.sending.Unlock()
	for i := range l.sent.groups {
		g := &l.sent.groups[i]
		to := packet.Endpoint{GID: g.to.gid, Port: packet.Port}
		l.write(g, &to)
	}
}

// wrote counts packets that were sent, of so many bytes.
func (l *Link) wrote(packets, bytes int) {
	l.stats.sent.Add(uint64(packets))
	l.stats.sentBytes.Add(uint64(bytes) + uint64(packets)*l.headers)
}

// patience is how long packets wait for room in the socket's buffer or the device's queue, which hold others that are
// sent. It is more than a slow network takes; behind it, packets are lost, as others are in a network.
const patience = time.Second

// write sends a group.
func (l *Link) write(g *group, to *packet.Endpoint) {
	at := netip.AddrPortFrom(netip.AddrFrom16(to.GID).Unmap(), to.Port)
	b := l.sent.bytes[g.begin:g.end]
	var until time.Time
	for first := true; ; first = false {
		l.seal(b, g.segment, to, first)
		n, err := l.to.Write(at, b, g.segment)
		left := (len(b) - n + g.segment - 1) / g.segment
		l.wrote((n+g.segment-1)/g.segment, n)
		b = b[n:]
		switch {
		case err == nil:
			l.stuck = false
			return
		case errors.Is(err, udp.ErrFull):
			now := time.Now()
			if until.IsZero() || n > 0 {
				until = now.Add(patience)
			}
			if l.stuck || !now.Before(until) {
				l.stuck = true
				l.stats.full.Add(uint64(left))
				return
			}
			if errors.Is(l.to.WaitWrite(until.Sub(now)), net.ErrClosed) {
				return
			}
		case errors.Is(err, udp.ErrSealAgain): // once for a peer
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.stats.unsendable.Add(uint64(left))
			return
		}
	}
}

// seal seals packets of one size as the socket is going to send them, and captures them before the answer can come.
func (l *Link) seal(b []byte, segment int, to *packet.Endpoint, capture bool) {
	counted := l.to.Identification(netip.AddrFrom16(to.GID).Unmap()) == udp.Counted
	for id := uint16(0); len(b) > 0; {
		p := b[:min(segment, len(b))]
		b = b[len(p):]
		packet.Seal(p, &l.own, to, id)
		if capture {
			for _, c := range l.wire.captures.All() {
				c.Packet(time.Now(), p, &l.own, to, id)
			}
		}
		if counted {
			id++
		}
	}
}
