// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
)

// MAD is a management datagram of the connection manager's class: what communication managers say to each other. Which
// fields a message has depends on its attribute; all others are zero. Numbers are in host byte order. The layout in
// bytes and the widths of the fields are those of the InfiniBand specification, volume 1, chapter 12; Encode refuses
// what a field does not hold.
//
// A MAD and its private data belong to the sender and are valid until the call that brings it returns. What keeps it
// longer keeps a Clone.
type MAD struct {
	From, To  Address
	Passed    bool // another process with the address of To had it, and passed it to the one that it is for
	Attribute Attribute
	TID       uint64 // transaction ID: an answer has that of its request

	// Communication IDs of the sender and of the receiver. The receiver finds its own object by RemoteID; 0 is not
	// known. A lookup (SIDR) has one number for both, its request ID.
	LocalID, RemoteID uint32

	// Of REQ and SIDR_REQ.
	ServiceID uint64
	PKey      uint16
	Path      Path           // REQ
	Source    netip.AddrPort // IP address and port of the sender (IP addressing annex, before the private data)
	Dest      netip.Addr     // IP address that is looked for; its port is in the service ID. Neither, or both

	// Of REQ and REP, and of SIDR_REP, which has QPN and QKey alone; QPN is that of the receiver in a DREQ.
	CAGUID             uint64    // of the sender's device
	Transport          Transport // REQ
	QPN                uint32    // 24 bits
	QKey               uint32    // SIDR_REP
	PSN                uint32    // the first that the receiver of the message sends with, 24 bits
	ResponderResources uint8     // reads and atomics that the sender takes at once
	InitiatorDepth     uint8     // reads and atomics that the sender has under way at once
	RemoteTimeout      uint8     // REQ: code of the time within which the receiver is to answer, 5 bits
	LocalTimeout       uint8     // REQ: code of the time within which the sender answers, 5 bits
	MaxRetries         uint8     // REQ: how often the message is sent again, 4 bits
	AckDelay           uint8     // REP: code of the delay of the sender's acknowledgements, 5 bits
	RetryCount         uint8     // REQ, 3 bits
	RNRRetryCount      uint8     // 3 bits
	FlowControl        bool
	SRQ                bool
	ECE                ECE

	// Of MRA and REJ.
	Of             Of
	ServiceTimeout uint8  // MRA: code of the time that the sender's program may take, 5 bits; 0 is no longer than usual
	Reason         uint16 // REJ
	ARI            []byte // additional rejection information of REJ, or information of SIDR_REP, at most 72 bytes

	Status uint8 // SIDR_REP

	Private []byte // at most Attribute.PrivateSize bytes
}

// Path is the primary path that a REQ proposes.
type Path struct {
	Local, Remote [16]byte // GIDs of the sender and of the receiver
	FlowLabel     uint32   // 20 bits
	LocalLID      uint16   // which RoCE has none of
	RemoteLID     uint16
	Rate          uint8 // ibv.Rate, 6 bits
	TrafficClass  uint8
	HopLimit      uint8
	AckTimeout    uint8 // code, 5 bits
	MTU           ibv.MTU
}

// ECE are the options of enhanced connection establishment; vendor 0 is none.
type ECE struct {
	Vendor  uint32 // 24 bits
	Options uint32
}

// Attribute says what kind of message a MAD is.
type Attribute uint16

const (
	REQ     Attribute = 0x10 + iota // asks for a connection
	MRA                             // says that a program has the message, and how long it may take
	REJ                             // refuses, or takes back
	REP                             // answers a REQ
	RTU                             // ready to use: answers a REP
	DREQ                            // ends the connection
	DREP                            // answers a DREQ
	SIDRReq                         // looks a service of datagrams up
	SIDRRep                         // answers that
)

var attributeNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"}

func (a Attribute) String() string {
	if a.known() {
		return attributeNames[a-REQ]
	}
	return "unknown"
}

func (a Attribute) known() bool { return a >= REQ && a <= SIDRRep }

// PrivateSize is how many bytes of private data a message has room for: what programs may use of it, without the IP
// addresses that a REQ and a SIDR_REQ carry there.
func (a Attribute) PrivateSize() int {
	if !a.known() {
		return 0
	}
	return [...]int{56, 222, 148, 196, 224, 220, 224, 180, 136}[a-REQ]
}

// Transport is the service of a connection: the transport service type in the low two bits, and above them the extended
// transport type.
type Transport uint8

const (
	RC  Transport = 0
	UC  Transport = 1
	XRC Transport = 3 | 1<<2
)

// Of is the message that an MRA or a REJ is about, in two bits.
type Of uint8

const (
	OfREQ   Of = 0
	OfREP   Of = 1
	OfMRA   Of = 2 // of a REJ, "no message": an MRA that is about nothing that its receiver has sent
	OfOther Of = 3 // of an MRA, about a SIDR_REQ or a DREQ, of which InfiniBand has none
)

// Reasons of a REJ.
const (
	RejectTimeout      = 4 // the sender has given up
	RejectInvalidID    = 6 // there is no such communication ID, or no longer
	RejectNoListener   = 8 // nothing listens at the service ID
	RejectStale        = 10
	RejectInvalidGID   = 12 // the path does not lead from the sender to the receiver
	RejectConsumer     = 28
	RejectVendorOption = 35 // the ECE options are not acceptable
)

// Status of a SIDR_REP.
const (
	LookupFound       = 0
	LookupUnsupported = 1 // nothing listens at the service ID
	LookupRejected    = 2
)

// NoLID is the local identifier of ports that have none.
const NoLID = 0xffff

// Limits of fields.
const (
	MaxARI        = 72       // bytes
	MaxCode       = 1<<5 - 1 // of times: 4.096 µs · 2^code
	MaxRetryCount = 1<<3 - 1
	Number        = 1<<24 - 1 // of queue pairs and packets, and of vendors
)

// IsHint reports whether the message only says how long the receiver is to wait: an MRA, or a REJ of one. A faulty wire
// lets hints pass: while a program works, a virtual clock stands still, so nothing would make up for a lost hint.
func (m *MAD) IsHint() bool { return m.Attribute == MRA || m.Attribute == REJ && m.Of == OfMRA }

// Clone is a copy that stays valid.
func (m *MAD) Clone() *MAD {
	c := *m
	c.ARI, c.Private = slices.Clone(m.ARI), slices.Clone(m.Private)
	return &c
}
