// SPDX-License-Identifier: BSD-2-Clause

// Package delayed is a wire for tests: what it brings arrives after the call that sent it has returned, as packets do.
package delayed

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire keeps copies of messages, and lets the wire below it bring them.
type Wire struct {
	wire.Wire // below
	later     func(func())
}

// Over makes a wire. Later calls a function with the fabric's lock after it has returned itself, from any goroutine.
func Over(below wire.Wire, later func(func())) *Wire { return &Wire{below, later} }

// Send brings a copy of a request.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	kept := m.Clone()
	w.later(func() {
		if a, _ := w.Wire.Send(kept); a != nil {
			w.Answer(a)
		}
	})
	return nil, 0
}

// Answer brings a copy of an answer.
func (w *Wire) Answer(a *message.Answer) {
	kept := a.Clone()
	w.later(func() { w.Wire.Answer(kept) })
}

// SendMAD brings a copy of a datagram of the connection manager.
func (w *Wire) SendMAD(m *message.MAD) {
	kept := m.Clone()
	w.later(func() { w.Wire.SendMAD(kept) })
}
