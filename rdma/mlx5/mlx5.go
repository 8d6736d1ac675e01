// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 is what only devices of mlx5 have, over the objects of package rdma: dynamic connections, and a data
// path in Go.
package mlx5

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/mlx5/internal/direct"
	"github.com/goverbs/goverbs/runtime"
)

// CreateQP makes a queue pair with what only mlx5 has: with dv.DCInitAttr, one of dynamic connections. attr is that of
// [rdma.Device.CreateQPEx], and its type IBV_QPT_DRIVER then.
//
// An initiator (MLX5DV_DCTYPE_DCI) has no one peer: each request of an [rdma.WRProgram], which attr's SendOpsFlags have
// to ask for, says by [DC] where it goes. A target (MLX5DV_DCTYPE_DCT) receives from a shared receive queue; it has its
// number, by which initiators know it, once it is in RTR, and goes no further. Both are moved by Modify, step by step.
//
// Where the device is not mlx5's, the error is EOPNOTSUPP, and where libmlx5 is missing, rdma.ErrNotSupported.
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
		return nil, &verberr.VerbError{Verb: verb, Object: d.Name(), Errno: syscall.EOPNOTSUPP,
			Reason: "the data path in Go counts on receives that complete in their order, and " +
				"MLX5DV_QP_CREATE_OOO_DP asks for any"}
	}
	return d.CreateQPBy(verb, attr, o,
		func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libmlx5.CreateQP(d.C(), own, dv) }, libibverbs.DestroyQP)
}

// isNative says whether queues are on the data path in Go, by their own path or the device's.
func isNative(d *rdma.Device, own rdma.Path) bool {
	if own == nil {
		own = d.Path()
	}
	_, is := own.(*direct.Queues)
	return is
}

// DC says which target of dynamic connections a request of a [rdma.WRProgram] goes to: its number and its access key,
// and the way by an address handle, which the request needs until it has completed.
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

// DCStream is DC on one of the streams of an initiator that was created with some.
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

// mlx5Of is the queue pair of a request as mlx5's setters take it, or nil with an error in the program.
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
