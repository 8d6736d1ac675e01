// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

// stats are the counters of a link.
type stats struct {
	sent, received           atomic.Uint64
	sentBytes, receivedBytes atomic.Uint64 // including IP and UDP headers, as on Soft-RoCE
	unsendable, full         atomic.Uint64 // packets that the system rejected; that timed out waiting for room
	congested, own           atomic.Uint64 // congestion notifications (CNP); multicast datagrams from this fabric
	refused                  [packet.Reasons]atomic.Uint64
}

// Counters adds the link's counters, named as in the kernel's hw_counters where possible. It needs no lock.
func (l *Link) Counters(to map[string]uint64) {
	to["sent_pkts"] += l.stats.sent.Load()
	to["rcvd_pkts"] += l.stats.received.Load()
	to["sent_bytes"] += l.stats.sentBytes.Load()
	to["rcvd_bytes"] += l.stats.receivedBytes.Load()
	to["send_err"] += l.stats.unsendable.Load()
	socket := l.socket.Counters()
	to["udp_sndbuf_errors"] += l.stats.full.Load()
	to["udp_rcvbuf_errors"] += socket.Overflows
	to["rp_cnp_ignored"] += l.stats.congested.Load()
	to["rx_own_multicast"] += l.stats.own.Load()
	for r := packet.Accepted + 1; r < packet.Reasons; r++ {
		to[r.String()] += l.stats.refused[r].Load()
	}
	to[packet.BadSize.String()] += socket.Empty + socket.Truncated
}

// incoming holds the datagrams read from a link. Link.receiving guards it.
type incoming struct {
	link    *Link
	buffer  []byte
	arrival udp.Arrival
	from    message.Address
	right   [udp.MaxRead / smallest]bool // by packet: the ICRC is right
	decoder packet.Decoder
	deliver func() // deliverNow, allocated once
}

// smallest is the size of the smallest packet: a BTH and an ICRC.
const smallest = 16

// receive reads packets until the socket is closed. While a program polls, it leaves reading to Poll: otherwise it
// would wake for every packet, and hold Link.receiving while it is not scheduled.
func (l *Link) receive() {
	defer close(l.closed)
	rest := time.NewTimer(0)
	defer rest.Stop()
	for l.socket.Wait() == nil {
		for n := l.wire.polls.Load(); n > fewPolls; n = l.wire.polls.Load() {
			rest.Reset(recently)
			select {
			case <-rest.C:
			case <-l.wake:
			}
			l.wire.polls.CompareAndSwap(n, 0) // no poll since
		}
		l.receiving.Lock()
		for l.read() {
		}
		l.receiving.Unlock()
	}
}

// A program counts as polling if it has polled more than fewPolls times without result since it armed a completion
// queue, and within the time recently.
const (
	fewPolls = 4
	recently = time.Millisecond
)

// Armed records that a program will wait for an event instead of polling. It needs no lock.
func (w *Wire) Armed() {
	if w.polls.Swap(0) <= fewPolls {
		return
	}
	if all := w.polled.Load(); all != nil {
		for _, l := range *all {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Poll reads available packets, unless another goroutine does, and reports whether there were any. It needs no lock,
// and its caller does not hold Core.Mu.
func (w *Wire) Poll() (came bool) {
	all := w.polled.Load()
	if all == nil {
		return false
	}
	for _, l := range *all {
		if l.receiving.TryLock() {
			came = l.read() || came
			l.receiving.Unlock()
		}
	}
	if came {
		w.empty.Store(0)
		return true
	}
	w.polls.Add(1)
	if w.empty.Add(1)%spins != 0 {
		return false
	}
	return w.giveWay(*all)
}

// A program that polls without result yields its processor at regular intervals. If other threads then run for longer
// than short, the machine is busy, and the peer may be waiting for a processor too. For the time crowded, the program
// then waits in the kernel, for at most linger each time, and is woken by the next packet. Polling instead would keep
// the processor from the peer for milliseconds, and vice versa. It waits only a few times unless that brings packets,
// since completions may have other causes. After that time it polls and measures again.
const (
	spins   = 64
	short   = 500 * time.Microsecond
	crowded = 100 * time.Millisecond
	linger  = 200 * time.Microsecond
	few     = 2
	more    = 16
)

// giveWay yields to other threads, and reports whether a packet arrived.
func (w *Wire) giveWay(all []*Link) (came bool) {
	now := time.Now()
	if len(all) == 1 && now.UnixNano() < w.others.Load() && w.lingers.Add(-1) >= 0 {
		if l := all[0]; l.receiving.TryLock() {
			l.socket.Linger(linger)
			if came = l.read(); came {
				w.lingers.Store(more)
			}
			l.receiving.Unlock()
		}
		return came
	}
	udp.Yield()
	if time.Since(now) > short {
		w.lingers.Store(few)
		w.others.Store(now.Add(crowded).UnixNano())
	}
	return false
}

// read makes one system call and delivers its packets. The caller holds Link.receiving.
func (l *Link) read() bool {
	in := &l.in
	if got, err := l.socket.ReadNow(in.buffer, &in.arrival); !got || err != nil {
		return false
	}
	if in.check() {
		l.wire.host.Deliver(in.deliver)
	}
	return true
}

// check marks the packets with a right ICRC, and reports whether there are any. It needs no lock.
func (in *incoming) check() bool {
	a, l := &in.arrival, in.link
	gid := a.From.Addr().As16()
	in.from = message.Remote(gid)
	from := packet.Endpoint{GID: gid, Port: a.From.Port()}
	any, next := false, uint16(0)
	for i := 0; i*a.Segment < a.N && i < len(in.right); i++ {
		p := in.buffer[i*a.Segment : min((i+1)*a.Segment, a.N)]
		id, ok := packet.Check(p, &from, &l.own, next)
		for _, c := range l.wire.captures.All() {
			c.Packet(time.Now(), p, &from, &l.own, id)
		}
		next = id + 1
		in.right[i] = ok
		any = any || ok
		switch {
		case ok:
		case packet.HasSize(p):
			l.stats.refused[packet.BadICRC].Add(1)
		default:
			l.stats.refused[packet.BadSize].Add(1)
		}
	}
	if rest := (a.N+a.Segment-1)/max(a.Segment, 1) - len(in.right); rest > 0 { // shorter than any packet
		l.stats.refused[packet.BadSize].Add(uint64(rest))
	}
	return any
}

// deliverNow delivers the messages of the packets. The caller holds Core.Mu.
func (in *incoming) deliverNow() {
	a, l, d := &in.arrival, in.link, &in.decoder
	for i := 0; i*a.Segment < a.N && i < len(in.right); i++ {
		if !in.right[i] {
			continue
		}
		p := in.buffer[i*a.Segment : min((i+1)*a.Segment, a.N)]
		l.stats.received.Add(1)
		l.stats.receivedBytes.Add(uint64(len(p)) + l.headers)
		kind, reason := d.Decode(p, in.from, l.here)
		if l.here.IsGroup() && kind != packet.Refused &&
			(kind != packet.Request || d.Request.Transport != ibv.QPT_UD) { // groups receive only datagrams
			kind, reason = packet.Refused, packet.BadQPN
		}
		switch kind {
		case packet.Request:
			if l.here.IsGroup() && l.wire.isOwn(&d.Request) { // already delivered in memory
				l.stats.own.Add(1)
				continue
			}
			d.Request.Route.TrafficClass, d.Request.Route.HopLimit = a.TOS, a.TTL
			l.port.Request(&d.Request)
		case packet.Answer:
			l.port.Answer(&d.Answer)
		case packet.MAD:
			l.port.MAD(&d.MAD)
		case packet.Notification:
			l.stats.congested.Add(1)
		case packet.Refused:
			if reason != packet.BadVersion || !l.passed(p) {
				l.stats.refused[reason].Add(1)
			}
		}
	}
}
