// SPDX-License-Identifier: BSD-2-Clause

//go:build cgo && linux && (amd64 || arm64)

package main

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	goverbs "github.com/goverbs/goverbs/runtime"
)

// Errors of getaddrinfo(3), as the GNU C library numbers them.
const (
	noName    = -2
	noService = -8
)

// withResolver makes rdma_getaddrinfo query the host's resolver, as librdmacm does, for node and service names that the
// software device cannot resolve. The software device resolves addresses, numbers, localhost and device names.
func withResolver(getAddrInfo goverbs.Func) goverbs.Func {
	return func(args []uint64) (uint64, goverbs.Errno) {
		r, errno := getAddrInfo(args)
		node, service, hints := ibv.Ptr[byte](args[0]), ibv.Ptr[byte](args[1]), ibv.Ptr[rdmacm.AddrInfo](args[2])
		var hint rdmacm.AddrInfo
		if hints != 0 {
			hint = *hints.Deref()
		}
		query := [4]uint64(args)
		var names [2][]byte // C uses them during the call
		if int32(r) == noService && service != 0 {
			if names[1] = port(text(service), hint.AiPortSpace); names[1] == nil {
				return r, errno
			}
			query[1] = uint64(uintptr(unsafe.Pointer(&names[1][0])))
			r, errno = getAddrInfo(query[:])
		}
		if int32(r) == noName && node != 0 && hint.AiFlags&rdmacm.RAI_NUMERICHOST == 0 {
			if names[0] = address(text(node), hint.AiFamily); names[0] == nil {
				return r, errno
			}
			query[0] = uint64(uintptr(unsafe.Pointer(&names[0][0])))
			r, errno = getAddrInfo(query[:])
		}
		runtime.KeepAlive(&names)
		return r, errno
	}
}

// address returns the first address of a name in the requested family, as a C string, or nil.
func address(name string, family int32) []byte {
	network := map[int32]string{0: "ip", 2: "ip4", 10: "ip6"}[family]
	if network == "" {
		return nil
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return nil // of the other family
	}
	all, err := net.DefaultResolver.LookupNetIP(context.Background(), network, name)
	if err != nil || len(all) == 0 {
		return nil
	}
	return append([]byte(all[0].Unmap().String()), 0)
}

// port returns the port number of a service, as a C string, or nil for an unknown service.
func port(service string, space rdmacm.PortSpace) []byte {
	network := "tcp"
	if space == rdmacm.PS_UDP {
		network = "udp"
	}
	n, err := net.LookupPort(network, service)
	if err != nil {
		return nil
	}
	return append(strconv.AppendInt(nil, int64(n), 10), 0)
}

// text returns a C string.
func text(of ibv.Ptr[byte]) string {
	const most = 1025 // NI_MAXHOST of the C library
	var b []byte
	for p := unsafe.Pointer(of.Deref()); len(b) < most && *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	return string(b)
}
