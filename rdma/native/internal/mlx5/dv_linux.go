// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// Finder finds the objects of records. It returns nil for other objects.
type Finder interface {
	Context(ibv.Ptr[ibv.Context]) driver.Context
	PD(ibv.Ptr[ibv.PD]) (number uint32, ok bool)
	CQ(ibv.Ptr[ibv.CQ]) driver.CQ
	SRQ(ibv.Ptr[ibv.SRQ]) driver.SRQ
	QP(ibv.Ptr[ibv.QP]) driver.QP
}

// InitObj is mlx5dv_init_obj for queues, protection domains and address handles. It returns no optional fields.
func InitObj(obj *mlx5dv.Obj, kinds mlx5dv.ObjType, f Finder) syscall.Errno {
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
			AV: ibv.PtrTo((*mlx5dv.MLX5WQEAV)(unsafe.Add(unsafe.Pointer(in), unsafe.Sizeof(*in))))}
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
