// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// managed contains the decoders of the connection manager's functions. Each line contains the ID, by which readers
// match calls and events.
var managed = map[string]decoder{
	"rdma_create_id": {before: func(l *line, a []uint64) {
		if a[0] == 0 { // without a channel, the ID has no events
			l.number("synchronous", 1)
		}
	}, after: func(l *line, a []uint64, result uint64) {
		if int32(result) == 0 {
			l.pointer("cm_id", *at[uintptr](a[1]))
		}
	}},
	"rdma_migrate_id": {before: func(l *line, a []uint64) {
		l.pointer("cm_id", a[0])
		if a[1] == 0 {
			l.number("synchronous", 1)
		}
	}},
	"rdma_destroy_id": {before: named("cm_id")},
	"rdma_bind_addr": {before: func(l *line, a []uint64) {
		l.pointer("cm_id", a[0])
		l.sockaddr("address", a[1])
	}},
	"rdma_listen": {before: named("cm_id")},
	"rdma_resolve_addr": {before: func(l *line, a []uint64) {
		l.pointer("cm_id", a[0])
		l.sockaddr("address", a[2])
	}},
	"rdma_resolve_route": {before: named("cm_id")},
	"rdma_connect":       {before: connecting},
	"rdma_accept":        {before: connecting},
	"rdma_reject":        {before: named("cm_id")},
	"rdma_disconnect":    {before: named("cm_id")},
	"rdma_get_cm_event": {after: func(l *line, a []uint64, result uint64) {
		if int32(result) != 0 {
			return
		}
		e := at[ibv.Ptr[rdmacm.CMEvent]](a[1]).Deref()
		l.text("event", short(e.Event, "RDMA_CM_EVENT_"))
		l.text("status", strconv.Itoa(int(e.Status)))
		l.pointer("cm_id", uintptr(e.ID))
		if qp := e.ID.Deref().QP; qp != 0 {
			l.number("qp", uint64(qp.Deref().QPNum))
		}
	}},
}

func madeByID(l *line, a []uint64, result uint64) {
	if int32(result) == 0 {
		madeQP(l, a, uint64(at[rdmacm.CMID](a[0]).QP))
	}
}

func connecting(l *line, a []uint64) {
	id := at[rdmacm.CMID](a[0])
	l.pointer("cm_id", a[0])
	if id.QP != 0 {
		l.number("qp", uint64(id.QP.Deref().QPNum))
	}
	if a[1] != 0 {
		p := at[rdmacm.ConnParam](a[1])
		l.number("retry_cnt", uint64(p.RetryCount))
		l.number("rnr_retry", uint64(p.RNRRetryCount))
		l.number("max_rd_atomic", uint64(p.InitiatorDepth))
		l.number("max_dest_rd_atomic", uint64(p.ResponderResources))
	}
}

// sockaddr writes an IPv4 or IPv6 address and its port. It writes nothing for other families.
func (l *line) sockaddr(name string, address uint64) {
	const afInet, afInet6 = 2, 10 // Linux's numbers
	if address == 0 {
		return
	}
	port := func(v *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(v))[:]) }
	switch at[rdmacm.Sockaddr](address).SAFamily {
	case afInet:
		in := at[rdmacm.SockaddrIn](address)
		ip := netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&in.SinAddr)))
		l.text(name, netip.AddrPortFrom(ip, port(&in.SinPort)).String())
	case afInet6:
		in := at[rdmacm.SockaddrIn6](address)
		ip := netip.AddrFrom16(*in.Sin6Addr.In6U.U6Addr8())
		l.text(name, netip.AddrPortFrom(ip, port(&in.Sin6Port)).String())
	}
}
