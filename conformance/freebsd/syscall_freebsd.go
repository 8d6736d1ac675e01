// SPDX-License-Identifier: BSD-2-Clause

package freebsd

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/freebsd/ibv"
	"github.com/goverbs/goverbs/generated/freebsd/rdmacm"
)

// Each index is a difference that is zero when a generated type is laid out as the one of package syscall, which was made
// from FreeBSD's own headers.
var same [1]struct{}

var (
	sa  syscall.RawSockaddr
	sa4 syscall.RawSockaddrInet4
	sa6 syscall.RawSockaddrInet6
	ts  syscall.Timespec
)

var (
	_ = same[unsafe.Sizeof(rdmacm.Sockaddr{})-unsafe.Sizeof(sa)]
	_ = same[unsafe.Offsetof(rdmacm.Sockaddr{}.SALen)-unsafe.Offsetof(sa.Len)]
	_ = same[unsafe.Offsetof(rdmacm.Sockaddr{}.SAFamily)-unsafe.Offsetof(sa.Family)]
	_ = same[unsafe.Sizeof(rdmacm.Sockaddr{}.SAFamily)-unsafe.Sizeof(sa.Family)]
	_ = same[unsafe.Offsetof(rdmacm.Sockaddr{}.SAData)-unsafe.Offsetof(sa.Data)]

	_ = same[unsafe.Sizeof(rdmacm.SockaddrIn{})-unsafe.Sizeof(sa4)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn{}.SinFamily)-unsafe.Offsetof(sa4.Family)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn{}.SinPort)-unsafe.Offsetof(sa4.Port)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn{}.SinAddr)-unsafe.Offsetof(sa4.Addr)]

	_ = same[unsafe.Sizeof(rdmacm.SockaddrIn6{})-unsafe.Sizeof(sa6)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn6{}.Sin6Family)-unsafe.Offsetof(sa6.Family)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn6{}.Sin6Port)-unsafe.Offsetof(sa6.Port)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn6{}.Sin6Flowinfo)-unsafe.Offsetof(sa6.Flowinfo)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn6{}.Sin6Addr)-unsafe.Offsetof(sa6.Addr)]
	_ = same[unsafe.Offsetof(rdmacm.SockaddrIn6{}.Sin6ScopeID)-unsafe.Offsetof(sa6.Scope_id)]

	_ = same[unsafe.Sizeof(ibv.Timespec{})-unsafe.Sizeof(ts)]
	_ = same[unsafe.Offsetof(ibv.Timespec{}.TvNsec)-unsafe.Offsetof(ts.Nsec)]
)
