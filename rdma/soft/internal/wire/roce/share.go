// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"crypto/subtle"
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
)

// Several processes may have a link's address. Each has queue pair numbers and communication IDs of its own, by which
// the kernel brings it its packets (udp.Options.Share). A request to connect names a service; it comes to one of them,
// which passes it on to the one that has claimed the service.

// Member is which of the processes this one is; QPs and IDs begin with it.
func (l *Link) Member() int { return l.socket.Member() }

// Addr returns the link's address. A link-local one has its zone.
func (l *Link) Addr() netip.Addr { return l.addr }

// Scope returns the index of the network interface that has the link's address, or 0 for IPv4.
func (l *Link) Scope() uint32 { return l.scope }

// IsShared says whether other processes may have the link's address, too.
func (l *Link) IsShared() bool { return l.socket.IsShared() }

// Has says whether an address is the link's.
func (l *Link) Has(gid [16]byte) bool { return l.here.GID == gid }

// IsShared says whether other processes may have an address of the fabric's, too. The caller holds Fabric.mu.
func (w *Wire) IsShared(gid [16]byte) bool {
	l := w.links[gid]
	return l != nil && l.IsShared()
}

// HasQP says whether a queue pair with a number at an address of the fabric's is of this process, if there is one. The
// caller holds Fabric.mu.
func (w *Wire) HasQP(gid [16]byte, number uint32) bool {
	l := w.links[gid]
	return l == nil || l.HasQP(number)
}

// HasQP says whether a queue pair with a number at the link's address is of this process, if there is one.
func (l *Link) HasQP(number uint32) bool {
	return !l.IsShared() || udp.MemberOfQP(number) == l.Member()
}

// isOwn says whether a datagram comes from this fabric.
func (w *Wire) isOwn(m *message.Request) bool {
	l := w.links[m.From.GID]
	return l != nil && l.HasQP(m.SourceQP)
}

// A message that is passed is a packet to the address itself, whose queue pair number brings it to the process. Its BTH
// has a version that does not exist, and behind it are the secret of the processes that share the address, the address
// that the message came from, and its bytes.
const (
	passedOpcode  = 0xff
	passedVersion = 0xf
	passedNumber  = 2 // of the queue pair, without the member
	passedSecret  = 12
	passedFrom    = passedSecret + 16
	passedMessage = passedFrom + 16
	passedSize    = passedMessage + message.MADSize + 4 // with an ICRC
)

// Claim lets messages for a service come to the link's port that came to another process with the link's address. Its
// error is EADDRINUSE if another one has claimed the service.
func (l *Link) Claim(service uint64) (*udp.Claim, error) { return l.socket.Claim(service) }

// Claimant says which process has claimed a service; "" is none.
func (l *Link) Claimant(service uint64) string { return l.socket.Claimant(service) }

// Pass sends a message for a service to the process that has claimed it, and reports whether there is one. Like other
// messages, it can be lost: its sender retransmits it. The caller holds Fabric.mu.
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
// reports whether it is one. The caller holds Fabric.mu.
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
