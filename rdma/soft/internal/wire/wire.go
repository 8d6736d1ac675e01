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
// A wire in memory delivers a message before the call returns, and the answer to it comes by then, too. A wire that
// takes longer keeps a clone of the message, and calls the port when the message arrives: in Deliver of its Host.
// Cloning reads memory that programs registered. Where that memory is gone, the call panics, as a copy in a port does;
// the sender of the message recovers.
type Wire interface {
	// Send brings a request. A wire that cannot take it yet gives a time after which the sender tries again, and has
	// done nothing; 0 says that it took the request. The caller holds Fabric.mu.
	Send(*message.Request) (wait time.Duration)
	// Answer brings an answer. The caller holds Fabric.mu.
	Answer(*message.Answer)
	// SendMAD brings a management datagram. The caller holds Fabric.mu.
	SendMAD(*message.MAD)
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
	// Request handles a request. The caller holds Fabric.mu.
	Request(*message.Request)
	// Answer handles an answer. The caller holds Fabric.mu.
	Answer(*message.Answer)
	// MAD handles a management datagram. The caller holds Fabric.mu.
	MAD(*message.MAD)
}
