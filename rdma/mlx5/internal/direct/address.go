// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// addressIn is how far behind the beginning of libmlx5's address handles the address is that requests carry. It is the
// same in all of them. libmlx5 tells it of any handle, and looks only for the device there: that of a program may be
// gone, which libmlx5 does not notice when it posts.
func addressIn(c *ibv.Context) (uintptr, error) {
	var any struct {
		ibv.AH
		_ [4 * unsafe.Sizeof(mlx5dv.MLX5WQEAV{})]byte
	}
	any.Context = ibv.PtrTo(c)
	out := new(mlx5dv.AH)
	obj := &mlx5dv.Obj{AH: mlx5dv.ObjAH{In: ibv.PtrTo(&any.AH), Out: ibv.PtrTo(out)}}
	if err := libmlx5.InitObj(obj, mlx5dv.OBJ_AH); err != nil {
		return 0, err
	}
	runtime.KeepAlive(&any)
	return uintptr(unsafe.Pointer(out.AV.Deref())) - uintptr(unsafe.Pointer(&any)), nil
}
