// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// libibverbs has no functions for dynamic connections. Package rdma/soft/mlx5 adds those of libmlx5, so that programs
// that do not use them do not contain generated/mlx5dv.

// Address returns the address of the queue pair's record.
func (q *QP) Address() uint64 { return mem.AddressOf(q.record) }

// IsExtended reports whether the queue pair has extended functions.
func (q *QP) IsExtended() bool { return q.build.ops != 0 }

// QPOf returns the queue pair of a slot call, or nil if it was destroyed.
func QPOf(address uint64) *QP { return qpOf(address) }

// NewSlot returns the address of a function.
func NewSlot(f runtime.SlotFunc) (ibv.FuncPtr, error) {
	address, err := all.space.Slot(f)
	return ibv.FuncPtr(address), err
}

// SetTarget sets the target of the request under construction. The caller holds QP.Post, since ibv_wr_start.
func (q *QP) SetTarget(handle uint64, number uint32, key uint64) {
	r := q.built()
	if errno := q.address(r, handle, number&engine.PSNMask, 0); errno != 0 {
		q.build.fail(errno)
	}
	r.Key = key
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
