// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

const (
	// crowd is how many bytes may wait at a link while others are sent, before those who post wait, too.
	crowd = 1 << 20
	// most is how many bytes wait at a link whose socket takes nothing. Beyond them, messages are lost.
	most = 8 << 20
)

// Take takes the packets of a link that nobody sends from, if there is one: Flush sends them, and then another Take is
// due if the wire IsFilled. What others write meanwhile is left to the one who sends, so that a socket that takes
// nothing holds up only that one. Where nothing can be taken, it may name a link at which many bytes are left. The
// caller holds Fabric.mu. It takes Link.sending for its caller.
func (w *Wire) Take() (taken, crowded *Link) {
	if len(w.filled) == 0 {
		return nil, nil
	}
	w.left.Store(true) // before it is tried: whoever has Link.sending looks behind it
	for _, l := range w.filled {
		if l.sending.TryLock() {
			l.Turn()
			return l, nil
		}
		if len(l.out.bytes) >= crowd {
			crowded = l
		}
	}
	return nil, crowded
}

// IsFilled says whether packets wait to be sent. It needs no lock.
func (w *Wire) IsFilled() bool { return w.left.Load() }

// Links are those of addresses. The caller holds Fabric.mu.
func (w *Wire) Links() []*Link { return slices.Collect(maps.Values(w.links)) }

// Rest waits until nobody sends from a link. Its caller does not have Fabric.mu.
func (l *Link) Rest() {
	l.sending.Lock()
	l.sending.Unlock()
}

// Await is Rest that takes Link.sending for its caller. Turn is due next, and then Flush.
func (l *Link) Await() { l.sending.Lock() }

// Turn lets what was written be what is sent. The caller holds Fabric.mu and Link.sending.
func (l *Link) Turn() {
	w := l.wire
	if l.out.open { // its memory was gone
		l.out.cancel()
	}
	l.out, l.sent = l.sent, l.out
	l.out.reset()
	w.filled = slices.DeleteFunc(w.filled, func(other *Link) bool { return other == l })
	w.left.Store(len(w.filled) > 0)
}

// Flush seals and sends. The caller holds Link.sending, which it gives up.
func (l *Link) Flush() {
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
			l.full.Store(true)
			err := l.to.WaitWrite(until.Sub(now))
			l.full.Store(false)
			if errors.Is(err, net.ErrClosed) {
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
