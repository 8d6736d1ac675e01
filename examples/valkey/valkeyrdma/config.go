// SPDX-License-Identifier: BSD-2-Clause

// Package valkeyrdma implements net.Conn with Valkey over RDMA, the protocol of valkey-server --rdma-port and of
// clients like valkey-cli --rdma. A Valkey client library or server can use it in place of TCP.
//
//	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"10.0.0.1:6379"}, DisableCache: true,
//		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
//			return valkeyrdma.Dial(ctx, address)
//		}})
//
// Each end grants its peer a piece of memory, which the peer fills from the beginning with RDMA writes. When the piece
// is full and the next piece has been read, the end grants the next piece.
package valkeyrdma

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// ErrProtocol is wrapped by errors about a peer that violates the protocol.
var ErrProtocol = errors.New("valkeyrdma: the peer violates the protocol")

// Config configures connections. The zero value selects the defaults.
type Config struct {
	// Backend is a software backend, runtime.Native for rdma-core, or nil for the one that GOVERBS_DEVICE
	// selects: see package cm.
	Backend runtime.Backend
	// Local is the address that Dial connects from. The zero Addr means the address with the route to the peer.
	Local netip.Addr
	// Buffer is the number of bytes that the peer can write before the program reads them. It consists of two pieces:
	// the peer fills one while the program reads the other. The memory is pinned, as are 290 KiB more. 0 means
	// [DefaultBuffer].
	Buffer int
	// HandshakeTimeout limits connecting. 0 means [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// Linger limits how long Close waits until all written data is in the peer's memory. 0 means [DefaultLinger].
	Linger time.Duration
	// KeepAlive is the idle time after which a keepalive is sent, to detect the loss of the peer's machine; with the
	// default, this takes ten seconds. 0 means [DefaultKeepAlive], the value of valkey-server; a negative value
	// disables keepalives.
	KeepAlive time.Duration
	// Backlog is the maximum number of connections of a listener that wait for Accept or are being established. Each of
	// them already has its memory. One host can use at most three quarters of the backlog; its further requests wait
	// without memory. 0 means [DefaultBacklog]; less than 16 means 16.
	Backlog int
}

// Defaults of [Config].
const (
	DefaultBuffer           = 1 << 20
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultLinger           = 3 * time.Second
	DefaultKeepAlive        = 3 * time.Second
	DefaultBacklog          = 32
)

const minBacklog = 16

// Limits of Buffer.
const (
	MinBuffer = 8 << 10
	MaxBuffer = 1 << 30
)

// ackTimeout is that of package stream: a connection fails after about four seconds without acknowledgements.
const ackTimeout = stream.DefaultAckTimeout

// complete returns the configuration with defaults for unset fields.
func (c *Config) complete() (Config, error) {
	var own Config
	if c != nil {
		own = *c
	}
	setDefault(&own.Buffer, DefaultBuffer)
	setDefault(&own.HandshakeTimeout, DefaultHandshakeTimeout)
	setDefault(&own.Linger, DefaultLinger)
	setDefault(&own.KeepAlive, DefaultKeepAlive)
	setDefault(&own.Backlog, DefaultBacklog)
	switch {
	case own.Buffer < MinBuffer || own.Buffer > MaxBuffer:
		return own, fmt.Errorf("valkeyrdma: Buffer is %d bytes; valid sizes are %d to %d", own.Buffer, MinBuffer,
			MaxBuffer)
	case own.HandshakeTimeout < 0 || own.Linger < 0 || own.Backlog < 0:
		return own, errors.New("valkeyrdma: HandshakeTimeout, Linger, or Backlog is negative")
	}
	own.Backlog = max(own.Backlog, minBacklog) // with fewer, one host could use all of them
	own.Buffer = (own.Buffer + 127) &^ 127     // both pieces begin at a cache line
	return own, nil
}

func setDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
