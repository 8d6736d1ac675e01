// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package librdmacm

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// address returns an argument's address to store in a structure. Converted in the argument list of this call, the
// memory stays in place; the caller keeps it alive.
//
//go:uintptrescapes
func address(p uintptr) uintptr { return p }

// missing returns the error for a nil pointer that a function must follow.
func missing(function, argument string) error {
	return &runtime.NilError{Function: function, Argument: argument}
}

// GetLocalAddr returns the address of the identifier's local address, or nil for nil. It does not call C.
//
//verbs:c struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
func GetLocalAddr(id *rdmacm.CMID) *rdmacm.Sockaddr {
	if id == nil {
		return nil
	}
	return id.Route.Addr.SrcAddr()
}

// GetPeerAddr returns the address of the identifier's peer address, or nil for nil. It does not call C.
//
//verbs:c struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
func GetPeerAddr(id *rdmacm.CMID) *rdmacm.Sockaddr {
	if id == nil {
		return nil
	}
	return id.Route.Addr.DstAddr()
}

// SetErrno returns the error for an errno, nil for 0. Go errors do not use errno, so it is not set.
//
//verbs:c int rdma_seterrno(int ret)
func SetErrno(ret int) error {
	if ret == 0 {
		return nil
	}
	return &runtime.CallError{Function: "rdma_seterrno", Errno: runtime.Errno(ret)}
}

// GetAddrInfo calls rdma_getaddrinfo. A result other than 0 is a failure: -1 is returned as errno, and a number of
// getaddrinfo(3) as an error without errno.
//
//verbs:c int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
func GetAddrInfo(node, service string, hints *rdmacm.AddrInfo, res *ibv.Ptr[rdmacm.AddrInfo]) (int, error) {
	return From{}.GetAddrInfo(node, service, hints, res)
}

// GetAddrInfo is like [GetAddrInfo], for the backend.
func (from From) GetAddrInfo(node, service string, hints *rdmacm.AddrInfo, res *ibv.Ptr[rdmacm.AddrInfo]) (int, error) {
	result, errno, err := fnGetAddrInfo.From(from.Backend).Raw(uintptr(unsafe.Pointer(text(node))),
		uintptr(unsafe.Pointer(text(service))), uintptr(unsafe.Pointer(hints)), uintptr(unsafe.Pointer(res)))
	code := int(int32(result))
	if err == nil && code != 0 {
		if code != -1 {
			errno = 0
		}
		err = &runtime.CallError{Function: fnGetAddrInfo.Name, Errno: errno}
	}
	return code, err
}

// REpollWait calls repoll_wait and returns the number of events. C returns some errors as a positive errno: a number
// above maxevents is returned as an error.
//
//verbs:c int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
func REpollWait(epfd int, events *rdmacm.EpollEvent, maxevents, timeout int) (int, error) {
	return From{}.REpollWait(epfd, events, maxevents, timeout)
}

// REpollWait is like [REpollWait], for the backend.
func (from From) REpollWait(epfd int, events *rdmacm.EpollEvent, maxevents, timeout int) (int, error) {
	n, err := fnREpollWait.From(from.Backend).MinusOne(uintptr(int32(epfd)), uintptr(unsafe.Pointer(events)),
		uintptr(int32(maxevents)), uintptr(int32(timeout)))
	if err == nil && n > maxevents {
		return 0, &runtime.CallError{Function: fnREpollWait.Name, Errno: runtime.Errno(n)}
	}
	return n, err
}

// RegMsgs registers memory for messages: libibverbs.RegMR with local write access. After NULL the error is errno.
//
//verbs:c struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
//go:uintptrescapes
func RegMsgs(id *rdmacm.CMID, addr uintptr, length uint64) (*ibv.MR, error) {
	if id == nil {
		return nil, missing("rdma_reg_msgs", "id")
	}
	return libibverbs.RegMR(id.PD.Deref(), addr, length, ibv.ACCESS_LOCAL_WRITE)
}

// RegRead registers memory that the peer may read: libibverbs.RegMR with local write and remote read access. After NULL
// the error is errno.
//
//verbs:c struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
//go:uintptrescapes
func RegRead(id *rdmacm.CMID, addr uintptr, length uint64) (*ibv.MR, error) {
	if id == nil {
		return nil, missing("rdma_reg_read", "id")
	}
	return libibverbs.RegMR(id.PD.Deref(), addr, length, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_READ)
}

// RegWrite registers memory that the peer may write: libibverbs.RegMR with local and remote write access. After NULL
// the error is errno.
//
//verbs:c struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
//go:uintptrescapes
func RegWrite(id *rdmacm.CMID, addr uintptr, length uint64) (*ibv.MR, error) {
	if id == nil {
		return nil, missing("rdma_reg_write", "id")
	}
	return libibverbs.RegMR(id.PD.Deref(), addr, length, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
}

// DeregMR is the same as libibverbs.DeregMR.
//
//verbs:c int rdma_dereg_mr(struct ibv_mr *mr)
func DeregMR(mr *ibv.MR) error { return libibverbs.DeregMR(mr) }
