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

// Config has the options of both sides of a connection. The zero value means the defaults.
type Config struct {
	// Backend is a software backend, the backend of package native, runtime.Native for rdma-core, or nil to use the
	// environment: see "Which library" in the documentation of package cm.
	Backend runtime.Backend
	// Protocol selects this package's own protocol (Stream) or rsockets (RSocket), for peers that use librdmacm's
	// rsockets or preload them. Both sides must use the same.
	Protocol Protocol
	// Maps is the number of memory regions that the peer may write with WriteAt (RDMA_IOMAPSIZE), at most 127. It
	// requires RSocket. 0 means none.
	Maps int
	// Buffer is the number of bytes that each side can receive before its program reads them. Send buffers are half as
	// large. Adapters and Soft-RoCE pin the memory. Large writes are sent in pieces of a quarter of Buffer, or of an
	// eighth if the peer's device fetches every other piece. 0 means [DefaultBuffer].
	Buffer int
	// HandshakeTimeout limits each step of establishing a connection. 0 means [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// Linger limits how long Close waits until all written data has arrived; then Close returns an error. On a lossy
	// network, each loss may delay it by AckTimeout. 0 means [DefaultLinger].
	Linger time.Duration
	// Heartbeat is the time without messages after which the connection probes the peer's device. If it does not
	// respond, the connection fails. Without heartbeats, only a Write detects a dead host (also one that waits for
	// room), and a connection that only reads keeps its memory forever. The peer's program is not probed. 0 means
	// [DefaultHeartbeat], and a negative value disables heartbeats.
	Heartbeat time.Duration
	// BusyPoll is how long a waiting goroutine polls before it sleeps, as long as polling finds completions: see
	// rdma.CQ.SetBusyPoll. Polling occupies a processor, which the kernel's software devices need themselves. With
	// hardware it reduces latency; rdma.DefaultBusyPoll is a good value. LearnedBusyPoll adapts the time for each
	// connection. 0 disables polling.
	BusyPoll time.Duration
	// KeepThread makes a waiting goroutine block its thread, which wakes it sooner than Go's netpoller: see
	// rdma.CompChannel.KeepThread. It concerns the one goroutine that waits for all connections of a device. Without
	// KeepThread, that goroutine blocks its thread only while just its own connection has messages and no other
	// goroutine is ready to run, and never if GOMAXPROCS is 1.
	KeepThread bool
	// AckTimeout is the time that the device waits for the peer's acknowledgement before it retransmits, up to six
	// times. The time is 4.096 µs · 2^AckTimeout. 0 means [DefaultAckTimeout].
	AckTimeout uint8
	// ToS is the type of service of the IP packets: DSCP << 2.
	ToS uint8
}

// Protocol is the protocol of a stream connection.
type Protocol uint8

const (
	Stream  Protocol = iota // this package's protocol
	RSocket                 // librdmacm's rsockets, rsocket(7); only over IP addresses
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
	DefaultHeartbeat        = 15 * time.Second // like package net's keep-alives
	DefaultAckTimeout       = 17               // 0.54 s
	DefaultBacklog          = 128
)

// defaultHeartbeat is DefaultHeartbeat, which tests change.
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
		return own, fmt.Errorf("stream: unknown Protocol %d; use Stream or RSocket", own.Protocol)
	case own.Buffer < protocol.MinBuffer || own.Buffer > protocol.MaxBuffer:
		return own, fmt.Errorf("stream: a buffer of %d bytes; valid sizes are %d to %d", own.Buffer, protocol.MinBuffer,
			protocol.MaxBuffer)
	case own.Maps < 0 || own.Maps > protocol.MaxMaps:
		return own, fmt.Errorf("stream: %d Maps: the maximum is %d", own.Maps, protocol.MaxMaps)
	case own.Maps > 0 && own.Protocol != RSocket:
		return own, errors.New("stream: Maps without RSocket")
	case own.AckTimeout > 31:
		return own, fmt.Errorf("stream: an AckTimeout of %d: the maximum is 31", own.AckTimeout)
	case own.HandshakeTimeout < 0 || own.Linger < 0,
		own.BusyPoll < 0 && own.BusyPoll != LearnedBusyPoll:
		return own, errors.New("stream: negative timeout in Config")
	}
	own.Buffer = (own.Buffer + 63) &^ 63
	return own, nil
}

// completeIB is complete for connections with AF_IB addresses.
func (c Config) completeIB() (Config, error) {
	own, err := c.complete()
	if err == nil && own.Protocol == RSocket {
		err = fmt.Errorf("%w: rsockets over AF_IB addresses; use addresses of IPoIB", syscall.EOPNOTSUPP)
	}
	return own, err
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
