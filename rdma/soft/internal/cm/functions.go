// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// librdmacmWaiting lists the functions that wait for an event, always or with synchronous identifiers.
var librdmacmWaiting = sync.OnceValue(func() map[string]abi.Waiting {
	return map[string]abi.Waiting{
		"rdma_get_cm_event":      abi.Again(abi.Wait2(getEvent)),
		"rdma_resolve_addr":      begun(abi.After3(resolveAddr)),
		"rdma_resolve_route":     begun(abi.After1(resolveRoute)),
		"rdma_resolve_addrinfo":  begun(abi.After3(resolveAddrInfo)),
		"rdma_connect":           begun(abi.After1(connect)),
		"rdma_accept":            waits(abi.After1(accept)),
		"rdma_disconnect":        waits(abi.After0(disconnect)),
		"rdma_join_multicast":    begun(abi.After2(joinMulticast)),
		"rdma_join_multicast_ex": begun(abi.After2(joinMulticastEx)),
		"rdma_create_ep":         abi.InSteps(abi.Take4(createEP)),
		"rdma_get_request":       abi.Again(abi.Wait2(getRequest)),
	}
})

// librdmacm lists the other functions that take an object. rsockets are not implemented.
var librdmacm = sync.OnceValue(func() map[string]runtime.Func {
	return map[string]runtime.Func{
		"rdma_destroy_event_channel": abi.Void(abi.Take1(destroyEventChannel)),
		"rdma_ack_cm_event":          abi.Status(abi.Take1(ackEvent)),
		"rdma_event_str":             verbs.Named(eventName),

		"rdma_create_id":    abi.Status(abi.Take4(createID)),
		"rdma_destroy_id":   call(abi.After0(destroyID)),
		"rdma_migrate_id":   call(abi.After1(migrateID)),
		"rdma_get_src_port": portNumberOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.SrcAddr() }),
		"rdma_get_dst_port": portNumberOf(func(a *rdmacm.Addr) *rdmacm.Sockaddr { return a.DstAddr() }),

		"rdma_bind_addr": locked(abi.After1(bindAddr)),
		"rdma_listen":    locked(abi.After1(listen)),

		"rdma_reject":     sending(abi.After2(rejecting(message.RejectConsumer))),
		"rdma_reject_ece": sending(abi.After2(rejecting(message.RejectVendorOption))),
		"rdma_establish":  sending(abi.After0(establish)),
		"rdma_notify":     locked(abi.After1(notify)),

		"rdma_create_qp":    call(abi.After2(createQP)),
		"rdma_create_qp_ex": call(abi.AfterRecord((*identifier).createQP)),
		"rdma_destroy_qp":   void(destroyQP),
		"rdma_init_qp_attr": locked(abi.After2(initQPAttr)),

		"rdma_create_srq":    call(abi.After2(createSRQ)),
		"rdma_create_srq_ex": call(abi.AfterRecord((*identifier).createSRQ)),
		"rdma_destroy_srq":   void(destroySRQ),

		"rdma_leave_multicast": locked(abi.After1(leaveMulticast)),

		"rdma_set_option":     locked(abi.After4(setOption)),
		"rdma_set_local_ece":  locked(abi.After1(setLocalECE)),
		"rdma_get_remote_ece": locked(abi.After1(remoteECE)),
		"rdma_write_cm_event": locked(abi.After3(writeEvent)),

		"rdma_free_devices": abi.Void(abi.Take1(freeDevices)),

		"rdma_freeaddrinfo":   abi.Void(abi.Take1(freeAddrInfo)),
		"rdma_query_addrinfo": locked(abi.After1(queryAddrInfo)),
		"rdma_destroy_ep":     void(destroyEP),
	}
})

func init() { verbs.Provide("librdmacm", librdmacm, librdmacmWaiting) }

// Function returns a function that takes no object, or may take none.
func (c *Manager) Function(name string) runtime.Func {
	switch name {
	case "rdma_create_event_channel":
		return abi.Func0(c.createEventChannel)
	case "rdma_create_id":
		return abi.Status(abi.Take4(c.createAnyID))
	case "rdma_get_devices":
		return abi.Func1(c.devices)
	case "rdma_getaddrinfo":
		return abi.Func4(c.getAddrInfo)
	}
	return nil
}

func eventName(v int32) string {
	if v < 0 || rdmacm.CMEventType(v) > rdmacm.CM_EVENT_ADDRINFO_ERROR {
		return "UNKNOWN EVENT"
	}
	return rdmacm.CMEventType(v).String()
}

// call adapts a function of an identifier that returns 0, or -1 and errno.
func call(f func(id *identifier, a abi.Args) runtime.Errno) runtime.Func {
	return abi.Status(abi.Of(verbs.Find[identifier, uint64], f))
}

// void adapts a function without a result.
func void(f func(id *identifier) runtime.Errno) runtime.Func {
	return abi.Void(abi.Take1(func(of ibv.Ptr[rdmacm.CMID]) runtime.Errno {
		if id := verbs.Find[identifier](of); id != nil {
			f(id)
		}
		return 0
	}))
}

// locked is call under the fabric's lock.
func locked(f func(id *identifier, a abi.Args) runtime.Errno) runtime.Func {
	return call(func(id *identifier, a abi.Args) runtime.Errno {
		return id.locked(func() runtime.Errno { return f(id, a) })
	})
}

// sending is locked for functions that send messages to the peer.
func sending(f func(id *identifier, a abi.Args) runtime.Errno) runtime.Func {
	return call(func(id *identifier, a abi.Args) runtime.Errno {
		return id.sent(func() runtime.Errno { return f(id, a) })
	})
}

// waits is call for functions that may wait.
func waits(f func(id *identifier, a abi.Args) nap.Try) abi.Waiting {
	return abi.InSteps(abi.TryOf(verbs.Find[identifier, uint64], f))
}

// begun is locked for operations that complete with an event, which synchronous identifiers wait for.
func begun(f func(id *identifier, a abi.Args) runtime.Errno) abi.Waiting {
	return waits(func(id *identifier, a abi.Args) nap.Try {
		return id.begin(func() runtime.Errno { return f(id, a) })
	})
}
