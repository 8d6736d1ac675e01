// SPDX-License-Identifier: BSD-2-Clause

// Package wire defines the transport of messages between ports. Implementations are in its subpackages.
package wire

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Wire delivers messages to ports. Messages may be lost or repeated; the sender's timer and the receiver's sequence
// numbers recover from that.
//
// A wire in memory delivers a request before Send returns, and returns the answer. A slower wire keeps a clone of the
// message, and calls the port when the message arrives, in Deliver of its Host. The port's answer takes the same way
// back. Cloning a request reads registered memory. If that memory is unmapped, the call panics, like a copy in a port;
// the sender of the message recovers.
type Wire interface {
	// Send sends a request. The answer is nil unless it is available at once, and valid until the next call of the
	// wire. If the wire cannot accept the request yet, it does nothing and returns the time after which to try again;
	// otherwise the time is 0. The caller holds Core.Mu.
	Send(*message.Request) (answer *message.Answer, wait time.Duration)
	// Answer sends an answer that Send did not return. The caller holds Core.Mu.
	Answer(*message.Answer)
	// SendMAD sends a management datagram. The caller holds Core.Mu.
	SendMAD(*message.MAD)
	// Packets reports whether messages to an address are sent as packets: a request arrives in parts, several are in
	// flight at once, and one answer may acknowledge several. The port then answers through Answer. The caller holds
	// Core.Mu.
	Packets(to *message.Address) bool
	// Routes reports whether there is a path from one address to another. The caller holds Core.Mu.
	Routes(from, to message.Address) bool
}

// Host is the fabric of a wire that delivers messages later.
type Host interface {
	// Deliver calls a function with the fabric's lock, and then runs the queue pairs that became ready. It takes
	// Core.Mu.
	Deliver(func())
	// After calls a function with that lock after a time. The caller holds Core.Mu.
	After(time.Duration, func()) (number uint64)
}

// Port is a device port that receives messages. Any field of a message from elsewhere may be invalid; the port drops
// such a message or answers it with an error. Unmapped memory results in an error status, unless it is memory of the
// message itself.
type Port interface {
	// Request handles a request, and returns the answer, or nil if there is none. The answer is valid until the port's
	// next request. Its data is registered memory if the request arrives during its sender's Send, which recovers from
	// faults; otherwise it is a copy. The caller holds Core.Mu.
	Request(*message.Request) *message.Answer
	// Answer handles an answer that Send did not return. The caller holds Core.Mu.
	Answer(*message.Answer)
	// MAD handles a management datagram. The caller holds Core.Mu.
	MAD(*message.MAD)
}
