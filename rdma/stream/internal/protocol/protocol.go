// SPDX-License-Identifier: BSD-2-Clause

// Package protocol implements the protocols of stream connections on a queue pair and its memory. Package stream adds
// goroutines, waits and deadlines.
package protocol

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// Protocol is the protocol of a stream connection: [Stream] or [RSocket]. The caller serializes calls of its methods,
// except for CopyOut and Link.Stage, which the reader and the writer may call at any time.
type Protocol interface {
	// Objects returns the link that the protocol uses.
	Objects() *Link
	// Open creates the objects and posts all receives.
	Open(over Device, options Options) error
	// Hello returns the private data for the peer.
	Hello() []byte
	// ParseHello parses the peer's hello, which is untrusted. The peer's first messages may be handled before it.
	ParseHello(hello []byte) error

	// Unread returns the number of bytes that wait for Read. CopyOut copies them, and Front returns some of them in
	// place. Consumed records how many were consumed.
	Unread() uint64
	CopyOut(p []byte, n uint64) int
	Front(n uint64) []byte
	Consumed(n int)
	// Room returns how many of n bytes can be sent in one piece now. Lent bytes need no staging.
	Room(n int, lent bool) int
	// PostData sends a piece. It returns false if there is no room.
	PostData(p Piece) (bool, error)

	// Received handles a received message or the end of a fetch, and returns the peer's flags in it. peer has the
	// peer's earlier flags. The peer is not trusted: invalid values are an error.
	Received(wc *ibv.WC, peer Flags) (Flags, error)
	// AddRecv adds a receive that replaces that of a handled message to the batch.
	AddRecv(wc *ibv.WC)
	// SendPending sends flags and other pending state to the peer, as far as there is room. It returns the flags that
	// were sent.
	SendPending(flags Flags) (Flags, error)
	// ProbeAt returns an address and key for probes in the peer's memory.
	ProbeAt() (address uint64, rkey uint32)
	// AnswersEnd reports whether a peer that receives the end of data sends its own end at once.
	AnswersEnd() bool
	// Undelivered returns the number of bytes of PostData that the peer has not acknowledged, or had not read when it
	// closed. peer has the peer's flags.
	Undelivered(peer Flags) uint64
}

// Piece is the data of one message: inline bytes, memory that the program lends, or bytes in staging.
type Piece struct {
	Inline []byte
	Lent   ibv.SGE
	Staged int  // number of bytes in staging
	More   bool // the program has more to send at once
}

// Len returns the number of bytes.
func (p *Piece) Len() int { return len(p.Inline) + int(p.Lent.Length) + p.Staged }

// isLent reports whether the program's memory is lent, so that the program waits for the device to finish.
func (p *Piece) isLent() bool { return p.Lent.Length > 0 }

// Flags are notifications that a side sends at most once each.
type Flags uint8

const (
	Fin  Flags = 1 << iota // no more data will come
	Done                   // no more data will be read
)
