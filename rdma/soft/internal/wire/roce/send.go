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
	// crowd is the number of bytes that may be queued at a link while others are sent, before posting goroutines wait.
	crowd = 1 << 20
	// most limits the bytes queued at a link whose socket is full. Further messages are lost.
	most = 8 << 20
)

// Take takes the packets of a link from which no goroutine is sending, if there is one. The caller must then call Flush
// to send them, and Take again if the wire IsFilled. Packets written during the sending are left to the sending
// goroutine, so that a full socket blocks only that one. If it can take nothing, Take may return a crowded link
// instead. The caller holds Core.Mu. Take acquires Link.sending for its caller.
func (w *Wire) Take() (taken, crowded *Link) {
	if len(w.filled) == 0 {
		return nil, nil
	}
	w.left.Store(true) // before TryLock: the holder of Link.sending checks it after unlocking
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

// IsFilled reports whether packets are queued. It needs no lock.
func (w *Wire) IsFilled() bool { return w.left.Load() }

// Links returns the links of addresses. The caller holds Core.Mu.
func (w *Wire) Links() []*Link { return slices.Collect(maps.Values(w.links)) }

// Rest waits until no goroutine sends from a link. Its caller does not hold Core.Mu.
func (l *Link) Rest() {
	l.sending.Lock()
	l.sending.Unlock()
}

// Await is Rest, but acquires Link.sending for its caller, which must call Turn and then Flush.
func (l *Link) Await() { l.sending.Lock() }

// Turn swaps the filled batch with the one to send. The caller holds Core.Mu and Link.sending.
func (l *Link) Turn() {
	w := l.wire
	if l.out.open { // its memory was unmapped
		l.out.cancel()
	}
	l.out, l.sent = l.sent, l.out
	l.out.reset()
	w.filled = slices.DeleteFunc(w.filled, func(other *Link) bool { return other == l })
	w.left.Store(len(w.filled) > 0)
}

// Flush seals and sends the packets. The caller holds Link.sending, which Flush releases.
func (l *Link) Flush() {
	defer l.sending.Unlock()
	for i := range l.sent.groups {
		g := &l.sent.groups[i]
		to := packet.Endpoint{GID: g.to.gid, Port: packet.Port}
		l.write(g, &to)
	}
}

// wrote counts sent packets and bytes.
func (l *Link) wrote(packets, bytes int) {
	l.stats.sent.Add(uint64(packets))
	l.stats.sentBytes.Add(uint64(bytes) + uint64(packets)*l.headers)
}

// writeTimeout is how long packets wait for room in the socket's buffer or the device's queue. It exceeds the delay of
// a slow network; after it, packets are dropped.
const writeTimeout = time.Second

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
				until = now.Add(writeTimeout)
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
		case errors.Is(err, udp.ErrSealAgain): // once per peer
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.stats.unsendable.Add(uint64(left))
			return
		}
	}
}

// seal seals packets of one size for the socket, and captures them before an answer can arrive.
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
