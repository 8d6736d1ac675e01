// SPDX-License-Identifier: BSD-2-Clause

package packet

// Kind says what a packet is.
type Kind uint8

const (
	Refused      Kind = iota // nothing: the Reason says why
	Request                  // Decoder.Request has it
	Answer                   // Decoder.Answer has it
	MAD                      // Decoder.MAD has it
	Notification             // of congestion (CNP): it has nothing to read
)

// Reason says why a packet is refused. Its String is the name of a counter.
type Reason uint8

const (
	Accepted    Reason = iota
	BadSize            // it is too short, or not a multiple of 4 bytes, or longer than any packet
	BadVersion         // of the BTH: it is not 0
	BadOpcode          // there is no such packet
	BadLength          // it is not as long as its headers, or has more than MaxPayload
	BadPKey            // number 0 is of no partition
	BadQPN             // a queue pair has another number
	BadQKey            // of a datagram to the connection manager
	BadSyndrome        // of an answer: it is reserved
	BadMAD             // it is for the connection manager, and not one of its datagrams
	BadICRC            // for callers of Check
	Reasons            // is how many there are
)

var reasonNames = [Reasons]string{"accepted", "rx_bad_size", "rx_bad_version", "rx_bad_opcode", "rx_bad_length",
	"rx_bad_pkey", "rx_bad_qpn", "rx_bad_qkey", "rx_bad_syndrome", "rx_bad_mad", "rx_icrc_encapsulated"}

func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}
