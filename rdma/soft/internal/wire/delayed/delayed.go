// SPDX-License-Identifier: BSD-2-Clause

// Package delayed implements a wire for tests that delivers messages after the call that sent them has returned, like
// packets.
package delayed

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire keeps copies of messages, and sends them on the wire below later.
type Wire struct {
	wire.Wire // the wire below
	later     func(func())
}

// Over returns a wire. later calls a function with the fabric's lock, after later has returned, from any goroutine.
func Over(below wire.Wire, later func(func())) *Wire { return &Wire{below, later} }

// Send sends a copy of a request.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	kept := m.Clone()
	w.later(func() {
		if a, _ := w.Wire.Send(kept); a != nil {
			w.Answer(a)
		}
	})
	return nil, 0
}

// Answer sends a copy of an answer.
func (w *Wire) Answer(a *message.Answer) {
	kept := a.Clone()
	w.later(func() { w.Wire.Answer(kept) })
}

// SendMAD sends a copy of a datagram of the connection manager.
func (w *Wire) SendMAD(m *message.MAD) {
	kept := m.Clone()
	w.later(func() { w.Wire.SendMAD(kept) })
}
