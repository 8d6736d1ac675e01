// SPDX-License-Identifier: BSD-2-Clause

// Package memory is the wire between devices of one process: a message is a call.
package memory

import (
	"slices"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire brings every message at once.
type Wire struct {
	ports  map[uint64]wire.Port // by link address
	order  []wire.Port          // as they were attached
	recent [16]attached         // those that were looked up last, by the low bits of their link addresses
}

type attached struct {
	link uint64
	port wire.Port
}

// New makes a wire without ports.
func New() *Wire { return &Wire{ports: map[uint64]wire.Port{}} }

// Attach lets a port be reached by a link address, which no other one has.
func (w *Wire) Attach(link uint64, p wire.Port) {
	w.ports[link] = p
	w.order = append(w.order, p)
}

// Detach takes a port away: it is not reached any more.
func (w *Wire) Detach(link uint64) {
	p := w.ports[link]
	delete(w.ports, link)
	w.order = slices.DeleteFunc(w.order, func(other wire.Port) bool { return other == p })
	w.recent[link%uint64(len(w.recent))] = attached{}
}

// port is the one with a link address, or nil.
func (w *Wire) port(link uint64) wire.Port {
	e := &w.recent[link%uint64(len(w.recent))]
	if e.link != link || e.port == nil {
		*e = attached{link, w.ports[link]}
	}
	return e.port
}

// Send gives a request to its port, or to all of them when it is for a group, whose members do not answer.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	if m.To.IsGroup() {
		for _, p := range w.order {
			p.Request(m)
		}
		return nil, 0
	}
	if p := w.port(m.To.Link); p != nil {
		return p.Request(m), 0
	}
	return nil, 0
}

// Answer gives an answer to its port.
func (w *Wire) Answer(a *message.Answer) {
	if p := w.port(a.To.Link); p != nil {
		p.Answer(a)
	}
}

// SendMAD gives a datagram of the connection manager to its port.
func (w *Wire) SendMAD(m *message.MAD) {
	if p := w.port(m.To.Link); p != nil {
		p.MAD(m)
	}
}

// Routes says that there is a path to every address that there is.
func (w *Wire) Routes(_, _ message.Address) bool { return true }

// Packets says that messages are whole.
func (w *Wire) Packets(*message.Address) bool { return false }
