// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 has features that only mlx5 devices have, for the objects of package rdma: dynamic connections, and a
// data path in Go.
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

// CreateQP creates a queue pair with mlx5's attributes: with dv.DCInitAttr, for dynamic connections. attr is that of
// [rdma.Device.CreateQPEx], then with type IBV_QPT_DRIVER.
//
// An initiator (MLX5DV_DCTYPE_DCI) has no fixed peer: each request of an [rdma.WRProgram], which must be enabled in
// attr's SendOpsFlags, names its destination with [DC]. Batches cannot, so a checked queue rejects them. A target
// (MLX5DV_DCTYPE_DCT) receives from a shared receive queue. It gets its number, which initiators need, in RTR, its final
// state. Move both with Modify, step by step.
//
// Software devices have dynamic connections, too. They answer a wrong access key like a wrong remote key, with
// IBV_WC_REM_ACCESS_ERR, which the man pages do not specify.
//
// The error is EOPNOTSUPP if the device is not an mlx5 or software device, and rdma.ErrNotSupported if libmlx5 is missing.
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
		return nil, verberr.Invalid(verb, d.Name(), "there are no attributes")
	}
	if dv.CompMask&mlx5dv.QP_INIT_ATTR_MASK_QP_CREATE_FLAGS != 0 &&
		dv.CreateFlags&mlx5dv.QP_CREATE_OOO_DP != 0 && isNative(d, o.Path) {
		return nil, &rdma.VerbError{Verb: verb, Object: d.Name(), Errno: syscall.EOPNOTSUPP,
			Reason: "the data path in Go counts on receives that complete in their order, and " +
				"MLX5DV_QP_CREATE_OOO_DP asks for any"}
	}
	return d.CreateQPBy(verb, attr, o,
		func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libmlx5.CreateQP(d.C(), own, dv) }, libibverbs.DestroyQP)
}

// isNative reports whether queues use the data path in Go, by their own path or the device's.
func isNative(d *rdma.Device, own rdma.Path) bool {
	if own == nil {
		own = d.Path()
	}
	_, is := own.(*direct.Queues)
	return is
}

// DC sets the target of a request of a [rdma.WRProgram] for dynamic connections: its number, its access key, and the
// path as an address handle, which must stay open until the request has completed.
//
// C: mlx5dv_wr_set_dc_addr, mlx5dv_qp_ex_from_ibv_qp_ex
//
// Man: mlx5dv_wr_post(3)
func DC(r rdma.WRRequest, ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64) rdma.WRRequest {
	dv := mlx5Of(r)
	if dv == nil {
		return r
	}
	return r.CallSetter("mlx5dv_wr_set_dc_addr", dv.WRSetDCAddr, uintptr(unsafe.Pointer(dv)), uint64(ah),
		uint64(runtime.Word(targetNum)), key)
}

// DCStream is DC on one of the streams of an initiator that was created with streams.
//
// C: mlx5dv_wr_set_dc_addr_stream
//
// Man: mlx5dv_wr_post(3)
func DCStream(r rdma.WRRequest, ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64, stream uint16) rdma.WRRequest {
	dv := mlx5Of(r)
	if dv == nil {
		return r
	}
	return r.CallSetter("mlx5dv_wr_set_dc_addr_stream", dv.WRSetDCAddrStream, uintptr(unsafe.Pointer(dv)),
		uint64(ah), uint64(runtime.Word(targetNum)), key, uint64(stream))
}

// mlx5Of returns the queue pair of a request for mlx5's setters, or nil with an error in the program.
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
