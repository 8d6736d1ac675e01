// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"strconv"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// addrInfo is a result of rdma_getaddrinfo with its addresses.
type addrInfo struct {
	cm     *Manager
	record *addrInfoRecord
}

func (i *addrInfo) Fabric() *engine.Engine { return &i.cm.Engine }

type addrInfoRecord struct {
	rdmacm.AddrInfo
	source, to rdmacm.SockaddrStorage
}

// Errors of getaddrinfo(3), numbered as in the GNU C library.
const (
	noName    = -2
	noFamily  = -6
	noService = -8
)

// getAddrInfo is rdma_getaddrinfo. Nodes are addresses, "localhost" and the names of the fabric's devices; services are
// numbers. It queries no name service.
func (c *Manager) getAddrInfo(node, service ibv.Ptr[byte], hints ibv.Ptr[rdmacm.AddrInfo],
	to ibv.Ptr[ibv.Ptr[rdmacm.AddrInfo]]) (int32, runtime.Errno) {
	if node == 0 && service == 0 && hints == 0 || to == 0 {
		return -1, syscall.EINVAL
	}
	c.Lock()
	defer c.Unlock()
	record, code, errno := c.resolve(node, service, hints)
	switch {
	case errno != 0:
		return -1, errno
	case code != 0:
		return int32(code), 0
	}
	*to.Deref() = ibv.PtrTo(&record.AddrInfo)
	return 0, 0
}

func (c *Manager) resolve(node, service ibv.Ptr[byte], hinted ibv.Ptr[rdmacm.AddrInfo]) (record *addrInfoRecord,
	code int, errno runtime.Errno) {
	var hints rdmacm.AddrInfo
	if hinted != 0 {
		hints = *hinted.Deref()
	}
	if hints.AiFlags&rdmacm.RAI_SA != 0 { // needs InfiniBand subnet administration
		return nil, 0, syscall.EOPNOTSUPP
	}
	var own netip.AddrPort
	passive := hints.AiFlags&rdmacm.RAI_PASSIVE != 0
	const gid = rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST
	native := hints.AiFamily == rdmacm.AF_IB && hints.AiFlags&gid == gid && (node != 0 || service != 0)
	if hints.AiFamily == rdmacm.AF_IB && (node != 0 || service != 0) { // AF_IB does not affect names otherwise
		if hints.AiFamily = 0; native {
			hints.AiFamily = afInet6
		}
	}
	if node != 0 || service != 0 {
		if own, code = c.lookup(node, service, hints.AiFamily, passive,
			hints.AiFlags&rdmacm.RAI_NUMERICHOST != 0); code != 0 {
			return nil, code, 0
		}
	}
	if record, errno = verbs.AllocateOf[addrInfoRecord](&c.Engine); errno != 0 {
		return nil, 0, errno
	}
	i := &record.AddrInfo
	i.AiFlags, i.AiFamily, i.AiQPType, i.AiPortSpace = hints.AiFlags&rdmacm.RAI_PASSIVE, hints.AiFamily, hints.AiQPType,
		hints.AiPortSpace
	if i.AiPortSpace == 0 {
		if i.AiPortSpace = rdmacm.PS_TCP; i.AiQPType == ibv.QPT_UD {
			i.AiPortSpace = rdmacm.PS_UDP
		}
	}
	if i.AiQPType == 0 {
		if i.AiQPType = ibv.QPT_RC; i.AiPortSpace == rdmacm.PS_UDP || i.AiPortSpace == rdmacm.PS_IPOIB {
			i.AiQPType = ibv.QPT_UD
		}
	}
	if hints.AiSrcLen > 0 {
		i.AiSrcLen = copyAddress(&record.source, hints.AiSrcAddr)
	}
	if hints.AiDstLen > 0 && node == 0 && service == 0 {
		i.AiDstLen = copyAddress(&record.to, hints.AiDstAddr)
	}
	if own.IsValid() {
		found, n := &record.to, &i.AiDstLen
		if passive {
			found, n = &record.source, &i.AiSrcLen
		}
		*n = writeAddress(found, own, zoneIndex(own.Addr().Zone()))
		if native {
			*n = writeNative(found, own, i.AiPortSpace)
		}
		i.AiFamily = int32(found.SsFamily)
	}
	if i.AiSrcLen > 0 {
		i.AiSrcAddr = ibv.Ptr[rdmacm.Sockaddr](mem.AddressOf(&record.source))
	}
	if i.AiDstLen > 0 {
		i.AiDstAddr = ibv.Ptr[rdmacm.Sockaddr](mem.AddressOf(&record.to))
	}
	verbs.Enter(record, &addrInfo{c, record})
	return record, 0, 0
}

// lookup resolves a node and a service.
func (c *Manager) lookup(node, service ibv.Ptr[byte], family int32, passive, numeric bool) (a netip.AddrPort,
	code int) {
	port := uint64(0)
	if service != 0 {
		var err error
		if port, err = strconv.ParseUint(cString(service), 10, 16); err != nil {
			return a, noService
		}
	}
	if family != 0 && family != afInet && family != afInet6 {
		return a, noFamily
	}
	ip := loopback(family != afInet6)
	if passive {
		ip = unspecified(family != afInet6)
	}
	if node != 0 {
		name := cString(node)
		parsed, err := netip.ParseAddr(name)
		d := c.Named(name)
		switch {
		case err == nil:
			if ip = parsed.Unmap(); ip.Zone() != "" && zoneIndex(ip.Zone()) == 0 {
				return a, noName
			}
		case numeric:
			return a, noName
		case name == "localhost":
			ip = loopback(family != afInet6)
		case d != nil:
			ip = d.IP()
		default:
			return a, noName
		}
	}
	if family == afInet && !ip.Is4() || family == afInet6 && ip.Is4() {
		return a, noName
	}
	return netip.AddrPortFrom(ip, uint16(port)), 0
}

// cString reads a C string, which is short for nodes and services.
func cString(p ibv.Ptr[byte]) string {
	s, _ := abi.Text(p, 1023)
	return s
}

// freeAddrInfo is rdma_freeaddrinfo.
func freeAddrInfo(of ibv.Ptr[rdmacm.AddrInfo]) runtime.Errno {
	verbs.LockedDo(of, func(i *addrInfo) runtime.Errno {
		verbs.Forget(i.record)
		return 0
	})
	return 0
}

// resolveAddrInfo is rdma_resolve_addrinfo. The answer is available at once, but is still announced by an event.
func resolveAddrInfo(id *identifier, node, service ibv.Ptr[byte], hints ibv.Ptr[rdmacm.AddrInfo]) runtime.Errno {
	if id.looking {
		return syscall.EBUSY
	}
	if hints != 0 && hints.Deref().AiFlags&rdmacm.RAI_SA != 0 { // needs InfiniBand subnet administration
		return syscall.EOPNOTSUPP
	}
	record, code, errno := id.cm.resolve(node, service, hints)
	switch {
	case errno != 0:
		return errno
	case code != 0: // mapped as in librdmacm
		return runtime.Errno(-code)
	}
	id.looking, id.addresses = true, record
	id.tell(rdmacm.CM_EVENT_ADDRINFO_RESOLVED, 0)
	return 0
}

// queryAddrInfo is rdma_query_addrinfo.
func queryAddrInfo(id *identifier, to ibv.Ptr[ibv.Ptr[rdmacm.AddrInfo]]) runtime.Errno {
	switch {
	case to == 0:
		return syscall.EINVAL
	case id.addresses == nil:
		return syscall.ENOENT
	}
	*to.Deref() = ibv.PtrTo(&id.addresses.AddrInfo)
	id.looking, id.addresses = false, nil
	return 0
}
