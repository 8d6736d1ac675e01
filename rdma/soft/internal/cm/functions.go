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
		"rdma_get_cm_event":          getEvent,
		"rdma_ack_cm_event":          ackEvent,
		"rdma_event_str":             device.Named(eventName),

		"rdma_create_id":    createID,
		"rdma_destroy_id":   call(destroyID),
		"rdma_migrate_id":   call(migrateID),
		"rdma_get_src_port": portNumberOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.SrcAddr() }),
		"rdma_get_dst_port": portNumberOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.DstAddr() }),

		"rdma_bind_addr":     locked(bindAddr),
		"rdma_listen":        locked(listen),
		"rdma_resolve_addr":  begun(resolveAddr),
		"rdma_resolve_route": begun(resolveRoute),

		"rdma_connect": begun(connect),
		"rdma_accept":  call(accept),
		"rdma_reject": locked(func(id *identifier,
			a []uint64) runtime.Errno {
			return id.reject(a, message.RejectConsumer)
		}),
		"rdma_reject_ece": locked(func(id *identifier,
			a []uint64) runtime.Errno {
			return id.reject(a, message.RejectVendorOption)
		}),
		"rdma_establish":  locked(establish),
		"rdma_notify":     locked(notify),
		"rdma_disconnect": call(disconnect),

		"rdma_create_qp":    call(createQP),
		"rdma_create_qp_ex": call(createQPEx),
		"rdma_destroy_qp":   void(destroyQP),
		"rdma_init_qp_attr": locked(initQPAttr),

		"rdma_create_srq":    call(createSRQ),
		"rdma_create_srq_ex": call(createSRQEx),
		"rdma_destroy_srq":   void(destroySRQ),

		"rdma_join_multicast":    begun(joinMulticast),
		"rdma_join_multicast_ex": begun(joinMulticastEx),
		"rdma_leave_multicast":   locked(leaveMulticast),

		"rdma_set_option":     locked(setOption),
		"rdma_set_local_ece":  locked(setLocalECE),
		"rdma_get_remote_ece": locked(remoteECE),
		"rdma_write_cm_event": locked(writeEvent),

		"rdma_free_devices": freeDevices,

		"rdma_freeaddrinfo":     freeAddrInfo,
		"rdma_resolve_addrinfo": begun(resolveAddrInfo),
		"rdma_query_addrinfo":   locked(queryAddrInfo),
		"rdma_create_ep":        createEP,
		"rdma_destroy_ep":       void(destroyEP),
		"rdma_get_request":      call(getRequest),
	}
})

func init() { device.Provide("librdmacm", librdmacm) }

// function gives those that take no object.
func (c *Manager) Function(name string) runtime.Func {
	switch name {
	case "rdma_create_event_channel":
		return c.createEventChannel
	case "rdma_get_devices":
		return c.devices
	case "rdma_getaddrinfo":
		return c.getAddrInfo
	}
	return nil
}

func eventName(v int32) string {
	if v < 0 || rdmacm.CMEventType(v) > rdmacm.CM_EVENT_ADDRINFO_ERROR {
		return "UNKNOWN EVENT"
	}
	return rdmacm.CMEventType(v).String()
}

// call is for functions of an identifier that return 0, or -1 and errno.
func call(f func(id *identifier, a []uint64) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		id := device.Find[identifier](a[0])
		if id == nil {
			return ^uint64(0), errnos.EINVAL
		}
		if errno := f(id, a); errno != 0 {
			return ^uint64(0), errno
		}
		return 0, 0
	}
}

// void is for functions that return nothing.
func void(f func(id *identifier)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		if id := device.Find[identifier](a[0]); id != nil {
			f(id)
		}
		return 0, 0
	}
}

// locked is call of what is done under the fabric's lock.
func locked(f func(id *identifier, a []uint64) runtime.Errno) runtime.Func {
	return call(func(id *identifier, a []uint64) runtime.Errno {
		return id.locked(func() runtime.Errno { return f(id, a) })
	})
}

// begun is locked of what an event ends, which synchronous identifiers wait for.
func begun(f func(id *identifier, a []uint64) runtime.Errno) runtime.Func {
	return call(func(id *identifier, a []uint64) runtime.Errno {
		return id.begin(func() runtime.Errno { return f(id, a) })
	})
}
