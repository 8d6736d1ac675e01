// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// addresses finds the addresses that requests carry in libmlx5's address handles: at the same distance in each of them,
// which is asked for once.
type addresses struct{ distance atomic.Int64 } // 0: not known yet

func (a *addresses) of(ah *ibv.AH) (*mlx5dv.MLX5WQEAV, error) {
	if d := a.distance.Load(); d != 0 {
		return (*mlx5dv.MLX5WQEAV)(unsafe.Add(unsafe.Pointer(ah), d)), nil
	}
	out := new(mlx5dv.AH)
	obj := &mlx5dv.Obj{AH: mlx5dv.ObjAH{In: ibv.PtrTo(ah), Out: ibv.PtrTo(out)}}
	if err := libmlx5.InitObj(obj, mlx5dv.OBJ_AH); err != nil {
		return nil, err
	}
	at := out.AV.Deref()
	a.distance.Store(int64(uintptr(unsafe.Pointer(at)) - uintptr(unsafe.Pointer(ah))))
	return at, nil
}
