// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/mlx5"
	"github.com/goverbs/goverbs/runtime"
)

// finder implements [mlx5.Finder].
type finder struct{ *Backend }

func (f finder) Context(p ibv.Ptr[ibv.Context]) driver.Context {
	if c := find[context](f.Backend, uint64(p)); c != nil {
		return c.own
	}
	return nil
}

func (f finder) PD(p ibv.Ptr[ibv.PD]) (number uint32, ok bool) {
	if d := find[domain](f.Backend, uint64(p)); d != nil {
		return d.number, true
	}
	return 0, false
}

func (f finder) CQ(p ibv.Ptr[ibv.CQ]) driver.CQ {
	if q := find[completionQueue](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

func (f finder) SRQ(p ibv.Ptr[ibv.SRQ]) driver.SRQ {
	if q := find[sharedQueue](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

func (f finder) QP(p ibv.Ptr[ibv.QP]) driver.QP {
	if q := find[queuePair](f.Backend, uint64(p)); q != nil {
		return q.own
	}
	return nil
}

// vendorFunctions returns the functions of vendors' libraries by library and name.
func (b *Backend) vendorFunctions() map[string]map[string]runtime.Func {
	return map[string]map[string]runtime.Func{"libmlx5": {
		"mlx5dv_init_obj": guarded(errnoResult(func(a []uint64) syscall.Errno {
			if a[0] == 0 {
				return syscall.EINVAL
			}
			return mlx5.InitObj(at[mlx5dv.Obj](a[0]), mlx5dv.ObjType(a[1]), finder{b})
		})),
		"mlx5dv_query_device": guarded(errnoResult(func(a []uint64) syscall.Errno {
			if a[1] == 0 {
				return syscall.EINVAL
			}
			return b.ofContext(a[0], func(c *context) syscall.Errno {
				return mlx5.QueryDevice(c.own, at[mlx5dv.Context](a[1]))
			})
		})),
		"mlx5dv_is_supported": func(a []uint64) (uint64, runtime.Errno) {
			if d := find[device](b, a[0]); d != nil && uapi.RDMADriverID(d.Driver) == uapi.RDMA_DRIVER_MLX5 {
				return 1, 0
			}
			return 0, 0
		},
	}}
}
