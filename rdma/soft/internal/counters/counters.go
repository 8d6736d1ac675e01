// SPDX-License-Identifier: BSD-2-Clause

// Package counters has what a device of the fabric counts, and its names.
package counters

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Counter is one of something that a device counts.
type Counter uint8

const (
	Nothing Counter = iota // it has no counter

	// Of the sender.
	Sends            // requests of the SEND kind ended
	SentAgain        // packets were sent again
	WentBack         // it went back to a packet that was lost
	Timeouts         // because no answer came in time
	ImpliedGaps      // because an answer was for later packets
	ToldGaps         // the receiver said that a packet is missing
	ToldNotReady     // the receiver said that it has no receive
	ToldInvalid      // the receiver refused a request as invalid
	ToldAccess       // the receiver refused a request for its key or access
	RetriesExceeded  // a request failed after all retries
	NotReadyExceeded // a request failed because the receiver was not ready too often
	LateAnswers      // answers were dropped that fit no request

	// Of the receiver.
	Receives   // receives were completed
	Repeats    // requests were not carried out again
	Gaps       // packets came before the one that is expected, which the sender was told
	BehindGaps // packets were dropped because one before them is missing
	TellsNotReady
	TellsInvalid
	TellsAccess
	NoReceive // datagrams, and messages of UC, were dropped for want of a receive
	TooLong   // messages were longer than their receives

	// Packets that were dropped: what is wrong with them.
	UnknownQP
	StrangePeer // the queue pair has another peer
	WrongState  // the queue pair receives nothing
	WrongKind   // of transport
	BadPKey     // not of the queue pair's partition
	BadQKey
	BadLength // it has not as many bytes as it says
	WhileDown // the link

	// Messages of the connection manager that changed nothing, and why.
	CMCrowded    // requests to connect, while as many as the listener wants wait to be taken
	CMNoListener // requests to a port that nobody listens at, or that are not of IP
	CMBadPath    // requests whose addresses are not those of their packet
	CMStale      // requests, or answers to one, of a queue pair that is connected: its process has started again
	CMUnknown    // there is no such identifier: mostly one that was closed
	CMWrongPeer  // the identifier has another peer
	CMAgain      // they came again
	CMLate       // the identifier waits for no such message now

	LinkDowns
	number // of counters
)

// names are those of Soft-RoCE's hw_counters, or else of mlx5's or EFA's, where one of them counts the same. Others of
// what was dropped begin with rx_.
var names = [number]string{
	Sends: "rdma_sends", SentAgain: "retrans_pkts", WentBack: "completer_retry_err", Timeouts: "local_ack_timeout_err",
	ImpliedGaps: "implied_nak_seq_err", ToldGaps: "rcvd_seq_err", ToldNotReady: "rcvd_rnr_err",
	ToldInvalid: "req_remote_invalid_request", ToldAccess: "req_remote_access_errors",
	RetriesExceeded: "retry_exceeded_err", NotReadyExceeded: "retry_rnr_exceeded_err", LateAnswers: "rx_late_ack",
	Receives: "rdma_recvs", Repeats: "duplicate_request", Gaps: "out_of_seq_request", BehindGaps: "rx_behind_gap",
	TellsNotReady: "send_rnr_err", TellsInvalid: "resp_invalid_request", TellsAccess: "resp_remote_access_errors",
	NoReceive: "out_of_buffer", TooLong: "resp_local_length_error",
	UnknownQP: "rx_unknown_qp", StrangePeer: "rx_wrong_peer", WrongState: "rx_wrong_state",
	WrongKind: "rx_wrong_transport", BadPKey: "bad_pkey", BadQKey: "bad_qkey", BadLength: "rx_bad_length",
	WhileDown: "rx_link_down",
	CMCrowded: "rx_cm_backlog", CMNoListener: "rx_cm_no_listener", CMBadPath: "rx_cm_bad_path", CMStale: "rx_cm_stale",
	CMUnknown: "rx_cm_unknown_id", CMWrongPeer: "rx_cm_wrong_peer", CMAgain: "cm_rx_duplicates", CMLate: "rx_cm_late",
	LinkDowns: "link_downed",
}

// Counts are how often each of it happened.
type Counts [number]uint64

// Add adds those of another device.
func (c *Counts) Add(other *Counts) {
	for i := range c {
		c[i] += other[i]
	}
}

// Named adds the counts to those that have names.
func (c *Counts) Named(to map[string]uint64) {
	for i := Nothing + 1; i < number; i++ {
		to[names[i]] += c[i]
	}
}

// OfRequest is the counter of requests with an opcode that end.
func OfRequest(opcode ibv.WROpcode) Counter {
	switch opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		return Sends
	}
	return Nothing
}

// OfRefusal are the counters of a sender, and of the receiver, for what the receiver answers.
func OfRefusal(s message.Syndrome) (told, tells Counter) {
	switch s {
	case message.NotReady:
		return ToldNotReady, TellsNotReady
	case message.InvalidRequest:
		return ToldInvalid, TellsInvalid
	case message.RemoteAccess:
		return ToldAccess, TellsAccess
	}
	return Nothing, Nothing
}
