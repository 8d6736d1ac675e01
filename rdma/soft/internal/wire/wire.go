// Package wire says how a message gets from one port to another. Implementations are in the packages below it.
package wire

import "github.com/goverbs/goverbs/rdma/soft/internal/message"

// Wire brings messages to the ports that they are addressed to. It promises nothing: a message may be lost, late, or come twice, and
// then its sender's timer, or the receiver's count of packets, makes up for it. All of it is called with the fabric's lock, and calls
// ports with it.
//
// A wire in memory delivers before Send returns, and the answer comes back by then, too. One that takes longer keeps a clone of the message,
// and calls the port when it arrives.
type Wire interface {
	Send(*message.Request)
	Answer(*message.Answer)
	SendMAD(*message.MAD)
	// Routes says whether there is a path from one address to another.
	Routes(from, to message.Address) bool
}

// Port is where messages arrive: one of a device.
type Port interface {
	Request(*message.Request)
	Answer(*message.Answer)
	MAD(*message.MAD)
}
