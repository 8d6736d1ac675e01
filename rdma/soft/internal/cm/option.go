// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// setOption is rdma_set_option.
func setOption(id *identifier, level, name int32, value, size uint64) runtime.Errno {
	if value == 0 {
		return syscall.EINVAL
	}
	switch level {
	case rdmacm.OPTION_ID:
		return id.setOption(name, value, size)
	case rdmacm.OPTION_IB:
		if name == rdmacm.OPTION_IB_PATH {
			return id.setPath(value, size)
		}
	}
	return syscall.ENOSYS
}

func (id *identifier) setOption(name int32, value, size uint64) runtime.Errno {
	sizes := map[int32]uint64{rdmacm.OPTION_ID_TOS: 1, rdmacm.OPTION_ID_REUSEADDR: 4, rdmacm.OPTION_ID_AFONLY: 4,
		rdmacm.OPTION_ID_ACK_TIMEOUT: 1}
	if wanted, ok := sizes[name]; !ok {
		return syscall.ENOSYS
	} else if size != wanted {
		return syscall.EINVAL
	}
	switch name {
	case rdmacm.OPTION_ID_TOS:
		id.tos = *mem.At[uint8](value)
	case rdmacm.OPTION_ID_REUSEADDR:
		on := *mem.At[int32](value) != 0
		if id.state != idle && (!on || id.state == listening) {
			return syscall.EINVAL
		}
		id.reuse = on
	case rdmacm.OPTION_ID_AFONLY:
		if id.state != idle && id.state != bound {
			return syscall.EINVAL
		}
		id.afOnly = *mem.At[int32](value) != 0
	case rdmacm.OPTION_ID_ACK_TIMEOUT:
		if id.datagrams() || *mem.At[uint8](value) > 31 {
			return syscall.EINVAL
		}
		id.timeout = *mem.At[uint8](value)
	}
	return 0
}

// setPath sets the path instead of resolving it.
func (id *identifier) setPath(value, size uint64) runtime.Errno {
	const wanted = rdmacm.IBV_PATH_FLAG_GMP | rdmacm.IBV_PATH_FLAG_PRIMARY | rdmacm.IBV_PATH_FLAG_BIDIRECTIONAL
	one := uint64(unsafe.Sizeof(rdmacm.IBVPathData{}))
	if size == 0 || size%one != 0 || id.state != addrResolved {
		return syscall.EINVAL
	}
	for _, path := range mem.List[rdmacm.IBVPathData](value, int(size/one)) {
		if path.Flags == wanted {
			id.state = routeResolved
			id.tell(rdmacm.CM_EVENT_ROUTE_RESOLVED, 0)
			return 0
		}
	}
	return syscall.EINVAL
}

// setLocalECE is rdma_set_local_ece.
func setLocalECE(id *identifier, options ibv.Ptr[ibv.ECE]) runtime.Errno {
	if id.record.QP != 0 || options == 0 {
		return syscall.EINVAL
	}
	ece := options.Deref()
	if ece.VendorID == 0 || ece.CompMask != 0 {
		return syscall.EINVAL
	}
	id.ece = eceOptions{ece.VendorID, ece.Options}
	return 0
}

// remoteECE is rdma_get_remote_ece.
func remoteECE(id *identifier, to ibv.Ptr[ibv.ECE]) runtime.Errno {
	if id.record.QP != 0 || to == 0 {
		return syscall.EINVAL
	}
	*to.Deref() = ibv.ECE{VendorID: id.peerECE.vendor, Options: id.peerECE.options}
	return 0
}

// writeEvent is rdma_write_cm_event.
func writeEvent(id *identifier, kind rdmacm.CMEventType, status int32, arg uint64) runtime.Errno {
	if kind != rdmacm.CM_EVENT_USER {
		return syscall.EINVAL
	}
	id.push(&event{kind: rdmacm.CM_EVENT_USER, status: status, arg: arg})
	return 0
}
