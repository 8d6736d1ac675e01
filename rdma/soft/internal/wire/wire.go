// SPDX-License-Identifier: BSD-2-Clause

// Package wire says how a message gets from one port to another. Implementations are in the packages below it.
package wire

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Wire brings messages to the ports that they are addressed to. It promises nothing: a message may be lost, or come
// twice, and then its sender's timer, or the receiver's count of packets, makes up for it.
//
// A wire in memory delivers a request before Send returns, and returns the answer to it. A wire that takes longer keeps
// a clone of the message, and calls the port when the message arrives: in Deliver of its Host. The answer that this
// port returns goes back the same way. Cloning a request reads memory that programs registered. Where that memory is
// gone, the call panics, as a copy in a port does; the sender of the message recovers.
type Wire interface {
	// Send brings a request. The answer is the one that came at once, or nil; the sender is done with it before it
	// calls the wire again. A wire that cannot take the request yet gives a time after which the sender tries again,
	// and has done nothing; 0 says that it took the request. The caller holds Fabric.mu.
	Send(*message.Request) (answer *message.Answer, wait time.Duration)
	// Answer brings an answer that Send did not return. The caller holds Fabric.mu.
	Answer(*message.Answer)
	// SendMAD brings a management datagram. The caller holds Fabric.mu.
	SendMAD(*message.MAD)
	// Packets says whether messages to an address travel as packets: a request comes in parts, several are under way at
	// once, and one answer may be for several. What the port answers, it gives to Answer. The caller holds Fabric.mu.
	Packets(to *message.Address) bool
	// Routes says whether there is a path from one address to another. The caller holds Fabric.mu.
	Routes(from, to message.Address) bool
}

// Host is what a wire that takes time has of its fabric.
type Host interface {
	// Deliver calls a function with the fabric's lock, which the caller does not have, and lets go on what became
	// ready. It takes Fabric.mu.
	Deliver(func())
	// After calls a function with that lock after a time. The caller holds Fabric.mu.
	After(time.Duration, func()) (number uint64)
}

// Port is where messages arrive: one of a device. The caller has the fabric's lock. What comes from elsewhere may be
// wrong in any field; a port drops it, or answers with what is wrong. Memory that is gone ends in a status, unless it
// is memory of the message itself.
type Port interface {
	// Request handles a request, and returns the answer to it, or nil where nobody answers. The answer is valid until
	// the port's next request. Its data is memory that programs registered where the request arrives while its sender
	// is in Send, and recovers; that of another answer is the answer's own. The caller holds Fabric.mu.
	Request(*message.Request) *message.Answer
	// Answer handles an answer that Send did not return. The caller holds Fabric.mu.
	Answer(*message.Answer)
	// MAD handles a management datagram. The caller holds Fabric.mu.
	MAD(*message.MAD)
}
