// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"net/netip"

	"github.com/goverbs/goverbs/generated/ibv"
)

// ManagedEnd is the connection manager's view of one end of a connection.
type ManagedEnd struct {
	ID          uint32 // communication ID
	Local, Peer netip.AddrPort
}

// Connection is a connected queue pair; soft.Connection explains it.
type Connection struct {
	Device          string
	Type            ibv.QPType
	State           ibv.QPState
	QPN, PeerQPN    uint32
	Local, Peer     netip.Addr
	MTU             ibv.MTU
	NextPSN         uint32
	ExpectedPSN     uint32
	InFlight        uint32
	Window          uint32
	Queued          uint32
	SentAgain       uint64
	CMID            uint32
	CMLocal, CMPeer netip.AddrPort
}

func (q *QP) connection(end ManagedEnd) Connection {
	c := Connection{
		Type: q.kind, State: q.state, QPN: q.number, PeerQPN: q.attr.DestQPNum,
		Local: netip.AddrFrom16(q.out.From.GID).Unmap(), Peer: netip.AddrFrom16(q.out.To.GID).Unmap(),
		MTU: q.attr.PathMTU, Queued: q.posted - q.next,
		CMID: end.ID, CMLocal: end.Local, CMPeer: end.Peer,
	}
	c.NextPSN, c.ExpectedPSN = q.psns()
	c.SentAgain = q.resent
	switch {
	case q.sender != nil:
		c.Window = q.sender.Window()
		_, c.InFlight = q.sender.UnderWay()
	case q.sent:
		c.InFlight = q.out.Packets
	}
	return c
}
