// SPDX-License-Identifier: BSD-2-Clause

// Package protocol implements the protocols of stream connections, with the queue pair and the memory that they use. It
// does not deal with goroutines, waiting and deadlines.
package protocol

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// Protocol is the protocol of a stream connection: a [Stream], or that of C's rsockets. Its methods are called one at a
// time, except for CopyOut and Link.Stage, which the reader and the writer may call at any time.
type Protocol interface {
	// Objects returns the link that the protocol uses.
	Objects() *Link
	// Open creates the objects and posts all receives.
	Open(over Device, options Options) error
	// Hello returns the private data for the peer.
	Hello() []byte
	// ParseHello parses the peer's hello, before or after the peer's first messages. The hello is untrusted.
	ParseHello(hello []byte) error

	// Unread is the number of bytes that wait for Read. CopyOut copies them, or Front returns some of them in place,
	// and Consumed reports how many were consumed.
	Unread() uint64
	CopyOut(p []byte, n uint64) int
	Front(n uint64) []byte
	Consumed(n int)
	// Room returns how many of n bytes to send in one piece now. Lent ones need no staging.
	Room(n int, lent bool) int
	// PostData sends a piece. It returns false if there is no room.
	PostData(p Piece) (bool, error)

	// Received handles a received message, or the end of a fetch, and returns the peer's flags in it; peer has the
	// earlier ones. It does not trust the peer: impossible values are an error.
	Received(wc *ibv.WC, peer Flags) (Flags, error)
	// AddRecv adds the receive of a message that was handled to the batch of receives.
	AddRecv(wc *ibv.WC)
	// SendPending sends the peer flags and other pending state, as far as there is room. It returns the flags sent.
	SendPending(flags Flags) (Flags, error)
	// ProbeAt is memory of the peer that a probe may name.
	ProbeAt() (address uint64, rkey uint32)
	// AnswersEnd reports whether a peer that received the end sends its own end at once.
	AnswersEnd() bool
	// Undelivered returns how many bytes of PostData the peer has not acknowledged, or has not read when it closed.
	// peer are the peer's flags.
	Undelivered(peer Flags) uint64
}

// Piece is the data of one message: bytes in the request itself, memory that the program lends, or data in staging.
type Piece struct {
	Inline []byte
	Lent   ibv.SGE
	Staged int  // bytes
	More   bool // the program has more to send, at once
}

// Len is the number of bytes.
func (p *Piece) Len() int { return len(p.Inline) + int(p.Lent.Length) + p.Staged }

// isLent reports whether the program must be notified when the device is done with it.
func (p *Piece) isLent() bool { return p.Lent.Length > 0 }

// Flags are events that a side sends once.
type Flags uint8

const (
	Fin  Flags = 1 << iota // no more data will come
	Done                   // no more data will be read
)
