// SPDX-License-Identifier: BSD-2-Clause

// Package memory implements the wire between devices of one process: a message is a call.
package memory

import (
	"slices"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire delivers every message at once.
type Wire struct {
	ports  map[uint64]wire.Port // by link address
	order  []wire.Port          // in the order of Attach
	recent [16]attached         // cache of lookups, by the low bits of link addresses
}

type attached struct {
	link uint64
	port wire.Port
}

// New returns a wire without ports.
func New() *Wire { return &Wire{ports: map[uint64]wire.Port{}} }

// Attach adds a port with a unique link address.
func (w *Wire) Attach(link uint64, p wire.Port) {
	w.ports[link] = p
	w.order = append(w.order, p)
}

// Detach removes a port.
func (w *Wire) Detach(link uint64) {
	p := w.ports[link]
	delete(w.ports, link)
	w.order = slices.DeleteFunc(w.order, func(other wire.Port) bool { return other == p })
	w.recent[link%uint64(len(w.recent))] = attached{}
}

// port returns the port with a link address, or nil.
func (w *Wire) port(link uint64) wire.Port {
	e := &w.recent[link%uint64(len(w.recent))]
	if e.link != link || e.port == nil {
		*e = attached{link, w.ports[link]}
	}
	return e.port
}

// Send delivers a request to its port, or, for a group, to all ports, which do not answer.
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

// Answer delivers an answer to its port.
func (w *Wire) Answer(a *message.Answer) {
	if p := w.port(a.To.Link); p != nil {
		p.Answer(a)
	}
}

// SendMAD delivers a datagram of the connection manager to its port.
func (w *Wire) SendMAD(m *message.MAD) {
	if p := w.port(m.To.Link); p != nil {
		p.MAD(m)
	}
}

// Routes returns true: there is a path to every address.
func (w *Wire) Routes(_, _ message.Address) bool { return true }

// Packets returns false: messages are complete.
func (w *Wire) Packets(*message.Address) bool { return false }
