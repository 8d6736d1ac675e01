// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"sync"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// librdmacm are its functions that take an object. There are no rsockets.
var librdmacm = sync.OnceValue(func() map[string]runtime.Func {
	return map[string]runtime.Func{
		"rdma_destroy_event_channel": destroyEventChannel,
		"rdma_get_cm_event":          getCMEvent,
		"rdma_ack_cm_event":          ackCMEvent,
		"rdma_event_str":             device.Named(cmEventName),

		"rdma_create_id":    createCMID,
		"rdma_destroy_id":   cmCall(destroyCMID),
		"rdma_migrate_id":   cmCall(migrateCMID),
		"rdma_get_src_port": cmPortOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.SrcAddr() }),
		"rdma_get_dst_port": cmPortOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.DstAddr() }),

		"rdma_bind_addr":     cmLocked(bindAddr),
		"rdma_listen":        cmLocked(cmListen),
		"rdma_resolve_addr":  cmBegun(resolveAddr),
		"rdma_resolve_route": cmBegun(resolveRoute),

		"rdma_connect": cmBegun(cmConnect),
		"rdma_accept":  cmCall(cmAccept),
		"rdma_reject": cmLocked(func(id *cmID,
			a []uint64) runtime.Errno {
			return id.reject(a, message.RejectConsumer)
		}),
		"rdma_reject_ece": cmLocked(func(id *cmID,
			a []uint64) runtime.Errno {
			return id.reject(a, message.RejectVendorOption)
		}),
		"rdma_establish":  cmLocked(cmEstablish),
		"rdma_notify":     cmLocked(cmNotify),
		"rdma_disconnect": cmCall(cmDisconnect),

		"rdma_create_qp":    cmCall(cmCreateQP),
		"rdma_create_qp_ex": cmCall(cmCreateQPEx),
		"rdma_destroy_qp":   cmVoid(cmDestroyQP),
		"rdma_init_qp_attr": cmLocked(cmInitQPAttr),

		"rdma_create_srq":    cmCall(cmCreateSRQ),
		"rdma_create_srq_ex": cmCall(cmCreateSRQEx),
		"rdma_destroy_srq":   cmVoid(cmDestroySRQ),

		"rdma_join_multicast":    cmBegun(joinMulticast),
		"rdma_join_multicast_ex": cmBegun(joinMulticastEx),
		"rdma_leave_multicast":   cmLocked(leaveMulticast),

		"rdma_set_option":     cmLocked(setCMOption),
		"rdma_set_local_ece":  cmLocked(setLocalECE),
		"rdma_get_remote_ece": cmLocked(remoteECE),
		"rdma_write_cm_event": cmLocked(writeCMEvent),

		"rdma_free_devices": freeCMDevices,

		"rdma_freeaddrinfo":     freeAddrInfo,
		"rdma_resolve_addrinfo": cmBegun(resolveAddrInfo),
		"rdma_query_addrinfo":   cmLocked(queryAddrInfo),
		"rdma_create_ep":        createEP,
		"rdma_destroy_ep":       cmVoid(destroyEP),
		"rdma_get_request":      cmCall(getRequest),
	}
})

func init() { device.Provide("librdmacm", librdmacm) }

// function gives those that take no object.
func (c *Manager) Function(name string) runtime.Func {
	switch name {
	case "rdma_create_event_channel":
		return c.createEventChannel
	case "rdma_get_devices":
		return c.cmDevices
	case "rdma_getaddrinfo":
		return c.getAddrInfo
	}
	return nil
}

func cmEventName(v int32) string {
	if v < 0 || rdmacm.CMEventType(v) > rdmacm.CM_EVENT_ADDRINFO_ERROR {
		return "UNKNOWN EVENT"
	}
	return rdmacm.CMEventType(v).String()
}

// cmCall is for functions of an identifier that return 0, or -1 and errno.
func cmCall(f func(id *cmID, a []uint64) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		id := device.Find[cmID](a[0])
		if id == nil {
			return ^uint64(0), errnos.EINVAL
		}
		if errno := f(id, a); errno != 0 {
			return ^uint64(0), errno
		}
		return 0, 0
	}
}

// cmVoid is for functions that return nothing.
func cmVoid(f func(id *cmID)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		if id := device.Find[cmID](a[0]); id != nil {
			f(id)
		}
		return 0, 0
	}
}

// cmLocked is cmCall of what is done under the fabric's lock.
func cmLocked(f func(id *cmID, a []uint64) runtime.Errno) runtime.Func {
	return cmCall(func(id *cmID, a []uint64) runtime.Errno {
		return id.locked(func() runtime.Errno { return f(id, a) })
	})
}

// cmBegun is cmLocked of what an event ends, which synchronous identifiers wait for.
func cmBegun(f func(id *cmID, a []uint64) runtime.Errno) runtime.Func {
	return cmCall(func(id *cmID, a []uint64) runtime.Errno {
		return id.begin(func() runtime.Errno { return f(id, a) })
	})
}
