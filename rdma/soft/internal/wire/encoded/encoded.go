// SPDX-License-Identifier: BSD-2-Clause

// Package encoded is a wire for tests: it makes bytes of every message, and a message of these, before the wire below
// brings it. What a message does not carry does not arrive.
package encoded

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire encodes and decodes what the wire below it brings.
type Wire struct {
	below  wire.Wire
	free   []*frame // of requests
	answer frame    // of the last answer, whose receiver is done with it before another message is sent
}

// frame is where a message is written and read. Several are in use at once when a message is sent because of another.
type frame struct {
	bytes   []byte
	request message.Request
	answer  message.Answer
}

// Over makes a wire.
func Over(below wire.Wire) *Wire { return &Wire{below: below} }

func (w *Wire) frame() *frame {
	n := len(w.free)
	if n == 0 {
		return &frame{}
	}
	f := w.free[n-1]
	w.free = w.free[:n-1]
	f.bytes = f.bytes[:0]
	return f
}

// keep clears a frame, so that nothing is read that is not of the next message, and keeps it for that.
func (w *Wire) keep(f *frame) {
	clear(f.bytes)
	w.free = append(w.free, f)
}

// Send brings what the bytes of a request say, and returns what those of the answer say.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	clear(w.answer.bytes)
	f := w.frame()
	defer w.keep(f)
	f.bytes = m.Append(f.bytes)
	if err := f.request.Parse(f.bytes); err != nil {
		panic(fmt.Sprintf("soft: a request that was written cannot be read: %v", err))
	}
	a, wait := w.below.Send(&f.request)
	if a != nil {
		a = w.read(a)
	}
	return a, wait
}

// Answer brings what the bytes of an answer say.
func (w *Wire) Answer(a *message.Answer) { w.below.Answer(w.read(a)) }

// read is what the bytes of an answer say.
func (w *Wire) read(a *message.Answer) *message.Answer {
	f := &w.answer
	f.bytes = a.Append(f.bytes[:0])
	if err := f.answer.Parse(f.bytes); err != nil {
		panic(fmt.Sprintf("soft: an answer that was written cannot be read: %v", err))
	}
	return &f.answer
}

// SendMAD brings what the bytes of a datagram of the connection manager say. Headers before these carry its addresses.
func (w *Wire) SendMAD(m *message.MAD) {
	b, err := m.Encode()
	if err != nil {
		panic(fmt.Sprintf("soft: a datagram cannot be written: %v", err))
	}
	got, err := message.DecodeMAD(b)
	if err != nil {
		panic(fmt.Sprintf("soft: a datagram that was written cannot be read: %v", err))
	}
	got.From, got.To = m.From, m.To
	w.below.SendMAD(got)
}

// Routes asks the wire below.
func (w *Wire) Routes(from, to message.Address) bool { return w.below.Routes(from, to) }

// Packets says what the wire below says.
func (w *Wire) Packets(to *message.Address) bool { return w.below.Packets(to) }
