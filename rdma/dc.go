package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/runtime"
)

// CreateMLX5QP makes a queue pair with what only mlx5 has: with dv.DCInitAttr, one of dynamic connections. attr is that of CreateQPEx, and its
// type IBV_QPT_DRIVER then.
//
// An initiator (MLX5DV_DCTYPE_DCI) has no one peer: each request of a [WRProgram], which attr's SendOpsFlags have to ask for, says by
// [WRRequest.DC] where it goes. A target (MLX5DV_DCTYPE_DCT) receives from a shared receive queue; it has its number, by which initiators
// know it, once it is in RTR, and goes no further. Both are moved by Modify, step by step.
//
// Where the device is not mlx5's, the error is EOPNOTSUPP, and where libmlx5 is missing, runtime.ErrNotSupported.
//
// C: mlx5dv_create_qp
//
// Man: mlx5dv_create_qp(3)
func (d *Device) CreateMLX5QP(attr *ibv.QPInitAttrEx, dv *mlx5dv.QPInitAttr, o QueueOptions) (*QP, error) {
	if dv == nil {
		return nil, noAttributes("mlx5dv_create_qp", d.name)
	}
	return d.createQPEx("mlx5dv_create_qp", attr, o, func(own *ibv.QPInitAttrEx) (*ibv.QP, error) { return libmlx5.CreateQP(d.c, own, dv) }, libibverbs.DestroyQP)
}

// DC says which target of dynamic connections a request goes to: its number and its access key, and the way by an address handle, which the
// request needs until it has completed.
//
// C: mlx5dv_wr_set_dc_addr, mlx5dv_qp_ex_from_ibv_qp_ex
//
// Man: mlx5dv_wr_post(3)
func (r WRRequest) DC(ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64) WRRequest {
	dv := r.p.mlx5()
	if dv == nil {
		return r
	}
	return r.dc(dv.WRSetDCAddr, "mlx5dv_wr_set_dc_addr", uint64(ah), word(targetNum), key)
}

// DCStream is DC on one of the streams of an initiator that was created with some.
//
// C: mlx5dv_wr_set_dc_addr_stream
//
// Man: mlx5dv_wr_post(3)
func (r WRRequest) DCStream(ah ibv.Ptr[ibv.AH], targetNum uint32, key uint64, stream uint16) WRRequest {
	dv := r.p.mlx5()
	if dv == nil {
		return r
	}
	return r.dc(dv.WRSetDCAddrStream, "mlx5dv_wr_set_dc_addr_stream", uint64(ah), word(targetNum), key, uint64(stream))
}

// mlx5 is the queue pair as mlx5's setters take it, or nil with an error in the program.
func (p *WRProgram) mlx5() *mlx5dv.QPEx {
	if p.dv == nil && p.err == nil {
		dv, err := libmlx5.QPExFromIBVQPEx(p.qp)
		if err == nil && dv == nil {
			err = &runtime.NotSupportedError{Function: "mlx5dv_qp_ex_from_ibv_qp_ex", Missing: "the queue pair is not mlx5's"}
		}
		if err != nil {
			p.fail(err)
			return nil
		}
		p.dv = dv
	}
	return p.dv
}

func (r WRRequest) dc(fn ibv.FuncPtr, name string, args ...uint64) WRRequest {
	switch p := r.p; {
	case r.index != len(p.wrs)-1 || p.closed:
		p.fail(fmt.Errorf("rdma: WR %d: %s for a request that others follow", r.index, name))
	case fn == 0:
		p.fail(&runtime.NotSupportedError{Function: name, Missing: "the queue pair was not created for it"})
	default:
		p.program.Call(uintptr(fn), append([]uint64{uint64(uintptr(unsafe.Pointer(p.dv)))}, args...)...)
	}
	return r
}
