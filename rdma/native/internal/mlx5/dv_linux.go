// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// Functions returns the functions of libmlx5 that there are.
func Functions(f driver.Finder) map[string]runtime.Func {
	l := &library{Finder: f}
	result := func(errno syscall.Errno) (uint64, runtime.Errno) { return uint64(errno), 0 }
	return map[string]runtime.Func{
		"mlx5dv_init_obj": func(a []uint64) (uint64, runtime.Errno) {
			obj := ibv.Ptr[mlx5dv.Obj](a[0]).Deref()
			if obj == nil {
				return result(syscall.EINVAL)
			}
			return result(InitObj(obj, mlx5dv.ObjType(a[1]), f))
		},
		"mlx5dv_query_device": func(a []uint64) (uint64, runtime.Errno) {
			out := ibv.Ptr[mlx5dv.Context](a[1]).Deref()
			if out == nil {
				return result(syscall.EINVAL)
			}
			return result(QueryDevice(f.Context(ibv.Ptr[ibv.Context](a[0])), out))
		},
		"mlx5dv_is_supported": func(a []uint64) (uint64, runtime.Errno) {
			if id, ok := f.Device(ibv.Ptr[ibv.Device](a[0])); ok && id == uapi.RDMA_DRIVER_MLX5 {
				return 1, 0
			}
			return 0, 0
		},
		"mlx5dv_create_qp":            l.createQP,
		"mlx5dv_qp_ex_from_ibv_qp_ex": l.qpEx,
	}
}

// InitObj is mlx5dv_init_obj for queues, protection domains and address handles. It returns no optional fields.
func InitObj(obj *mlx5dv.Obj, kinds mlx5dv.ObjType, f driver.Finder) syscall.Errno {
	const known = mlx5dv.OBJ_QP | mlx5dv.OBJ_CQ | mlx5dv.OBJ_SRQ | mlx5dv.OBJ_PD | mlx5dv.OBJ_AH
	if kinds&^known != 0 {
		return syscall.EOPNOTSUPP
	}
	if kinds&mlx5dv.OBJ_QP != 0 {
		q, ok := f.QP(obj.QP.In).(*queuePair)
		if !ok {
			return syscall.EOPNOTSUPP
		}
		*obj.QP.Out.Deref() = q.out
	}
	if kinds&mlx5dv.OBJ_CQ != 0 {
		q, ok := f.CQ(obj.CQ.In).(*completionQueue)
		if !ok {
			return syscall.EOPNOTSUPP
		}
		*obj.CQ.Out.Deref() = q.out
	}
	if kinds&mlx5dv.OBJ_SRQ != 0 {
		q, ok := f.SRQ(obj.SRQ.In).(*sharedQueue)
		if !ok {
			return syscall.EOPNOTSUPP
		}
		*obj.SRQ.Out.Deref() = q.out
	}
	if kinds&mlx5dv.OBJ_PD != 0 {
		number, ok := f.PD(obj.PD.In)
		if _, mine := f.Context(obj.PD.In.Deref().Context).(*device); !ok || !mine {
			return syscall.EOPNOTSUPP
		}
		*obj.PD.Out.Deref() = mlx5dv.PD{PDN: number}
	}
	if kinds&mlx5dv.OBJ_AH != 0 {
		in := obj.AH.In.Deref()
		if _, mine := f.Context(in.Context).(*device); !mine {
			return syscall.EOPNOTSUPP
		}
		*obj.AH.Out.Deref() = mlx5dv.AH{
			AV: ibv.PtrTo((*mlx5dv.MLX5WQEAV)((*driver.AH)(unsafe.Pointer(in)).Part()))}
	}
	return 0
}

// QueryDevice is mlx5dv_query_device without optional fields.
func QueryDevice(c driver.Context, out *mlx5dv.Context) syscall.Errno {
	if _, ok := c.(*device); !ok {
		return syscall.EOPNOTSUPP
	}
	out.Version, out.Flags, out.CompMask = 0, mlx5dv.CONTEXT_FLAGS_CQE_V1, 0
	return 0
}
