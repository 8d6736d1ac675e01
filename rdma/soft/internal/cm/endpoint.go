// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// endpointTimeout is how long rdma_create_ep tries to resolve, in milliseconds.
const endpointTimeout = 2000

// createEP is rdma_create_ep: a synchronous identifier, bound or resolved.
func createEP(a []uint64) (uint64, runtime.Errno) {
	info := device.Find[addrInfo](a[1])
	if info == nil || a[0] == 0 {
		return ^uint64(0), errnos.EINVAL
	}
	c, i := info.cm, &info.record.AddrInfo
	if _, ok := portSpaceKind(i.AiPortSpace); !ok {
		return ^uint64(0), errnos.EINVAL
	}
	c.Lock()
	id, errno := c.newID(nil, 0, i.AiPortSpace, i.AiQPType)
	c.Unlock()
	if errno != 0 {
		return ^uint64(0), errno
	}
	record := mem.AddressOf(id.record)
	var attr *ibv.QPInitAttr
	if a[3] != 0 {
		attr = mem.At[ibv.QPInitAttr](a[3])
	}
	if i.AiFlags&rdmacm.RAI_PASSIVE != 0 {
		errno = id.passiveEP(i, a[2], attr)
	} else {
		errno = id.activeEP(i, a[2], attr)
	}
	if errno != 0 {
		destroyID(id, nil)
		return ^uint64(0), errno
	}
	*mem.At[ibv.Ptr[rdmacm.CMID]](a[0]) = ibv.Ptr[rdmacm.CMID](record)
	return 0, 0
}

func (id *identifier) passiveEP(i *rdmacm.AddrInfo, pd uint64, attr *ibv.QPInitAttr) runtime.Errno {
	if errno := id.locked(func() runtime.Errno { return bindAddr(id, []uint64{0, uint64(i.AiSrcAddr)}) }); errno != 0 {
		return errno
	}
	if pd != 0 {
		id.record.PD = ibv.Ptr[ibv.PD](pd)
	}
	if attr != nil { // for the requests
		own := *attr
		own.QPType = i.AiQPType
		id.passive = &own
	}
	return 0
}

func (id *identifier) activeEP(i *rdmacm.AddrInfo, pd uint64, attr *ibv.QPInitAttr) runtime.Errno {
	errno := id.begin(func() runtime.Errno {
		return resolveAddr(id, []uint64{0, uint64(i.AiSrcAddr), uint64(i.AiDstAddr), endpointTimeout})
	})
	if errno != 0 {
		return errno
	}
	if errno := id.begin(func() runtime.Errno { return resolveRoute(id, []uint64{0, endpointTimeout}) }); errno != 0 {
		return errno
	}
	if attr == nil {
		return 0
	}
	attr.QPType = i.AiQPType
	return createQP(id, []uint64{0, pd, mem.AddressOf(attr)})
}

// destroyEP is rdma_destroy_ep.
func destroyEP(id *identifier) {
	if id.record.QP != 0 {
		destroyQP(id)
	}
	if id.record.SRQ != 0 {
		destroySRQ(id)
	}
	destroyID(id, nil)
}

// getRequest is rdma_get_request.
func getRequest(id *identifier, a []uint64) runtime.Errno {
	if !id.sync || a[1] == 0 {
		return errnos.EINVAL
	}
	id.acknowledge()
	e, errno := id.channel.next()
	if errno != 0 {
		return errno
	}
	switch {
	case e.Event == rdmacm.CM_EVENT_REJECTED:
		errno = errnos.ECONNREFUSED
	case e.Status != 0:
		errno = runtime.Errno(-e.Status)
	case e.Event != rdmacm.CM_EVENT_CONNECT_REQUEST:
		errno = errnos.EINVAL
	}
	request := device.Find[identifier](uint64(e.ID))
	if errno == 0 && id.passive != nil {
		own := *id.passive
		errno = createQP(request, []uint64{0, uint64(id.record.PD), mem.AddressOf(&own)})
	}
	if errno != 0 {
		id.record.Event = ibv.PtrTo(e)
		return errno
	}
	request.record.Event = ibv.PtrTo(e)
	*mem.At[ibv.Ptr[rdmacm.CMID]](a[1]) = e.ID
	return 0
}
