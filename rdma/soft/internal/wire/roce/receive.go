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

// stats count what a link sends and receives.
type stats struct {
	sent, received           atomic.Uint64
	sentBytes, receivedBytes atomic.Uint64 // with the headers of IP and UDP, as Soft-RoCE counts them
	unsendable, full         atomic.Uint64 // packets that the system did not take: at all; for want of room
	congested, own           atomic.Uint64 // notifications of congestion (CNP); datagrams to groups from the fabric
	refused                  [packet.Reasons]atomic.Uint64
}

// Counters adds what the link counted, by names of the kernel's hw_counters where it has one. It needs no lock.
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

// incoming is what is read from a link. It is under Link.receiving.
type incoming struct {
	link    *Link
	buffer  []byte
	arrival udp.Arrival
	from    message.Address
	right   [udp.MaxRead / smallest]bool // packets of the buffer whose ICRC is right
	decoder packet.Decoder
	deliver func() // deliverNow, made once
}

// smallest is the size of the smallest packet: a BTH and an ICRC.
const smallest = 16

// receive reads packets until the socket is closed. While a program polls, it leaves that to Poll: it would be woken
// for every packet, and hold Link.receiving while it does not run.
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
			l.wire.polls.CompareAndSwap(n, 0) // nobody has polled
		}
		l.receiving.Lock()
		for l.read() {
		}
		l.receiving.Unlock()
	}
}

// A program polls if it has polled more often than fewPolls without result since it asked for an event, and within the
// time recently.
const (
	fewPolls = 4
	recently = time.Millisecond
)

// Armed says that a program is going to wait for an event, and does not poll. It needs no lock.
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

// Poll reads what there is, unless another goroutine does, and says whether something came. It needs no lock, and its
// caller does not have Fabric.mu.
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

// A program that polls in vain gives its processor to others every so many times. If others then run for longer than
// short, they do not poll, or there are many: maybe the peer waits for a processor as well. For the time crowded, the
// program then waits in the kernel, for linger at most, which wakes it for a packet before others: to poll on would
// take the processor from the peer for milliseconds, and then the peer takes it from the program. It does so for a few
// times, and for more when that brings packets, since what it waits for may as well come by another way. When the time
// is over, it polls again, and finds out anew.
const (
	spins   = 64
	short   = 500 * time.Microsecond
	crowded = 100 * time.Millisecond
	linger  = 200 * time.Microsecond
	few     = 2
	more    = 16
)

// giveWay lets others run, and says whether a packet came meanwhile.
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

// read reads what one system call brings, and delivers it. The caller holds Link.receiving.
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

// check looks which packets of the buffer have a right ICRC, and says whether any has. It needs no lock.
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
	if rest := (a.N+a.Segment-1)/max(a.Segment, 1) - len(in.right); rest > 0 { // which are shorter than any packet
		l.stats.refused[packet.BadSize].Add(uint64(rest))
	}
	return any
}

// deliverNow brings the messages of the packets. The caller holds Fabric.mu.
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
			(kind != packet.Request || d.Request.Transport != ibv.QPT_UD) { // groups are for datagrams alone
			kind, reason = packet.Refused, packet.BadQPN
		}
		switch kind {
		case packet.Request:
			if l.here.IsGroup() && l.wire.isOwn(&d.Request) { // which its members have
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
