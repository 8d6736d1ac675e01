// SPDX-License-Identifier: BSD-2-Clause

// Package roce implements a RoCE v2 wire: it delivers messages between devices of one fabric through the wire below,
// and sends others as UDP packets from a device's address.
package roce

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Host is the fabric of the wire.
type Host interface {
	wire.Host
	// Filled announces that the wire has packets to send. Before the fabric releases its lock, it calls Take. The
	// caller holds Core.Mu.
	Filled()
}

// Wire sends and receives packets. Core.Mu guards its fields unless noted.
type Wire struct {
	wire.Wire // the wire below
	host      Host
	captures  *pcap.Captures          // needs no lock
	links     map[[16]byte]*Link      // by local address
	groups    map[*Link]struct{}      // joined multicast groups
	filled    []*Link                 // links with packets to send
	left      atomic.Bool             // filled is not empty; needs no lock
	psn       uint32                  // PSN of management datagrams
	polled    atomic.Pointer[[]*Link] // needs no lock
	polls     atomic.Uint32           // polls without result since a completion queue was armed; needs no lock
	empty     atomic.Uint32           // consecutive polls without result; needs no lock
	others    atomic.Int64            // end of the time crowded, in ns; needs no lock
	lingers   atomic.Int32            // remaining waits of Poll until then; needs no lock
}

// Over returns a wire without links that reports its packets to captures.
func Over(below wire.Wire, host Host, captures *pcap.Captures) *Wire {
	return &Wire{Wire: below, host: host, captures: captures, links: map[[16]byte]*Link{}, groups: map[*Link]struct{}{}}
}

// Link is a device's address with its socket.
type Link struct {
	wire   *Wire
	port   wire.Port
	socket *udp.Socket
	own    packet.Endpoint
	here   message.Address
	addr   netip.Addr // with zone
	scope  uint32     // index of its interface, for IPv6
	// headers is the size of the IP and UDP headers.
	headers uint64
	out     batch // being filled, under Core.Mu

	to      sender      // the socket
	full    atomic.Bool // packets are waiting for room in the socket
	sending sync.Mutex  // guards the fields up to stuck; holders of Core.Mu only TryLock it
	sent    batch       // being sent, or sent last
	stuck   bool        // a wait for room timed out: do not wait again until a packet was sent

	receiving sync.Mutex // guards the fields up to in; taken before Core.Mu
	in        incoming

	wake   chan struct{} // a program has armed a completion queue
	closed chan struct{}
	stats  stats
}

// Attach opens the socket of an address for a port with a link address. The caller holds Core.Mu.
func (w *Wire) Attach(addr netip.Addr, link uint64, p wire.Port, o udp.Options) (*Link, error) {
	here := message.Address{Link: link, GID: addr.As16()}
	s, err := udp.Open(addr, o)
	if err != nil {
		return nil, err
	}
	if s.Addr().Port() == 0 {
		return nil, fmt.Errorf("soft: %v has no port", addr)
	}
	l := newLink(w, p, s, here)
	l.addr = addr
	if i, err := udp.InterfaceOf(addr); err == nil && addr.Is6() && !addr.Is4In6() {
		l.scope = uint32(i.Index)
	}
	w.links[here.GID] = l
	w.change()
	go l.receive()
	return l, nil
}

// sender is the part of a socket that flush uses.
type sender interface {
	Write(to netip.AddrPort, b []byte, segment int) (int, error)
	WaitWrite(long time.Duration) error
	Identification(to netip.Addr) udp.Identification
}

func newLink(w *Wire, p wire.Port, s *udp.Socket, here message.Address) *Link {
	l := &Link{wire: w, port: p, socket: s, to: s, here: here,
		own:  packet.Endpoint{GID: here.GID, Port: s.Addr().Port()},
		wake: make(chan struct{}, 1), closed: make(chan struct{})}
	l.headers = uint64(l.own.Headers())
	l.in.link, l.in.buffer, l.in.deliver = l, make([]byte, udp.MaxRead), l.in.deliverNow
	return l
}

// Join delivers datagrams from others to a multicast group to the port of a link, on its address's interface, until
// Detach of the returned link. Datagrams from devices of the fabric are delivered by the wire below. The caller holds
// Core.Mu.
func (w *Wire) Join(at *Link, group [16]byte) (*Link, error) {
	s, err := at.socket.Join(netip.AddrFrom16(group).Unmap())
	if err != nil {
		return nil, err
	}
	l := newLink(w, at.port, s, message.Group(group))
	w.groups[l] = struct{}{}
	w.change()
	go l.receive()
	return l, nil
}

// Reaches reports whether a multicast group has the link's address family.
func (l *Link) Reaches(group [16]byte) bool {
	return netip.AddrFrom16(group).Is4In6() == netip.AddrFrom16(l.here.GID).Is4In6()
}

// Detach closes a socket. Its reader ends later. The caller holds Core.Mu.
func (w *Wire) Detach(l *Link) {
	delete(w.links, l.here.GID)
	delete(w.groups, l)
	w.change()
	l.socket.Close()
}

// change updates the list of links for pollers.
func (w *Wire) change() {
	all := slices.AppendSeq(slices.Collect(maps.Values(w.links)), maps.Keys(w.groups))
	w.polled.Store(&all)
}

// Wait waits until the reader of a closed link has ended. Its caller holds no lock.
func (l *Link) Wait() { <-l.closed }

// MTU returns the greatest RoCE MTU of the link's interface, in bytes.
func (l *Link) MTU() (int, error) {
	n, err := l.socket.InterfaceMTU()
	if err != nil {
		return 0, err
	}
	return udp.RoCEMTU(n), nil
}

// PathMTU returns the greatest RoCE MTU from an address to one of another fabric, in bytes, or 0 if it is unknown. The
// caller holds Core.Mu.
func (w *Wire) PathMTU(from, to [16]byte) int {
	l := w.links[from]
	if l == nil {
		return 0
	}
	n, err := l.socket.PathMTU(netip.AddrFrom16(to).Unmap())
	if err != nil {
		return 0
	}
	return udp.RoCEMTU(n)
}

// Packets returns true for addresses of other fabrics.
func (w *Wire) Packets(to *message.Address) bool { return to.IsRemote() || w.Wire.Packets(to) }

// Send sends a request to another fabric as packets, and one to a group both as packets and through the wire below.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	if !m.To.IsRemote() {
		answer, wait := w.Wire.Send(m)
		if l := w.links[m.From.GID]; !m.To.IsGroup() || wait != 0 || l == nil || !l.Reaches(m.To.GID) {
			return answer, wait
		}
	}
	if l := w.links[m.From.GID]; l != nil && l.start(&m.To, m.DestQP) {
		packet.AppendRequest(&l.out, m)
		l.out.end()
	}
	return nil, 0
}

// Answer sends an answer to another fabric as packets.
func (w *Wire) Answer(a *message.Answer) {
	if !a.To.IsRemote() {
		w.Wire.Answer(a)
		return
	}
	if l := w.links[a.From.GID]; l != nil && l.start(&a.To, a.DestQP) {
		packet.AppendAnswer(&l.out, a)
		l.out.end()
	}
}

// SendMAD sends a management datagram to another fabric as a packet.
func (w *Wire) SendMAD(m *message.MAD) {
	if !m.To.IsRemote() {
		w.Wire.SendMAD(m)
		return
	}
	if l := w.links[m.From.GID]; l != nil && l.start(&m.To, managerQP) {
		w.psn++
		if packet.AppendMAD(&l.out, m, w.psn) != nil { // a value does not fit its field
			l.out.cancel()
			l.stats.unsendable.Add(1)
			return
		}
		l.out.end()
	}
}

// Routes reports whether there is a path. Paths to other fabrics start at addresses with a socket.
func (w *Wire) Routes(from, to message.Address) bool {
	if to.IsRemote() {
		return w.links[from.GID] != nil
	}
	return w.Wire.Routes(from, to)
}

// start begins a message to a queue pair at an address. It returns false if the queue of packets is full, in which case
// the message is lost.
func (l *Link) start(to *message.Address, qpn uint32) bool {
	if len(l.out.bytes) >= most && l.full.Load() {
		l.stats.full.Add(1)
		return false
	}
	if l.out.isEmpty() {
		l.wire.filled = append(l.wire.filled, l)
	}
	l.wire.host.Filled()
	l.out.begin(to.GID, qpn)
	return true
}
