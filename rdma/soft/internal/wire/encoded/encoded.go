// SPDX-License-Identifier: BSD-2-Clause

// Package encoded implements a wire for tests that encodes and decodes every message before it sends it on the wire
// below, to verify that the encoding is complete.
package encoded

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Wire encodes and decodes messages for the wire below.
type Wire struct {
	below  wire.Wire
	free   []*frame // frames for requests
	answer frame    // last answer; valid until the next message
}

// frame holds a message and its bytes. Several are in use when handling a message sends another.
type frame struct {
	bytes   []byte
	request message.Request
	answer  message.Answer
}

// Over returns a wire.
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

// keep clears a frame and keeps it for reuse.
func (w *Wire) keep(f *frame) {
	clear(f.bytes)
	w.free = append(w.free, f)
}

// Send encodes and decodes a request, and returns the encoded and decoded answer.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	clear(w.answer.bytes)
	f := w.frame()
	defer w.keep(f)
	f.bytes = m.Append(f.bytes)
	if err := f.request.Parse(f.bytes); err != nil {
		panic(fmt.Sprintf("soft: decoding an encoded request: %v", err))
	}
	a, wait := w.below.Send(&f.request)
	if a != nil {
		a = w.read(a)
	}
	return a, wait
}

// Answer encodes and decodes an answer.
func (w *Wire) Answer(a *message.Answer) { w.below.Answer(w.read(a)) }

// read returns the encoded and decoded answer.
func (w *Wire) read(a *message.Answer) *message.Answer {
	f := &w.answer
	f.bytes = a.Append(f.bytes[:0])
	if err := f.answer.Parse(f.bytes); err != nil {
		panic(fmt.Sprintf("soft: decoding an encoded answer: %v", err))
	}
	return &f.answer
}

// SendMAD encodes and decodes a datagram of the connection manager. Its addresses are kept, because packet headers
// carry them.
func (w *Wire) SendMAD(m *message.MAD) {
	b, err := m.Encode()
	if err != nil {
		panic(fmt.Sprintf("soft: encoding a datagram: %v", err))
	}
	got, err := message.DecodeMAD(b)
	if err != nil {
		panic(fmt.Sprintf("soft: decoding an encoded datagram: %v", err))
	}
	got.From, got.To = m.From, m.To
	w.below.SendMAD(got)
}

// Routes asks the wire below.
func (w *Wire) Routes(from, to message.Address) bool { return w.below.Routes(from, to) }

// Packets asks the wire below.
func (w *Wire) Packets(to *message.Address) bool { return w.below.Packets(to) }
