// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"maps"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// Count counts an event. The caller holds Core.Mu.
func (p *Port) Count(c counters.Counter) { p.Counts[c]++ }

// isGuardedBySender reports whether the guard of a request's sender also serves its receiver, which costs nothing: the
// request has one receiver and is received once, during Send, so repeating Send only repeats the receiving.
func (e *Engine) isGuardedBySender() bool { return e.guarded && e.Plain }

// Tops returns the values of the bits above the table index in numbers of the device's objects: the lowest one and how
// many there are. The highest value is excluded, because it would include the number of multicast.
func (p *Port) Tops() (low, n uint32) {
	low = p.On.Numbers.Low()
	if len(p.Links) == 0 || !p.Links[0].IsShared() {
		return low, 1<<(24-numbers.Bits) - 1 - low
	}
	first := udp.QPsOf(p.Links[0].Member())
	n = (udp.QPsOf(p.Links[0].Member()+1) - first) >> numbers.Bits
	if first == 0 {
		return low, n - low
	}
	return first >> numbers.Bits, n
}

// Request handles a request to one of the device's queue pairs, or to a group of them, and returns the answer. The
// caller holds Core.Mu.
func (p *Port) Request(m *message.Request) *message.Answer {
	e := p.On
	switch {
	case e.isGuardedBySender() && m.Transport != ibv.QPT_UD: // built by the requester of this process
		return p.carry(m)
	case !m.IsWhole():
		p.Count(counters.BadLength)
		e.lose(m)
	case m.Transport == ibv.QPT_UD:
		p.datagrams(m)
	default:
		return p.guarded(m, p)
	}
	return nil
}

// guarded executes a request, and repeats it if memory of this side turns out to be unmapped. If the memory of the
// message itself is unmapped, the panic propagates to the sender during its Send; other messages are lost. If no caller
// recovers, it copies the data of the answer.
func (p *Port) guarded(m *message.Request, by carrier) (a *message.Answer) {
	e, guarded := p.On, p.On.guarded
	gone := e.repeat(m.Payload, func() {
		if a = by.carry(m); a != nil && a.Data != nil && !guarded {
			a = a.Clone()
		}
	})
	switch {
	case gone == nil:
		return a
	case guarded:
		panic(gone)
	}
	e.lose(m)
	return nil
}

// carrier is the receiver of a request: a device for connections, a queue pair for datagrams.
type carrier interface {
	// carry executes the request and returns the answer. The caller holds Core.Mu.
	carry(m *message.Request) *message.Answer
}

// carry executes a request of a connection. The caller holds Core.Mu.
func (p *Port) carry(m *message.Request) (a *message.Answer) {
	q := p.On.QPOf(m.DestQP)
	if q != nil && q.Dynamic != nil && q.Port == p {
		connection, answer := q.connectionOf(m)
		if connection == nil {
			return answer
		}
		q = connection
	} else if q != nil && q.sender != nil { // a packet does not name its source queue pair
		m.SourceQP = q.Attr.DestQPNum
	}
	var why counters.Counter
	switch {
	case q == nil || q.Port != p:
		why = counters.UnknownQP
	case p.Down:
		why = counters.WhileDown
	case q.Out.To.Link != m.From.Link || q.Attr.DestQPNum != m.SourceQP:
		why = counters.WrongPeer
	case !q.receives():
		why, a = counters.WrongState, q.rejectAgain(m)
	case m.Transport != q.ExpectsOf:
		why = counters.WrongKind
	case !q.inPartition(m.PKey):
		why = counters.BadPKey
	case q.sender != nil:
		return q.arrivesAsPackets(m)
	case q.reliable && !q.isFromPeer(m):
		why = counters.BehindGaps
	default:
		return q.arrives(m)
	}
	p.Count(why)
	p.On.lose(m)
	return a
}

// Answer handles an answer, to a request of one of the device's queue pairs, that Send did not return. An answer that
// does not match is dropped. The caller holds Core.Mu.
func (p *Port) Answer(a *message.Answer) {
	q := p.On.QPOf(a.DestQP)
	switch {
	case q == nil || q.Port != p:
		p.Count(counters.UnknownQP)
		return
	case p.Down:
		p.Count(counters.WhileDown)
		return
	case a.From.Link != q.Out.To.Link:
		p.Count(counters.WrongPeer)
		return
	case a.Life != q.Out.Life && (a.Life != 0 || q.Dynamic != nil):
		p.Count(counters.LateAnswers)
		return
	case q.sender != nil && a.Transport != q.ExpectsOf: // UC gets no answers
		p.Count(counters.WrongKind)
		return
	case q.sender != nil && !q.inPartition(a.PKey):
		p.Count(counters.BadPKey)
		return
	}
	if q.answered(a); !q.moving {
		q.Progress()
	}
}

// datagrams handles a datagram to one of the device's queue pairs, or to a group.
func (p *Port) datagrams(m *message.Request) {
	e := p.On
	if p.Down {
		p.Count(counters.WhileDown)
		return
	}
	if !m.To.IsGroup() {
		switch q := e.QPOf(m.DestQP); {
		case q == nil || q.Port != p:
			p.Count(counters.UnknownQP)
		case q.Kind != ibv.QPT_UD:
			p.Count(counters.WrongKind)
		case e.isGuardedBySender():
			q.carry(m)
		default:
			p.guarded(m, q)
		}
		return
	}
	if m.DestQP != MulticastQPN {
		p.Count(counters.UnknownQP)
		return
	}
	if len(e.groups[m.To.GID]) == 0 { // the last one has left
		p.Count(counters.UnknownQP)
	}
	for _, q := range e.groups[m.To.GID] { // guarded one by one: others may have the message when memory of one is unmapped
		own := q.Unheard && m.SourceQP == q.Number && slices.Contains(p.GIDs, m.From.GID)
		if q.Port == p && !own {
			p.guarded(m, q)
		}
	}
}

// SendMAD puts a message on the wire, unless the link is down. The caller holds Core.Mu.
func (p *Port) SendMAD(m *message.MAD) {
	if !p.Down {
		p.On.Wire.SendMAD(m)
	}
}

// MAD handles an arriving message of the connection manager, unless the link is down. The caller holds Core.Mu.
func (p *Port) MAD(m *message.MAD) {
	if p.Down {
		p.Count(counters.WhileDown)
		return
	}
	p.MADs(m)
}

// Disconnect detaches the device's sockets. Their readers end later.
func (p *Port) Disconnect() (links []*roce.Link) {
	links, p.Links = p.Links, nil
	for group, l := range p.Joined {
		delete(p.Joined, group)
		links = append(links, l)
	}
	for _, l := range links {
		p.On.Outer.Detach(l)
	}
	return links
}

// Counters returns the device's counters by name.
func (p *Port) Counters() map[string]uint64 {
	all := map[string]uint64{}
	p.Counts.Named(all)
	for _, l := range p.Links {
		l.Counters(all)
	}
	for l := range maps.Values(p.Joined) {
		l.Counters(all)
	}
	return all
}
