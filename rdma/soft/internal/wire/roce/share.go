// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
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

// passedSize is the size of a message that is passed: the address that it came from, and its bytes.
const passedSize = 16 + message.MADSize

// Claim lets messages for a service come to the link's port that came to another process with the link's address. Its
// error is EADDRINUSE where another one has claimed the service.
func (l *Link) Claim(service uint64) (*udp.Claim, error) {
	return l.socket.Claim(service, func(b []byte) {
		if len(b) != passedSize {
			return
		}
		m, err := message.DecodeMAD(b[16:])
		if err != nil {
			return
		}
		m.From, m.To, m.Passed = message.Remote([16]byte(b)), l.here, true
		l.wire.host.Deliver((&passed{l, m}).deliver)
	})
}

// passed is a message that another process has passed to this one.
type passed struct {
	link    *Link
	message *message.MAD
}

// The caller holds Fabric.mu.
func (p *passed) deliver() { p.link.port.MAD(p.message) }

// Claimant says which process has claimed a service; "" is none.
func (l *Link) Claimant(service uint64) string { return l.socket.Claimant(service) }

// Pass gives a message for a service to the process that has claimed it, and says whether there is one. The caller
// holds Fabric.mu.
func (l *Link) Pass(service uint64, m *message.MAD) bool {
	if m.Passed || !l.IsShared() {
		return false
	}
	b, err := m.Encode()
	return err == nil && l.socket.Pass(service, append(m.From.GID[:], b...))
}
