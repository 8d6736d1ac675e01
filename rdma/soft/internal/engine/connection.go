// SPDX-License-Identifier: BSD-2-Clause

package engine

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

func (q *QP) Connection(end ManagedEnd) Connection {
	c := Connection{
		Type: q.Kind, State: q.State, QPN: q.Number, PeerQPN: q.Attr.DestQPNum,
		Local: netip.AddrFrom16(q.Out.From.GID).Unmap(), Peer: netip.AddrFrom16(q.Out.To.GID).Unmap(),
		MTU: q.Attr.PathMTU, Queued: q.Posted - q.next,
		CMID: end.ID, CMLocal: end.Local, CMPeer: end.Peer,
	}
	c.NextPSN, c.ExpectedPSN = q.PSNs()
	c.SentAgain = q.resent
	switch {
	case q.sender != nil:
		c.Window = q.sender.Window()
		_, c.InFlight = q.sender.UnderWay()
	case q.sent:
		c.InFlight = q.Out.Packets
	}
	return c
}
