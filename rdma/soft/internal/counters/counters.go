// SPDX-License-Identifier: BSD-2-Clause

// Package counters defines the counters of a device and their names.
package counters

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Counter identifies a counter of a device.
type Counter uint8

const (
	Nothing Counter = iota // not counted

	// Sender
	Sends                // completed SEND requests
	Retransmitted        // retransmitted packets
	WentBack             // returns to a lost packet
	Timeouts             // after a timeout
	ImpliedGaps          // implied by a response to later packets
	ReceivedSequenceNAKs // after a sequence error NAK
	ReceivedRNRNAKs      // RNR NAKs
	ReceivedInvalidNAKs  // invalid request NAKs
	ReceivedAccessNAKs   // remote access NAKs
	RetriesExceeded      // requests failed after all retries
	NotReadyExceeded     // requests failed after all RNR retries
	LateAnswers          // dropped responses that match no request

	// Receiver
	Receives   // completed receives
	Duplicates // repeated requests, not executed again
	Gaps       // packets after a missing one, answered with a NAK
	BehindGaps // further packets dropped after a missing one
	SentRNRNAKs
	SentInvalidNAKs
	SentAccessNAKs
	NoReceive // datagrams and UC messages dropped without a receive
	TooLong   // messages longer than their receives

	// Dropped packets by reason.
	UnknownQP
	WrongPeer  // not from the queue pair's peer
	WrongState // the queue pair cannot receive
	WrongKind  // wrong transport
	BadPKey    // not in the queue pair's partition
	BadQKey
	BadLength // payload and length field differ
	WhileDown // link down

	// Dropped messages of the connection manager by reason.
	CMCrowded    // connection requests beyond the backlog
	CMNoListener // requests for a port without a listener, or not for IP
	CMBadPath    // requests whose addresses differ from their packet's
	CMStale      // requests or replies of a queue pair that is already connected: its process restarted
	CMUnknown    // unknown identifier, usually closed
	CMWrongPeer  // not from the identifier's peer
	CMDuplicate  // duplicates
	CMLate       // not expected in the identifier's state

	LinkDowns
	number // number of counters
)

// names match Soft-RoCE's hw_counters, or mlx5's or EFA's where one of them counts the same. Other names of dropped
// packets begin with rx_.
var names = [number]string{
	Sends: "rdma_sends", Retransmitted: "retrans_pkts", WentBack: "completer_retry_err", Timeouts: "local_ack_timeout_err",
	ImpliedGaps: "implied_nak_seq_err", ReceivedSequenceNAKs: "rcvd_seq_err", ReceivedRNRNAKs: "rcvd_rnr_err",
	ReceivedInvalidNAKs: "req_remote_invalid_request", ReceivedAccessNAKs: "req_remote_access_errors",
	RetriesExceeded: "retry_exceeded_err", NotReadyExceeded: "retry_rnr_exceeded_err", LateAnswers: "rx_late_ack",
	Receives: "rdma_recvs", Duplicates: "duplicate_request", Gaps: "out_of_seq_request", BehindGaps: "rx_behind_gap",
	SentRNRNAKs: "send_rnr_err", SentInvalidNAKs: "resp_invalid_request", SentAccessNAKs: "resp_remote_access_errors",
	NoReceive: "out_of_buffer", TooLong: "resp_local_length_error",
	UnknownQP: "rx_unknown_qp", WrongPeer: "rx_wrong_peer", WrongState: "rx_wrong_state",
	WrongKind: "rx_wrong_transport", BadPKey: "bad_pkey", BadQKey: "bad_qkey", BadLength: "rx_bad_length",
	WhileDown: "rx_link_down",
	CMCrowded: "rx_cm_backlog", CMNoListener: "rx_cm_no_listener", CMBadPath: "rx_cm_bad_path", CMStale: "rx_cm_stale",
	CMUnknown: "rx_cm_unknown_id", CMWrongPeer: "rx_cm_wrong_peer", CMDuplicate: "cm_rx_duplicates", CMLate: "rx_cm_late",
	LinkDowns: "link_downed",
}

// Counts holds the values of all counters.
type Counts [number]uint64

// Add adds the counters of another device.
func (c *Counts) Add(other *Counts) {
	for i := range c {
		c[i] += other[i]
	}
}

// Named adds the counters to a map by name.
func (c *Counts) Named(to map[string]uint64) {
	for i := Nothing + 1; i < number; i++ {
		to[names[i]] += c[i]
	}
}

// OfRequest returns the counter of completed requests with an opcode.
func OfRequest(opcode ibv.WROpcode) Counter {
	switch opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		return Sends
	}
	return Nothing
}

// OfNAK returns the counters of the sender and of the receiver for a NAK.
func OfNAK(s message.Syndrome) (received, sent Counter) {
	switch s {
	case message.NotReady:
		return ReceivedRNRNAKs, SentRNRNAKs
	case message.InvalidRequest:
		return ReceivedInvalidNAKs, SentInvalidNAKs
	case message.RemoteAccess:
		return ReceivedAccessNAKs, SentAccessNAKs
	}
	return Nothing, Nothing
}
