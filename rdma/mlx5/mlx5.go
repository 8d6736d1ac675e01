// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 adds features of mlx5 devices to package rdma: dynamic connections, and a data path in Go.
package mlx5

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/direct"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// CreateQP creates a queue pair with mlx5's attributes dv. dv.DCInitAttr is for dynamic connections. attr is as for
// [rdma.Device.CreateQPEx]; for dynamic connections its type is IBV_QPT_DRIVER.
//
// A DC initiator (MLX5DV_DCTYPE_DCI) has no fixed peer: [DC] sets the destination of each request of an
// [rdma.WRProgram], whose operations attr's SendOpsFlags must enable. Batches cannot set it, so checked queues reject
// them. A DC target (MLX5DV_DCTYPE_DCT) receives from a shared receive queue. It gets its number, which initiators need,
// in RTR, its final state. Move both through their states with Modify.
//
// Software devices support dynamic connections, too. For a wrong access key, they return IBV_WC_REM_ACCESS_ERR, as for
// a wrong remote key; the man pages do not specify the status.
//
// The error is EOPNOTSUPP if the device is neither an mlx5 nor a software device, and rdma.ErrNotSupported if libmlx5
// is missing.
//
// C: mlx5dv_create_qp
//
// Man: mlx5dv_create_qp(3)
func CreateQP(d *rdma.Device, attr *ibv.QPInitAttrEx, dv *mlx5dv.QPInitAttr, o rdma.QueueOptions) (*rdma.QP, error) {
	const verb = "mlx5dv_create_qp"
	if d == nil {
		return nil, verberr.Invalid(verb, "", "the device is nil")
	}
	if dv == nil {
		return nil, verberr.Invalid(verb, d.Name(), "the attributes are nil")
	}
	if dv.CompMask&mlx5dv.QP_INIT_ATTR_MASK_QP_CREATE_FLAGS != 0 &&
		dv.CreateFlags&mlx5dv.QP_CREATE_OOO_DP != 0 && isNative(d, o.Path) {
		return nil, &rdma.VerbError{Verb: verb, Object: d.Name(), Errno: syscall.EOPNOTSUPP,
			Reason: "the data path in Go requires that receives complete in order, which " +
				"MLX5DV_QP_CREATE_OOO_DP disables"}
	}
	return d.CreateQPBy(verb, attr, o,
		func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libmlx5.CreateQP(d.C(), own, dv) }, libibverbs.DestroyQP)
}

// isNative reports whether queues use the data path in Go, through their own path or the device's.
func isNative(d *rdma.Device, own rdma.Path) bool {
	if own == nil {
		own = d.Path()
	}
	_, is := own.(*direct.Queues)
	return is
}

// DC sets the DC target of a request of an [rdma.WRProgram]: its number, its access key, and an address handle for the
// path, which must stay open until the request has completed.
//
// C: mlx5dv_wr_set_dc_addr, mlx5dv_qp_ex_from_ibv_qp_ex
//
// Man: mlx5dv_wr_post(3)
func DC(r rdma.WRRequest, ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64) rdma.WRRequest {
	dv := mlx5Of(r)
	if dv == nil {
		return r
	}
	r.Dynamic(ah, targetNum, key, 0)
	return r.CallSetter("mlx5dv_wr_set_dc_addr", dv.WRSetDCAddr, uintptr(unsafe.Pointer(dv)), uint64(ah),
		uint64(runtime.Word(targetNum)), key)
}

// DCStream is DC for one of the streams of an initiator that was created with streams.
//
// C: mlx5dv_wr_set_dc_addr_stream
//
// Man: mlx5dv_wr_post(3)
func DCStream(r rdma.WRRequest, ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64, stream uint16) rdma.WRRequest {
	dv := mlx5Of(r)
	if dv == nil {
		return r
	}
	r.Dynamic(ah, targetNum, key, stream)
	return r.CallSetter("mlx5dv_wr_set_dc_addr_stream", dv.WRSetDCAddrStream, uintptr(unsafe.Pointer(dv)),
		uint64(ah), uint64(runtime.Word(targetNum)), key, uint64(stream))
}

// mlx5Of returns the queue pair of a request for mlx5's setters. If it is not one of mlx5, it returns nil and sets the
// program's error.
func mlx5Of(r rdma.WRRequest) *mlx5dv.QPEx {
	dv, err := libmlx5.QPExFromIBVQPEx(r.QP())
	if err == nil && dv == nil {
		const verb = "mlx5dv_qp_ex_from_ibv_qp_ex"
		err = &runtime.NotSupportedError{Function: verb, Missing: "the queue pair does not belong to mlx5"}
	}
	if err != nil {
		r.Fail(err)
		return nil
	}
	return dv
}
