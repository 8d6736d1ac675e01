// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"math/rand/v2"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// Dynamic is the additional state of a queue pair with dynamic connections. Each connection of an initiator and a target
// has the state of a reliable one. An initiator has at most one: it begins when no message is in flight, and ends when
// all its messages are acknowledged. A target has one for each initiator, as a queue pair that no program has.
type Dynamic struct {
	IsTarget bool
	Key      uint64 // access key of a target

	connections map[initiator]*QP // of a target
	used        uint64            // of a target: count of messages; of its connections: that of the latest one
}

// initiator identifies the sender of a message of a dynamic connection.
type initiator struct {
	link   uint64
	number uint32
}

// mostConnections is the number of connections that a target keeps. Only those whose initiators have messages in flight
// matter.
const mostConnections = 1024

// keptAtomics is the number of results of atomics that a connection keeps for repeated requests. A target has no
// attribute for it.
const keptAtomics = 128

// lifeBits is the number of random bits of a connection's life. Others of it are of the time of the process's start, so
// that strangers cannot forge answers, whose sequence numbers are low.
const lifeBits = 12

// dynamicTransport is the transport of messages of dynamic connections, for which libibverbs has no name.
const dynamicTransport = ibv.QPT_DRIVER

// connectTo connects an initiator to the target of a request, and reports whether the request may be sent: while
// messages are in flight, only to the same target.
func (q *QP) connectTo(r *Request, inFlight bool) bool {
	m, to := &q.Out, r.AH.address(q.On, r.Number)
	if inFlight {
		return *to == m.To && r.Number == m.DestQP && r.Key == m.Key
	}
	q.Attr.DestQPNum = r.Number
	m.From.GID, _ = q.Port.GIDAt(r.AH.Route.SGIDIndex)
	m.To, m.DestQP, m.Key = *to, r.Number, r.Key
	m.Life = q.On.newLife()<<lifeBits | rand.Uint64N(1<<lifeBits)
	q.psn, q.retry.lost, q.retry.notReady, q.retry.due = 0, 0, 0, 0
	switch packets := q.On.Wire.Packets(&m.To); {
	case !packets:
		q.sender = nil
	case q.sender == nil:
		q.sender = &transport.Sender{}
		fallthrough
	default:
		q.sender.Reset(0, windowOf(q.Attr.PathMTU))
	}
	return true
}

// connectionOf returns a target's connection for a request, or nil and the answer to the request. A connection begins
// with a request whose life is higher than that of the initiator's previous one.
func (q *QP) connectionOf(m *message.Request) (*QP, *message.Answer) {
	d, p := q.Dynamic, q.Port
	var why counters.Counter
	switch {
	case p.Down:
		why = counters.WhileDown
	case !d.IsTarget || m.Transport != dynamicTransport:
		why = counters.WrongKind
	case !q.receives():
		why = counters.WrongState
	case !q.inPartition(m.PKey):
		why = counters.BadPKey
	case m.Key != d.Key:
		_, sent := counters.OfNAK(message.RemoteAccess)
		q.count(sent)
		return nil, q.rejectKey(m)
	default:
		return q.connectionFrom(m), nil
	}
	p.Count(why)
	p.On.lose(m)
	return nil, nil
}

// rejectKey answers a request with a wrong access key.
func (q *QP) rejectKey(m *message.Request) *message.Answer {
	q.back = q.answerTo(m)
	q.back.PSN, q.back.Life, q.back.Syndrome = m.PSN, m.Life, message.RemoteAccess
	if !q.On.Wire.Packets(&m.From) {
		return &q.back
	}
	q.On.Wire.Answer(&q.back)
	return nil
}

// answerTo returns the fields that all answers to an initiator have.
func (q *QP) answerTo(m *message.Request) message.Answer {
	return message.Answer{From: message.Address{Link: q.Port.Link, GID: m.To.GID}, To: m.From, DestQP: m.SourceQP,
		Timer: q.Attr.MinRNRTimer, Transport: dynamicTransport, PKey: q.Out.PKey}
}

// connectionFrom returns the connection of a request with the right access key, or nil for a request of an earlier
// connection.
func (q *QP) connectionFrom(m *message.Request) *QP {
	d, from := q.Dynamic, initiator{m.From.Link, m.SourceQP}
	c := d.connections[from]
	d.used++
	if c == nil || c.peerLife < m.Life {
		if c != nil {
			c.endConnection()
		} else if len(d.connections) == mostConnections {
			d.endLeastRecent()
		}
		c = q.newConnection(m)
		d.connections[from] = c
	} else if c.peerLife > m.Life {
		q.Port.Count(counters.Duplicates)
		q.On.lose(m)
		return nil
	}
	c.Dynamic.used = d.used
	return c
}

// newConnection creates a target's connection to the sender of a request.
func (q *QP) newConnection(m *message.Request) *QP {
	c := &QP{On: q.On, Port: q.Port, Number: q.Number, Kind: q.Kind, reliable: true, ExpectsOf: q.ExpectsOf,
		Protects: q.Protects, RecvCQ: q.RecvCQ, SRQ: q.SRQ, Report: func(ibv.EventType) {}, Attr: q.Attr,
		State: ibv.QPS_RTR, established: true, Dynamic: &Dynamic{}}
	c.Start(q.Number)
	c.back = q.answerTo(m)
	c.Attr.DestQPNum, c.Attr.MaxDestRdAtomic = m.SourceQP, keptAtomics
	c.Out.PKey, c.Out.From, c.Out.To = q.Out.PKey, c.back.From, m.From
	c.heard, c.peerLife = true, m.Life
	if q.On.Wire.Packets(&m.From) {
		c.sender, c.arriving = &transport.Sender{}, &arriving{}
	}
	return c
}

// endConnection ends a target's connection. A receive that an incomplete message has taken is flushed.
func (q *QP) endConnection() {
	q.FlushRecvs()
	q.State, q.arriving, q.sender = ibv.QPS_RESET, nil, nil
}

// endLeastRecent ends the connection that has been unused for longest.
func (d *Dynamic) endLeastRecent() {
	var oldest initiator
	least := d.used
	for from, c := range d.connections {
		if c.Dynamic.used < least {
			oldest, least = from, c.Dynamic.used
		}
	}
	d.connections[oldest].endConnection()
	delete(d.connections, oldest)
}

// endConnections ends all connections of a target.
func (d *Dynamic) endConnections() {
	for _, c := range d.connections {
		c.endConnection()
	}
	d.connections = map[initiator]*QP{}
}
