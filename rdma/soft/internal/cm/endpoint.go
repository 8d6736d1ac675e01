// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// endpointTimeout is the timeout of resolving in rdma_create_ep, in milliseconds.
const endpointTimeout = 2000

// createEP is rdma_create_ep: it creates a synchronous identifier, bound or resolved.
func createEP(to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], of ibv.Ptr[rdmacm.AddrInfo], pd ibv.Ptr[ibv.PD],
	init ibv.Ptr[ibv.QPInitAttr]) nap.Try {
	var id *identifier
	var rest nap.Try
	return inTurn(once(func() (errno runtime.Errno) {
		id, rest, errno = beginEP(to, of, pd, init)
		return errno
	}), func(w *nap.Waiter) runtime.Errno {
		errno := rest(w)
		switch errno {
		case 0:
			*to.Deref() = ibv.PtrTo(id.record)
		case nap.Asleep:
		default:
			destroyID(id)
		}
		return errno
	})
}

// beginEP creates the identifier, and returns the remaining steps.
func beginEP(to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], of ibv.Ptr[rdmacm.AddrInfo], pd ibv.Ptr[ibv.PD],
	init ibv.Ptr[ibv.QPInitAttr]) (*identifier, nap.Try, runtime.Errno) {
	info := verbs.Find[addrInfo](of)
	if info == nil || to == 0 {
		return nil, nil, syscall.EINVAL
	}
	c, i := info.cm, &info.record.AddrInfo
	if _, ok := portSpaceKind(i.AiPortSpace); !ok {
		return nil, nil, syscall.EINVAL
	}
	c.Lock()
	id, errno := c.newID(nil, 0, i.AiPortSpace, i.AiQPType)
	c.Unlock()
	if errno != 0 {
		return nil, nil, errno
	}
	attr := init.Deref()
	if i.AiFlags&rdmacm.RAI_PASSIVE != 0 {
		return id, once(func() runtime.Errno { return id.passiveEP(i, pd, attr) }), 0
	}
	return id, id.activeEP(i, pd, attr), 0
}

func (id *identifier) passiveEP(i *rdmacm.AddrInfo, pd ibv.Ptr[ibv.PD], attr *ibv.QPInitAttr) runtime.Errno {
	if errno := id.locked(func() runtime.Errno { return bindAddr(id, i.AiSrcAddr) }); errno != 0 {
		return errno
	}
	if pd != 0 {
		id.record.PD = pd
	}
	if attr != nil { // used for requests
		own := *attr
		own.QPType = i.AiQPType
		id.passive = &own
	}
	return 0
}

func (id *identifier) activeEP(i *rdmacm.AddrInfo, pd ibv.Ptr[ibv.PD], attr *ibv.QPInitAttr) nap.Try {
	return inTurn(
		id.begin(func() runtime.Errno { return resolveAddr(id, i.AiSrcAddr, i.AiDstAddr, endpointTimeout) }),
		id.begin(func() runtime.Errno { return resolveRoute(id, endpointTimeout) }),
		once(func() runtime.Errno {
			if attr == nil {
				return 0
			}
			attr.QPType = i.AiQPType
			return id.createPlainQP(pd, attr)
		}))
}

// destroyEP is rdma_destroy_ep.
func destroyEP(id *identifier) runtime.Errno {
	if id.record.QP != 0 {
		destroyQP(id)
	}
	if id.record.SRQ != 0 {
		destroySRQ(id)
	}
	destroyID(id)
	return 0
}

// getRequest is rdma_get_request.
func getRequest(of ibv.Ptr[rdmacm.CMID], to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], w *nap.Waiter) runtime.Errno {
	id := verbs.Find[identifier](of)
	if id == nil || !id.sync || to == 0 {
		return syscall.EINVAL
	}
	id.acknowledge()
	e, errno := id.channel.next(w)
	if errno != 0 {
		return errno
	}
	switch {
	case e.Event == rdmacm.CM_EVENT_REJECTED:
		errno = syscall.ECONNREFUSED
	case e.Status != 0:
		errno = runtime.Errno(-e.Status)
	case e.Event != rdmacm.CM_EVENT_CONNECT_REQUEST:
		errno = syscall.EINVAL
	}
	request := verbs.Find[identifier](uint64(e.ID))
	if errno == 0 && id.passive != nil {
		own := *id.passive
		errno = request.createPlainQP(id.record.PD, &own)
	}
	if errno != 0 {
		id.record.Event = ibv.PtrTo(e)
		return errno
	}
	request.record.Event = ibv.PtrTo(e)
	*to.Deref() = e.ID
	return 0
}
