// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// option calls rdma_set_option.
func option[T any](id *ID, level, name int, value T, reasons ...errnoReason) error {
	v := &value
	return id.call("rdma_set_option", func() error {
		return librdmacm.SetOption(id.c, level, name, uintptr(unsafe.Pointer(v)), uint64(unsafe.Sizeof(*v)))
	}, reasons...)
}

// SetToS sets the type of service of the ID's connections. For RoCE and iWARP, it is that of the IP packets (DSCP <<
// 2). Call it before the route is resolved.
//
// C: rdma_set_option, RDMA_OPTION_ID_TOS
//
// Man: rdma_set_option(3)
func (id *ID) SetToS(tos uint8) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_TOS, tos)
}

// SetReuseAddr lets other IDs with the same option bind to the ID's address. Call it before the ID is bound.
//
// C: rdma_set_option, RDMA_OPTION_ID_REUSEADDR
//
// Man: rdma_set_option(3)
func (id *ID) SetReuseAddr(reuse bool) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_REUSEADDR, truth(reuse),
		errnoReason{syscall.EINVAL, "set this option before the ID is bound"})
}

// SetAFOnly restricts a listener to its address family: an IPv6 listener then rejects IPv4. Call it before the ID is
// bound.
//
// C: rdma_set_option, RDMA_OPTION_ID_AFONLY
//
// Man: rdma_set_option(3)
func (id *ID) SetAFOnly(only bool) error {
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_AFONLY, truth(only),
		errnoReason{syscall.EINVAL, "set this option before the ID is bound"})
}

func truth(set bool) int32 {
	if set {
		return 1
	}
	return 0
}

// SetAckTimeout sets how long the queue pair waits for an acknowledgement before it retransmits: 4.096 µs · 2^exponent,
// up to 31; 0 means forever. Call it before Connect or Accept, which apply it to the queue pair. If they have been
// called already, SetAckTimeout returns an error, where C silently does nothing.
//
// C: rdma_set_option, RDMA_OPTION_ID_ACK_TIMEOUT
//
// Man: rdma_set_option(3)
func (id *ID) SetAckTimeout(exponent uint8) error {
	if exponent > 31 { // the kernel accepts larger values and misreads them
		return verberr.Invalid("rdma_set_option", id.name(), "ACK timeout %d exceeds the maximum, 31", exponent)
	}
	if qp := id.QP(); qp != nil && (qp.State() == ibv.QPS_RTS || qp.State() == ibv.QPS_SQD) {
		return verberr.Invalid("rdma_set_option", id.name(), "the queue pair is already connected and keeps its ACK "+
			"timeout: call SetAckTimeout before Connect or Accept")
	}
	return option(id, rdmacm.OPTION_ID, rdmacm.OPTION_ID_ACK_TIMEOUT, exponent,
		errnoReason{syscall.EINVAL, "the ID must be for connections, not for datagrams"})
}

// SetIBPath sets the paths on InfiniBand, instead of ResolveRoute. RDMA_CM_EVENT_ROUTE_RESOLVED follows.
//
// C: rdma_set_option, RDMA_OPTION_IB_PATH
//
// Man: rdma_set_option(3)
func (id *ID) SetIBPath(paths []rdmacm.IBVPathData) error {
	const verb = "rdma_set_option"
	if len(paths) == 0 {
		return verberr.Invalid(verb, id.name(), "no paths")
	}
	return id.call(verb, func() error {
		return librdmacm.SetOption(id.c, rdmacm.OPTION_IB, rdmacm.OPTION_IB_PATH, uintptr(unsafe.Pointer(&paths[0])),
			uint64(len(paths))*uint64(unsafe.Sizeof(paths[0])))
	}, errnoReason{syscall.EINVAL, "the ID needs a resolved address, and a path with the flags IBV_PATH_FLAG_GMP, " +
		"_PRIMARY and _BIDIRECTIONAL"})
}

// SetLocalECE sets the ECE options to propose to the peer. The ID must not have a queue pair.
//
// C: rdma_set_local_ece
//
// Man: rdma_set_local_ece(3)
func (id *ID) SetLocalECE(ece *ibv.ECE) error {
	return id.call("rdma_set_local_ece", func() error { return librdmacm.SetLocalECE(id.c, ece) },
		errnoReason{syscall.EINVAL, "the ID must not have a queue pair, and the options need a vendor_id"})
}

// RemoteECE returns the ECE options that the peer proposed. The ID must not have a queue pair.
//
// C: rdma_get_remote_ece
//
// Man: rdma_get_remote_ece(3)
func (id *ID) RemoteECE() (*ibv.ECE, error) {
	ece := new(ibv.ECE)
	err := id.call("rdma_get_remote_ece", func() error { return librdmacm.GetRemoteECE(id.c, ece) },
		errnoReason{syscall.EINVAL, "the ID must not have a queue pair"})
	return ece, err
}
