// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
)

// MAD is a management datagram of the communication management class. The fields of a message depend on its attribute;
// all others are zero. Numbers are in host byte order. The byte layout and the widths of fields are those of the
// InfiniBand specification, volume 1, chapter 12; Encode returns an error if a value does not fit its field.
//
// A MAD and its private data belong to the sender and are valid until the call that delivers it returns. To keep it
// longer, Clone it.
type MAD struct {
	From, To  Address
	Passed    bool // received and passed on by another process with the address To
	Attribute Attribute
	TID       uint64 // transaction ID; an answer has that of its request

	// Communication IDs of the sender and of the receiver. The receiver finds its object by RemoteID; 0 is unknown. A
	// lookup (SIDR) has one number for both, its request ID.
	LocalID, RemoteID uint32

	// REQ and SIDR_REQ
	ServiceID uint64
	PKey      uint16
	Path      Path           // REQ
	Source    netip.AddrPort // IP address and port of the sender (IP addressing annex, before the private data)
	Dest      netip.Addr     // requested IP address; its port is in the service ID. Set with Source or not at all

	// REQ and REP. SIDR_REP has only QPN and QKey. In a DREQ, QPN is the receiver's.
	CAGUID             uint64    // GUID of the sender's device
	Transport          Transport // REQ
	QPN                uint32    // 24 bits
	QKey               uint32    // SIDR_REP
	PSN                uint32    // starting PSN for packets from the receiver of the message, 24 bits
	ResponderResources uint8     // concurrent reads and atomics that the sender accepts
	InitiatorDepth     uint8     // reads and atomics that the sender has in flight at once
	RemoteTimeout      uint8     // REQ: code of the receiver's response timeout, 5 bits
	LocalTimeout       uint8     // REQ: code of the sender's response timeout, 5 bits
	MaxRetries         uint8     // REQ: retransmissions of the message, 4 bits
	AckDelay           uint8     // REP: code of the delay of the sender's acknowledgements, 5 bits
	RetryCount         uint8     // REQ, 3 bits
	RNRRetryCount      uint8     // 3 bits
	FlowControl        bool
	SRQ                bool
	ECE                ECE

	// Of is the message that an MRA or a REJ answers, in two bits.
	Of             Of
	ServiceTimeout uint8  // MRA: code of the time that the sender's program may take, 5 bits; 0 adds none
	Reason         uint16 // REJ
	ARI            []byte // additional rejection information of REJ, or information of SIDR_REP, at most 72 bytes

	Status uint8 // SIDR_REP

	Private []byte // at most Attribute.PrivateSize bytes
}

// Path is the primary path in a REQ.
type Path struct {
	Local, Remote [16]byte // GIDs of the sender and of the receiver
	FlowLabel     uint32   // 20 bits
	LocalLID      uint16   // unused by RoCE
	RemoteLID     uint16
	Rate          uint8 // ibv.Rate, 6 bits
	TrafficClass  uint8
	HopLimit      uint8
	AckTimeout    uint8 // code, 5 bits
	MTU           ibv.MTU
}

// ECE holds the options of enhanced connection establishment; with vendor 0 there are none.
type ECE struct {
	Vendor  uint32 // 24 bits
	Options uint32
}

// Attribute is the type of a MAD.
type Attribute uint16

const (
	REQ     Attribute = 0x10 + iota // connection request
	MRA                             // message receipt acknowledgement: the program needs more time
	REJ                             // reject
	REP                             // reply to a REQ
	RTU                             // ready to use: reply to a REP
	DREQ                            // disconnect request
	DREP                            // reply to a DREQ
	SIDRReq                         // lookup of a datagram service
	SIDRRep                         // reply to a SIDR_REQ
)

var attributeNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"}

func (a Attribute) String() string {
	if a.known() {
		return attributeNames[a-REQ]
	}
	return "unknown"
}

func (a Attribute) known() bool { return a >= REQ && a <= SIDRRep }

// PrivateSize returns the number of private data bytes that programs may use, without the IP addresses in a REQ and a
// SIDR_REQ.
func (a Attribute) PrivateSize() int {
	if !a.known() {
		return 0
	}
	return [...]int{56, 222, 148, 196, 224, 220, 224, 180, 136}[a-REQ]
}

// Transport is the service of a connection: the transport service type in the low two bits, and the extended transport
// type above them.
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
	OfMRA   Of = 2 // REJ: "no message"; here an MRA that matches no message of its receiver
	OfOther Of = 3 // MRA: for a SIDR_REQ or a DREQ, which InfiniBand does not define
)

// Reasons of a REJ.
const (
	RejectTimeout      = 4 // the sender timed out
	RejectInvalidID    = 6 // unknown communication ID
	RejectNoListener   = 8 // no listener for the service ID
	RejectStale        = 10
	RejectInvalidGID   = 12 // the path's GIDs do not match sender and receiver
	RejectConsumer     = 28
	RejectVendorOption = 35 // the ECE options are not acceptable
)

// Status of a SIDR_REP.
const (
	LookupFound       = 0
	LookupUnsupported = 1 // no listener for the service ID
	LookupRejected    = 2
)

// NoLID is the LID of ports without one.
const NoLID = 0xffff

// Limits of fields.
const (
	MaxARI        = 72       // bytes
	MaxCode       = 1<<5 - 1 // time code: 4.096 µs · 2^code
	MaxRetryCount = 1<<3 - 1
	Number        = 1<<24 - 1 // QPN, PSN and vendor
)

// IsHint reports whether the message only tells the receiver how long to wait: an MRA, or a REJ of one. Faulty wires
// let hints pass: a virtual clock stands still while a program works, so no timer would make up for a lost hint.
func (m *MAD) IsHint() bool { return m.Attribute == MRA || m.Attribute == REJ && m.Of == OfMRA }

// Clone returns a copy that stays valid.
func (m *MAD) Clone() *MAD {
	c := *m
	c.ARI, c.Private = slices.Clone(m.ARI), slices.Clone(m.Private)
	return &c
}
