// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Answer is what a responder answers to a request of a reliable connection: the fields of the AETH, and of the
// AtomicAckETH or the data of a read. It is valid as long as a Request is; a Clone stays valid.
type Answer struct {
	From, To Address
	DestQP   uint32 // number of the requester
	PSN      uint32 // of the request that is answered
	Life     uint64 // of that request; 0 if the wire does not carry it
	Syndrome Syndrome
	Timer    uint8         // of NotReady: the code of the time to wait, 5 bits
	Original uint64        // what an atomic found
	Data     []mem.Segment // of a read; at most MaxSegments

	// What wires of packets bring, which answer several requests at once, and a read in parts.
	Kind      Kind
	Transport ibv.QPType // RC or XRC_SEND: that of the request
	PKey      uint16     // partition of the responder
	Count     uint32     // of messages that the responder carried out (MSN), 24 bits
	MTU       uint32     // bytes of data that each packet but the last has
	Continues bool       // of data: a part came before this one
	More      bool       // of data: another part follows

	kept []byte // of a clone: where its data lies
}

// Clone returns a copy that stays valid. It reads the data.
func (a *Answer) Clone() *Answer {
	c := *a
	c.kept = appendSegments(nil, a.Data)
	c.Data = segmentsOf(nil, c.kept)
	return &c
}

// Kind says which packet an answer is.
type Kind uint8

const (
	Plain      Kind = iota // an acknowledgement, or a refusal
	ReadData               // data of a read, or what answers a flush or an atomic write
	AtomicData             // what an atomic found
)

// Syndrome is what became of a request.
type Syndrome uint8

const (
	Ack             Syndrome = iota // it was carried out
	NotReady                        // there was no receive for it (RNR NAK)
	InvalidRequest                  // it is not allowed (NAK)
	RemoteAccess                    // its key does not allow it (NAK)
	RemoteOperation                 // the responder's own side failed (NAK)
	OutOfOrder                      // a packet is missing: the answer's PSN is that of the one that is expected (NAK)
)
