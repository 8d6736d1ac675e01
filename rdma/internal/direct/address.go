// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// addressIn returns the offset in libmlx5's address handles of the address that requests contain. The offset is the
// same for all handles. libmlx5 reports it for any handle from which it can read the device. Do not use a program's
// handle: it may be closed, which libmlx5 does not notice when it posts.
func (d *Queues) addressIn(c *ibv.Context) (uintptr, error) {
	var any struct {
		ibv.AH
		_ [4 * unsafe.Sizeof(mlx5dv.MLX5WQEAV{})]byte
	}
	any.Context = ibv.PtrTo(c)
	out := new(mlx5dv.AH)
	obj := &mlx5dv.Obj{AH: mlx5dv.ObjAH{In: ibv.PtrTo(&any.AH), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_AH); err != nil {
		return 0, err
	}
	runtime.KeepAlive(&any)
	return uintptr(unsafe.Pointer(out.AV.Deref())) - uintptr(unsafe.Pointer(&any)), nil
}
