// SPDX-License-Identifier: BSD-2-Clause

package packet

// Kind is the type of a packet.
type Kind uint8

const (
	Refused      Kind = iota // rejected for a Reason
	Request                  // in Decoder.Request
	Answer                   // in Decoder.Answer
	MAD                      // in Decoder.MAD
	Notification             // congestion notification (CNP), without contents
)

// Reason is the reason for rejecting a packet. Its String is the name of a counter.
type Reason uint8

const (
	Accepted    Reason = iota
	BadSize            // too short, not a multiple of 4 bytes, or longer than any packet
	BadVersion         // BTH version not 0
	BadOpcode          // unknown opcode
	BadLength          // shorter than its headers, or payload above MaxPayload
	BadPKey            // invalid partition number 0
	BadQPN             // invalid queue pair number
	BadQKey            // wrong Q_Key for the connection manager
	BadSyndrome        // reserved syndrome in an answer
	BadMAD             // invalid datagram for the connection manager
	BadICRC            // set by callers of Check
	Reasons            // number of reasons
)

var reasonNames = [Reasons]string{"accepted", "rx_bad_size", "rx_bad_version", "rx_bad_opcode", "rx_bad_length",
	"rx_bad_pkey", "rx_bad_qpn", "rx_bad_qkey", "rx_bad_syndrome", "rx_bad_mad", "rx_icrc_encapsulated"}

func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}
