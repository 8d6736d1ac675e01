// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Dynamic connections have no functions in libibverbs: the device has those of libmlx5.

func init() {
	Provide("libmlx5", libmlx5, func() map[string]abi.Waiting { return nil })
}

func libmlx5() map[string]runtime.Func {
	return map[string]runtime.Func{
		"mlx5dv_create_qp":            makes(abi.New2(createDynamic)),
		"mlx5dv_qp_ex_from_ibv_qp_ex": abi.Func1(dvOf),
	}
}

// dvRecord is the C record of an initiator's further functions.
type dvRecord struct {
	mlx5dv.QPEx
	qp uint64 // address of its queue pair
}

// createDynamic implements mlx5dv_create_qp for dynamic connections.
func createDynamic(c *Context, address, dvAddress uint64) (uint64, runtime.Errno) {
	if address == 0 || dvAddress == 0 {
		return 0, syscall.EINVAL
	}
	attr, dv := mem.At[ibv.QPInitAttrEx](address), mem.At[mlx5dv.QPInitAttr](dvAddress)
	switch {
	case attr.QPType != ibv.QPT_DRIVER, dv.CompMask&^mlx5dv.QP_INIT_ATTR_MASK_DC != 0,
		attr.CompMask&^(ibv.QP_INIT_ATTR_PD|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS) != 0:
		return 0, syscall.EOPNOTSUPP
	case dv.CompMask != mlx5dv.QP_INIT_ATTR_MASK_DC:
		return 0, syscall.EINVAL
	}
	own, d := *attr, &engine.Dynamic{Key: *dv.DCInitAttr.DCTAccessKey()}
	own.QPType = ibv.QPT_RC
	switch dv.DCInitAttr.DCType {
	case mlx5dv.DCTYPE_DCI:
		if attr.SRQ != 0 {
			return 0, syscall.EINVAL
		}
	case mlx5dv.DCTYPE_DCT:
		s := Find[SRQ](uint64(attr.SRQ))
		if s == nil || s.Kind != ibv.SRQT_BASIC || attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
			return 0, syscall.EINVAL
		}
		own.Cap.MaxSendWR, own.Cap.MaxSendSGE, own.Cap.MaxInlineData = 0, 0, 0
		d.IsTarget = true
	default:
		return 0, syscall.EINVAL
	}
	own.Cap.MaxRecvWR, own.Cap.MaxRecvSGE = 0, 0
	q, errno := c.newQP(&own, d)
	if errno != 0 {
		return 0, errno
	}
	attr.Cap = q.Cap
	return mem.AddressOf(q.record), 0
}

// dvOf implements mlx5dv_qp_ex_from_ibv_qp_ex: NULL for a queue pair without further functions.
func dvOf(of ibv.Ptr[ibv.QP]) (uint64, runtime.Errno) {
	q := Find[QP](of)
	if q == nil || q.Dynamic == nil || q.build.ops == 0 {
		return 0, 0
	}
	f := q.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	if q.dv == nil {
		record, errno := AllocateOf[dvRecord](f)
		if errno != 0 {
			return 0, errno
		}
		record.QPEx, record.qp = all.slots.dv, mem.AddressOf(q.record)
		q.dv = record
	}
	return mem.AddressOf(q.dv), 0
}

// wrSetDCAddr implements the slot wr_set_dc_addr. The caller holds QP.Post, since ibv_wr_start.
func wrSetDCAddr(address, handle, number, key, _, _ uint64) (uint64, runtime.Errno) {
	q := qpOf(mem.At[dvRecord](address).qp)
	if q == nil {
		return 0, 0
	}
	r := q.built()
	if errno := q.address(r, handle, uint32(number)&engine.PSNMask, 0); errno != 0 {
		q.build.fail(errno)
	}
	r.Key = key
	return 0, 0
}

// takesMask returns the attributes that a transition needs and takes. Those of dynamic connections are the kernel's
// (mlx5_ib).
func (q *QP) takesMask(from, to ibv.QPState) (required, optional ibv.QPAttrMask, ok bool) {
	type step struct{ from, to ibv.QPState }
	s := step{from, to}
	switch {
	case q.Dynamic == nil:
		return ibv.ModifyQPMask(q.Kind, from, to)
	case s == step{ibv.QPS_RESET, ibv.QPS_INIT} && q.Dynamic.IsTarget:
		return ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_ACCESS_FLAGS, 0, true
	case s == step{ibv.QPS_INIT, ibv.QPS_RTR} && q.Dynamic.IsTarget:
		return ibv.QP_MIN_RNR_TIMER | ibv.QP_AV | ibv.QP_PATH_MTU, 0, true
	case q.Dynamic.IsTarget:
		return 0, 0, false
	case s == step{ibv.QPS_RESET, ibv.QPS_INIT}:
		return ibv.QP_PKEY_INDEX | ibv.QP_PORT, 0, true
	case s == step{ibv.QPS_INIT, ibv.QPS_INIT}:
		return 0, ibv.QP_PKEY_INDEX | ibv.QP_PORT, true
	case s == step{ibv.QPS_INIT, ibv.QPS_RTR}:
		return ibv.QP_PATH_MTU, ibv.QP_PKEY_INDEX | ibv.QP_AV, true
	case s == step{ibv.QPS_RTR, ibv.QPS_RTS}:
		return ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC | ibv.QP_SQ_PSN,
			ibv.QP_MIN_RNR_TIMER, true
	case s == step{ibv.QPS_RTS, ibv.QPS_RTS}:
		return 0, ibv.QP_MIN_RNR_TIMER, true
	case to == ibv.QPS_RESET, to == ibv.QPS_ERR && from != ibv.QPS_RESET:
		return 0, 0, true
	}
	return 0, 0, false
}
