// SPDX-License-Identifier: BSD-2-Clause

// Package valkeyrdma has net.Conns that speak Valkey over RDMA, the protocol of valkey-server --rdma-port and of
// clients like valkey-cli --rdma. It carries bytes: a client library of Valkey or a server uses it in place of TCP.
//
//	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"10.0.0.1:6379"}, DisableCache: true,
//		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
//			return valkeyrdma.Dial(ctx, address)
//		}})
//
// Each end lends the other one memory, which the other end fills from its beginning by RDMA writes; when it is full,
// the first end lends the next piece.
package valkeyrdma

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// ErrProtocol is found in errors about a peer that does not keep to the protocol.
var ErrProtocol = errors.New("valkeyrdma: the peer breaks the protocol")

// Config has the options of connections. The zero value has the defaults.
type Config struct {
	// Backend is a software backend, runtime.Native for rdma-core, or nil for the one that GOVERBS_DEVICE
	// selects: see package cm.
	Backend runtime.Backend
	// Local is the address that Dial connects from; not valid: the one that leads to the peer.
	Local netip.Addr
	// Buffer is the number of bytes that the peer can write before the program reads them. It is lent in two pieces:
	// one is filled while the other is read. The memory is pinned, as are 290 KiB more. 0 means [DefaultBuffer].
	Buffer int
	// HandshakeTimeout limits connecting. 0 means [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// Linger limits how long Close waits until all written data is in the peer's memory. 0 means [DefaultLinger].
	Linger time.Duration
	// KeepAlive is how often a message is sent if none was sent since, so that a peer whose machine has vanished is
	// noticed: after ten seconds with the default. 0 means [DefaultKeepAlive], as valkey-server has it; less than 0
	// means none.
	KeepAlive time.Duration
	// Backlog is how many connections of a listener may wait for Accept, including those that are still being made:
	// each has its memory already. One host gets at most three quarters of them; more of its requests wait and take no
	// such memory. 0 means [DefaultBacklog]; less than 16 means 16.
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

// ackTimeout is as with package stream: a peer that does not answer times out after about four seconds.
const ackTimeout = stream.DefaultAckTimeout

// complete returns the configuration with all defaults filled in.
func (c *Config) complete() (Config, error) {
	var own Config
	if c != nil {
		own = *c
	}
	or(&own.Buffer, DefaultBuffer)
	or(&own.HandshakeTimeout, DefaultHandshakeTimeout)
	or(&own.Linger, DefaultLinger)
	or(&own.KeepAlive, DefaultKeepAlive)
	or(&own.Backlog, DefaultBacklog)
	switch {
	case own.Buffer < MinBuffer || own.Buffer > MaxBuffer:
		return own, fmt.Errorf("valkeyrdma: a Buffer of %d bytes; valid sizes are %d to %d", own.Buffer, MinBuffer,
			MaxBuffer)
	case own.HandshakeTimeout < 0 || own.Linger < 0 || own.Backlog < 0:
		return own, errors.New("valkeyrdma: a timeout or a number of the Config is negative")
	}
	own.Backlog = max(own.Backlog, minBacklog) // with fewer, one host leaves no place to others
	own.Buffer = (own.Buffer + 127) &^ 127     // two pieces that begin at a cache line
	return own, nil
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
