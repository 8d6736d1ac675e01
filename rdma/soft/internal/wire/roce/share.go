// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"crypto/subtle"
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

// Several processes may share a link's address. Each has its own range of queue pair numbers and communication IDs, by
// which the kernel delivers packets (udp.Options.Share). A connection request contains only a service ID. It arrives at
// one of the processes, which passes it on to the one that has claimed the service.

// Member returns the number of this process among those that share the address. Its queue pair numbers and IDs begin
// with it.
func (l *Link) Member() int { return l.socket.Member() }

// Addr returns the link's address. A link-local one has its zone.
func (l *Link) Addr() netip.Addr { return l.addr }

// Scope returns the index of the network interface that has the link's address, or 0 for IPv4.
func (l *Link) Scope() uint32 { return l.scope }

// IsShared reports whether other processes may use the link's address too.
func (l *Link) IsShared() bool { return l.socket.IsShared() }

// Has reports whether an address is the link's.
func (l *Link) Has(gid [16]byte) bool { return l.here.GID == gid }

// IsShared reports whether other processes may use an address of the fabric too. The caller holds Core.Mu.
func (w *Wire) IsShared(gid [16]byte) bool {
	l := w.links[gid]
	return l != nil && l.IsShared()
}

// HasQP reports whether a queue pair number at an address of the fabric belongs to this process. The caller holds
// Core.Mu.
func (w *Wire) HasQP(gid [16]byte, number uint32) bool {
	l := w.links[gid]
	return l == nil || l.HasQP(number)
}

// HasQP reports whether a queue pair number at the link's address belongs to this process.
func (l *Link) HasQP(number uint32) bool {
	return !l.IsShared() || udp.MemberOfQP(number) == l.Member()
}

// isOwn reports whether a datagram was sent by this fabric.
func (w *Wire) isOwn(m *message.Request) bool {
	l := w.links[m.From.GID]
	return l != nil && l.HasQP(m.SourceQP)
}

// A message is passed on as a packet to the address itself, with a queue pair number of the receiving process. Its BTH
// has an invalid version, followed by the secret that the processes share, the source address of the message, and its
// bytes.
const (
	passedOpcode  = 0xff
	passedVersion = 0xf
	passedNumber  = 2 // queue pair number without the member
	passedSecret  = 12
	passedFrom    = passedSecret + 16
	passedMessage = passedFrom + 16
	passedSize    = passedMessage + message.MADSize + 4 // including the ICRC
)

// Claim makes the other processes with the link's address pass messages for a service to this one. It returns
// EADDRINUSE if another one has claimed the service.
func (l *Link) Claim(service uint64) (*udp.Claim, error) { return l.socket.Claim(service) }

// Claimant describes the process that has claimed a service, or returns "".
func (l *Link) Claimant(service uint64) string { return l.socket.Claimant(service) }

// Pass sends a message for a service to the process that has claimed it, and reports whether there is one. Like other
// messages, it can be lost: its sender retransmits it. The caller holds Core.Mu.
func (l *Link) Pass(service uint64, m *message.MAD) bool {
	if m.Passed {
		return false
	}
	member, ok := l.socket.Claimed(service)
	if !ok || member == l.Member() {
		return false
	}
	b, err := m.Encode()
	if err != nil {
		return false
	}
	number := udp.QPsOf(member) | passedNumber
	if to := message.Remote(l.here.GID); !l.start(&to, number) {
		return true
	}
	p, secret := l.out.Packet(passedSize), l.socket.Secret()
	clear(p)
	p[0], p[1] = passedOpcode, passedVersion
	binary.BigEndian.PutUint32(p[4:], number)
	copy(p[passedSecret:], secret[:])
	copy(p[passedFrom:], m.From.GID[:])
	copy(p[passedMessage:], b)
	l.out.end()
	return true
}

// passed delivers the message of a packet that another process with the link's address has passed to this one, and
// reports whether it is one. The caller holds Core.Mu.
func (l *Link) passed(p []byte) bool {
	if !l.IsShared() || len(p) != passedSize || p[0] != passedOpcode || p[1] != passedVersion {
		return false
	}
	if secret := l.socket.Secret(); subtle.ConstantTimeCompare(p[passedSecret:passedFrom], secret[:]) == 0 {
		return false
	}
	m, err := message.DecodeMAD(p[passedMessage : passedSize-4])
	if err != nil {
		return false
	}
	m.From, m.To, m.Passed = message.Remote([16]byte(p[passedFrom:])), l.here, true
	l.port.MAD(m)
	return true
}
