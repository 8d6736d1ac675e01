// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"encoding/binary"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// option is an option of rsetsockopt.
type option struct{ level, name int }

// Options and limits of rsocket(7).
const (
	solRDMA    = 0x10000
	rdmaSQSize = 0
	rdmaRQSize = 1
	rdmaInline = 2
	rdmaIOMaps = 3
	segment    = 1024 // bytes in a packet of the software device
	maxBuffer  = 64 << 20
	minBuffer  = 8 << 10
	maxMaps    = 127
)

// options are the options that a program has set. Accepted sockets inherit those of the listening socket.
type options struct {
	receive, send int // bytes
	maps          int
	reuse         bool
	alive         bool          // SO_KEEPALIVE
	idle          time.Duration // before a keepalive
	tos           int
	numbers       map[option]int // set values of options without effect
}

// defaults are those of librdmacm.
var defaults = options{receive: 128 << 10, send: 128 << 10, idle: 2 * time.Hour}

// ignored are options without effect, and their defaults. Programs can read back the values that they set.
var ignored = map[option]int{
	{unix.SOL_SOCKET, unix.SO_OOBINLINE}:      0,
	{unix.SOL_SOCKET, unix.SO_BROADCAST}:      0,
	{unix.IPPROTO_TCP, unix.TCP_NODELAY}:      0,
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}:      1,
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}:    1,
	{unix.IPPROTO_TCP, unix.TCP_MAXSEG}:       segment,
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}:     0,
	{solRDMA, rdmaSQSize}:                     384,
	{solRDMA, rdmaRQSize}:                     384,
	{solRDMA, rdmaInline}:                     64,
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 0,
}

// config returns a stream configuration. A send queue is half as large as the receive memory.
func (o *options) config(backend runtime.Backend) stream.Config {
	c := stream.Config{Backend: backend, Protocol: stream.RSocket, Maps: o.maps, ToS: uint8(o.tos),
		Buffer: max(o.receive, 2*o.send)}
	if o.alive {
		c.Heartbeat = o.idle
	}
	return c
}

// set implements rsetsockopt.
func (k *socket) set(o option, value []byte) error {
	if o == (option{unix.SOL_SOCKET, unix.SO_LINGER}) {
		return nil // close waits for a limited time anyway
	}
	if o == (option{unix.IPPROTO_TCP, unix.TCP_CONGESTION}) {
		return nil
	}
	if len(value) < 4 {
		return unix.EINVAL
	}
	v := int(int32(binary.NativeEndian.Uint32(value)))
	k.mu.Lock()
	defer k.mu.Unlock()
	if o.level == solRDMA && k.state >= connecting {
		return unix.EINVAL
	}
	switch o {
	case option{unix.SOL_SOCKET, unix.SO_REUSEADDR}:
		k.options.reuse = v != 0
	case option{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:
		k.options.alive = v != 0
	case option{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:
		if v <= 0 {
			return unix.EINVAL
		}
		k.options.idle = time.Duration(v) * time.Second
	case option{unix.SOL_SOCKET, unix.SO_RCVBUF}:
		k.options.receive = min(max(v, minBuffer), maxBuffer)
	case option{unix.SOL_SOCKET, unix.SO_SNDBUF}:
		k.options.send = min(max(v, minBuffer), maxBuffer)
	case option{solRDMA, rdmaIOMaps}:
		k.options.maps = min(max(v, 0), maxMaps)
	case option{unix.IPPROTO_IP, unix.IP_TOS}:
		k.options.tos = v & 0xff
	default:
		if _, known := ignored[o]; !known {
			return unix.ENOTSUP
		}
		own := map[option]int{o: v}
		for other, was := range k.options.numbers { // a copy, because accepted sockets share the map
			if other != o {
				own[other] = was
			}
		}
		k.options.numbers = own
	}
	return nil
}

// get implements rgetsockopt.
func (k *socket) get(o option, to, length uint64) error {
	k.mu.Lock()
	opts, now := k.options, k.state
	k.mu.Unlock()
	var v int
	switch o {
	case option{unix.SOL_SOCKET, unix.SO_ERROR}:
		v = int(errnoOf(k.takeError()))
	case option{unix.SOL_SOCKET, unix.SO_TYPE}:
		v = unix.SOCK_STREAM
	case option{unix.SOL_SOCKET, unix.SO_DOMAIN}:
		v = k.family
	case option{unix.SOL_SOCKET, unix.SO_PROTOCOL}:
		v = unix.IPPROTO_TCP
	case option{unix.SOL_SOCKET, unix.SO_ACCEPTCONN}:
		v = boolInt(now == listening)
	case option{unix.SOL_SOCKET, unix.SO_REUSEADDR}:
		v = boolInt(opts.reuse)
	case option{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:
		v = boolInt(opts.alive)
	case option{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:
		v = int(opts.idle / time.Second)
	case option{unix.SOL_SOCKET, unix.SO_RCVBUF}:
		v = opts.receive
	case option{unix.SOL_SOCKET, unix.SO_SNDBUF}:
		v = opts.send
	case option{solRDMA, rdmaIOMaps}:
		v = opts.maps
	case option{unix.IPPROTO_IP, unix.IP_TOS}:
		v = opts.tos
	case option{unix.SOL_SOCKET, unix.SO_LINGER}:
		return store(make([]byte, 8), to, length)
	case option{unix.IPPROTO_TCP, unix.TCP_INFO}:
		var info unix.TCPInfo
		if info.State = tcpClose; now == connected {
			info.State = tcpEstablished
		}
		return store(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), to, length)
	default:
		usual, known := ignored[o]
		if !known {
			return unix.ENOTSUP
		}
		if v, known = opts.numbers[o]; !known {
			v = usual
		}
	}
	return store(binary.NativeEndian.AppendUint32(nil, uint32(v)), to, length)
}

// States of connections in TCP_INFO.
const (
	tcpEstablished = 1
	tcpClose       = 7
)

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
