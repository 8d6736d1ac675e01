// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 adds dynamic connections to software devices: those functions of libmlx5 that create initiators and
// targets. Import it for its side effect; package rdma/mlx5 does.
package mlx5

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

func init() {
	verbs.Provide("libmlx5", functions, func() map[string]abi.Waiting { return nil })
}

func functions() map[string]runtime.Func {
	return map[string]runtime.Func{
		"mlx5dv_create_qp":            abi.Func3(createQP),
		"mlx5dv_qp_ex_from_ibv_qp_ex": abi.Func1(qpExOf),
	}
}

// createQP implements mlx5dv_create_qp for dynamic connections.
func createQP(of, address, dvAddress uint64) (uint64, runtime.Errno) {
	c := verbs.Find[verbs.Context](of)
	if c == nil || address == 0 || dvAddress == 0 {
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
		s := verbs.Find[verbs.SRQ](uint64(attr.SRQ))
		if s == nil || s.Kind != ibv.SRQT_BASIC || attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
			return 0, syscall.EINVAL
		}
		own.Cap.MaxSendWR, own.Cap.MaxSendSGE, own.Cap.MaxInlineData = 0, 0, 0
		d.IsTarget = true
	default:
		return 0, syscall.EINVAL
	}
	own.Cap.MaxRecvWR, own.Cap.MaxRecvSGE = 0, 0
	created, errno := c.NewQP(&own, d)
	if errno == 0 {
		attr.Cap = own.Cap
	}
	return created, errno
}

// qpEx is the C record of an initiator's further functions.
type qpEx struct {
	mlx5dv.QPEx
	qp uint64 // address of its queue pair
}

// qpExOf implements mlx5dv_qp_ex_from_ibv_qp_ex: NULL for a queue pair without further functions.
func qpExOf(of uint64) (uint64, runtime.Errno) {
	q := verbs.Find[verbs.QP](of)
	if q == nil || q.Dynamic == nil || !q.IsExtended() {
		return 0, 0
	}
	setter, err := setDCAddr()
	if err != nil {
		return 0, syscall.ENOMEM
	}
	f := q.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	if q.Extension == nil {
		record, errno := verbs.AllocateOf[qpEx](f)
		if errno != 0 {
			return 0, errno
		}
		record.WRSetDCAddr, record.qp = setter, q.Address()
		q.Extension = unsafe.Pointer(record)
	}
	return uint64(uintptr(q.Extension)), 0
}

// setDCAddr returns the slot wr_set_dc_addr. Its caller holds QP.Post, since ibv_wr_start.
var setDCAddr = sync.OnceValues(func() (ibv.FuncPtr, error) {
	return verbs.NewSlot(func(address, handle, number, key, _, _ uint64) (uint64, runtime.Errno) {
		if q := verbs.QPOf(mem.At[qpEx](address).qp); q != nil {
			q.SetTarget(handle, uint32(number), key)
		}
		return 0, 0
	})
})
