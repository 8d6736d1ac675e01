// SPDX-License-Identifier: BSD-2-Clause

// Package roce is a wire that speaks RoCE v2: it brings messages between devices of one fabric by the wire below it, as
// before, and others as UDP packets between an address of a device's and any other.
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

// Host is what the wire has of its fabric.
type Host interface {
	wire.Host
	// Filled says that the wire has packets to send: before the fabric gives up its lock, it calls Take. The caller
	// holds Fabric.mu.
	Filled()
}

// Wire sends and receives packets. Its fields are under Fabric.mu.
type Wire struct {
	wire.Wire // below
	host      Host
	captures  *pcap.Captures          // needs no lock
	links     map[[16]byte]*Link      // by the address of their side
	groups    map[*Link]struct{}      // of multicast, that devices have joined
	filled    []*Link                 // that have packets to send
	left      atomic.Bool             // some are filled; needs no lock
	psn       uint32                  // of management datagrams
	polled    atomic.Pointer[[]*Link] // needs no lock
	polls     atomic.Uint32           // without result, since a program asked for an event; needs no lock
	empty     atomic.Uint32           // polls without result, one after the other; needs no lock
	others    atomic.Int64            // until when others may want the processors, in ns; needs no lock
	lingers   atomic.Int32            // how often Poll may wait till then; needs no lock
}

// Over makes a wire without links, whose packets captures get.
func Over(below wire.Wire, host Host, captures *pcap.Captures) *Wire {
	return &Wire{Wire: below, host: host, captures: captures, links: map[[16]byte]*Link{}, groups: map[*Link]struct{}{}}
}

// Link is an address of a device's, with its socket.
type Link struct {
	wire   *Wire
	port   wire.Port
	socket *udp.Socket
	own    packet.Endpoint
	here   message.Address
	addr   netip.Addr // with its zone
	scope  uint32     // index of the interface that has it, of IPv6
	// headers is how many bytes IP and UDP put before a packet.
	headers uint64
	out     batch // that is filled, under Fabric.mu

	to      sender      // the socket
	full    atomic.Bool // packets wait for room in the socket
	sending sync.Mutex  // guards what follows, up to stuck; whoever has Fabric.mu only tries it
	sent    batch       // that is sent, or was last
	stuck   bool        // packets have waited for room in vain: the next ones do not, until some are sent

	receiving sync.Mutex // guards what follows, up to in; it is taken before Fabric.mu
	in        incoming

	wake   chan struct{} // a program has asked for an event
	closed chan struct{}
	stats  stats
}

// Attach opens the socket of an address, whose packets go to and come from a port with a link address. The caller holds
// Fabric.mu.
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

// sender is what flush has of the socket.
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

// Join lets what others send to a multicast group come to the port of a link, by the interface of its address, until
// Detach of the link that it returns. What devices of the fabric send comes by the wire below. The caller holds
// Fabric.mu.
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

// Reaches says whether a multicast group has addresses of the link's kind.
func (l *Link) Reaches(group [16]byte) bool {
	return netip.AddrFrom16(group).Is4In6() == netip.AddrFrom16(l.here.GID).Is4In6()
}

// Detach closes a socket. Its reader ends later. The caller holds Fabric.mu.
func (w *Wire) Detach(l *Link) {
	delete(w.links, l.here.GID)
	delete(w.groups, l)
	w.change()
	l.socket.Close()
}

// change lets pollers know of the links that there are now.
func (w *Wire) change() {
	all := slices.AppendSeq(slices.Collect(maps.Values(w.links)), maps.Keys(w.groups))
	w.polled.Store(&all)
}

// Wait waits until the reader of a closed link has ended. It needs no lock, and its caller has none.
func (l *Link) Wait() { <-l.closed }

// MTU is the greatest RoCE MTU of the link's interface, in bytes.
func (l *Link) MTU() (int, error) {
	n, err := l.socket.InterfaceMTU()
	if err != nil {
		return 0, err
	}
	return udp.RoCEMTU(n), nil
}

// PathMTU is the greatest RoCE MTU on the way from an address to one of another fabric, in bytes, or 0 if it is not
// known. The caller holds Fabric.mu.
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

// Packets says that messages to other fabrics travel as packets.
func (w *Wire) Packets(to *message.Address) bool { return to.IsRemote() || w.Wire.Packets(to) }

// Send makes packets of a request to another fabric, or to a group, whose members are here and elsewhere.
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

// Answer makes packets of an answer to another fabric.
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

// SendMAD makes a packet of a management datagram to another fabric.
func (w *Wire) SendMAD(m *message.MAD) {
	if !m.To.IsRemote() {
		w.Wire.SendMAD(m)
		return
	}
	if l := w.links[m.From.GID]; l != nil && l.start(&m.To, managerQP) {
		w.psn++
		if packet.AppendMAD(&l.out, m, w.psn) != nil { // a field is too long for its place
			l.out.cancel()
			l.stats.unsendable.Add(1)
			return
		}
		l.out.end()
	}
}

// Routes says whether there is a path: to other fabrics, from addresses that have a socket.
func (w *Wire) Routes(from, to message.Address) bool {
	if to.IsRemote() {
		return w.links[from.GID] != nil
	}
	return w.Wire.Routes(from, to)
}

// start begins a message to a queue pair at an address. It says whether there is room for it: as in any device's queue,
// messages are lost if many wait while nothing is sent.
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
