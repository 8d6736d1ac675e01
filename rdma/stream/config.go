// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
	"github.com/goverbs/goverbs/runtime"
)

// Config has the options that both ends of a connection have. The zero value has the defaults.
type Config struct {
	// Backend is a software backend, runtime.Native for the native library, or nil for what GOVERBS_DEVICE says: see
	// "Which library" in the package's documentation.
	Backend runtime.Backend
	// Protocol is what the peer speaks: Stream, this package, or RSocket, librdmacm's rsockets and the programs that
	// are preloaded with them. Both ends are the same.
	Protocol Protocol
	// Maps is how many pieces of memory the other end of an RSocket may map for WriteAt here (RDMA_IOMAPSIZE), 127 at
	// most. 0 means none.
	Maps int
	// Buffer is the number of bytes that each side can receive before its program reads them. Sending takes half as
	// many. Adapters and Soft-RoCE pin the memory. Large writes are sent in pieces of a quarter, or of an eighth where
	// the other end's device reads every other one. 0 means [DefaultBuffer].
	Buffer int
	// HandshakeTimeout limits each step of connecting. 0 means [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// Linger limits how long Close waits until all written data has arrived. Close returns an error if that is too
	// short: on a network that loses packets, each loss may take an AckTimeout. 0 means [DefaultLinger].
	Linger time.Duration
	// Heartbeat is the time without messages after which the peer's device has to answer; if it does not, the
	// connection fails. Without heartbeats, only a Write notices that the peer's machine has vanished, also one that
	// waits for room, and a connection that only reads keeps its memory for ever. The peer's program is not asked. 0
	// means [DefaultHeartbeat], and less than 0 none.
	Heartbeat time.Duration
	// BusyPoll is how long a waiting goroutine polls before it sleeps, as long as that finds completions: see
	// rdma.CQ.SetBusyPoll. It uses processors, which the software devices of kernels need themselves. With hardware it
	// reduces latency; rdma.DefaultBusyPoll is a good value. LearnedBusyPoll has each connection learn it. 0 means not
	// at all.
	BusyPoll time.Duration
	// KeepThread has a waiting goroutine keep its thread, which wakes sooner than one on Go's netpoller: see
	// rdma.CompChannel.KeepThread. One goroutine waits for all connections of a device. Otherwise it does so by itself
	// as long as only its own connection has messages, and no other goroutine wants to run; never with one processor
	// (GOMAXPROCS).
	KeepThread bool
	// AckTimeout is how long the device waits for the peer's acknowledgement before it sends again, six times at most:
	// 4.096 µs · 2^AckTimeout. 0 means [DefaultAckTimeout].
	AckTimeout uint8
	// ToS is the type of service of the IP packets: DSCP << 2.
	ToS uint8
}

// Protocol is what the ends of a stream connection say to each other.
type Protocol uint8

const (
	Stream  Protocol = iota // of this package
	RSocket                 // of librdmacm's rsockets, rsocket(7), over IP addresses
)

func (p Protocol) new() protocol.Protocol {
	if p == RSocket {
		return new(protocol.RSocket)
	}
	return new(protocol.Stream)
}

// Defaults of [Config] and [ListenConfig].
const (
	DefaultBuffer           = 2 << 20
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultLinger           = 3 * time.Second
	DefaultHeartbeat        = 15 * time.Second // as keep-alives of package net
	DefaultAckTimeout       = 17               // 0.54 s
	DefaultBacklog          = 128
)

// defaultHeartbeat is DefaultHeartbeat, but for tests.
var defaultHeartbeat = DefaultHeartbeat

// complete returns the configuration with all defaults filled in.
func (c Config) complete() (own Config, err error) {
	own = c
	if own.Backend, err = chosen.Of(own.Backend); err != nil {
		return own, err
	}
	or(&own.Buffer, DefaultBuffer)
	or(&own.HandshakeTimeout, DefaultHandshakeTimeout)
	or(&own.Linger, DefaultLinger)
	or(&own.Heartbeat, defaultHeartbeat)
	or(&own.AckTimeout, DefaultAckTimeout)
	switch {
	case own.Protocol > RSocket:
		return own, fmt.Errorf("stream: Protocol %d is not known; Stream and RSocket are", own.Protocol)
	case own.Buffer < protocol.MinBuffer || own.Buffer > protocol.MaxBuffer:
		return own, fmt.Errorf("stream: a buffer of %d bytes; valid sizes are %d to %d", own.Buffer, protocol.MinBuffer,
			protocol.MaxBuffer)
	case own.Maps < 0 || own.Maps > protocol.MaxMaps:
		return own, fmt.Errorf("stream: %d Maps: the maximum is %d", own.Maps, protocol.MaxMaps)
	case own.Maps > 0 && own.Protocol != RSocket:
		return own, errors.New("stream: Maps are for RSocket")
	case own.AckTimeout > 31:
		return own, fmt.Errorf("stream: an AckTimeout of %d: the maximum is 31", own.AckTimeout)
	case own.HandshakeTimeout < 0 || own.Linger < 0,
		own.BusyPoll < 0 && own.BusyPoll != LearnedBusyPoll:
		return own, errors.New("stream: a timeout of the Config is negative")
	}
	own.Buffer = (own.Buffer + 63) &^ 63
	return own, nil
}

// completeIB is complete for AF_IB addresses.
func (c Config) completeIB() (Config, error) {
	own, err := c.complete()
	if err == nil && own.Protocol == RSocket {
		err = fmt.Errorf("%w: rsockets over AF_IB addresses: IPoIB's addresses do", syscall.EOPNOTSUPP)
	}
	return own, err
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
