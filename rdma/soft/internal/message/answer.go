// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Answer is a responder's answer to a request of a reliable connection: the fields of the AETH, and of the AtomicAckETH
// or the data of a read. It is valid as long as a Request is; a Clone stays valid.
type Answer struct {
	From, To Address
	DestQP   uint32 // requester
	PSN      uint32 // PSN of the request
	Life     uint64 // Life of the request; 0 if the wire does not carry it
	Syndrome Syndrome
	Timer    uint8         // NotReady: RNR timer code, 5 bits
	Original uint64        // value before an atomic
	Data     []mem.Segment // read data; at most MaxSegments

	// Kind is the type of an answer's packets.
	Kind      Kind
	Transport ibv.QPType // RC or XRC_SEND, as in the request
	PKey      uint16     // partition of the responder
	Count     uint32     // MSN: messages executed by the responder, 24 bits
	MTU       uint32     // payload of each packet except the last, in bytes
	Continues bool       // data: not the first part
	More      bool       // data: not the last part

	kept []byte // data of a clone
}

// Clone returns a copy that stays valid. It reads the data.
func (a *Answer) Clone() *Answer {
	c := *a
	c.kept = appendSegments(nil, a.Data)
	c.Data = segmentsOf(nil, c.kept)
	return &c
}

// Kind is the type of an answer's packets.
type Kind uint8

const (
	Plain      Kind = iota // ACK or NAK
	ReadData               // read data, or the response to a flush or an atomic write
	AtomicData             // response to an atomic
)

// Syndrome is the result of a request.
type Syndrome uint8

const (
	Ack             Syndrome = iota // executed
	NotReady                        // RNR NAK: no receive posted
	InvalidRequest                  // NAK: not allowed
	RemoteAccess                    // NAK: not allowed by the key
	RemoteOperation                 // NAK: the responder failed
	OutOfOrder                      // NAK: a packet is missing; the PSN is the expected one
)
