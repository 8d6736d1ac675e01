// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// qp is a queue pair as programs know it.
type qp struct {
	*context
	QP
	record  *qpRecord
	index   uint32
	owner   *pd
	closed  bool        // its own handle was destroyed, and others are open
	handles []*openedQP // of XRC_RECV, that ibv_open_qp gave
	asyncs  Reports

	// Guarded by QP.post.
	build    builder
	binds    lastBound
	latestAH *ah
}

// tell queues an event for every context with a handle.
func (q *qp) tell(kind ibv.EventType) {
	if !q.closed {
		q.context.tell(kind, mem.AddressOf(q.record), &q.asyncs)
	}
	for _, o := range q.handles {
		o.context.tell(kind, mem.AddressOf(o.record), &o.asyncs)
	}
}

func (q *qp) reported() *Reports { return &q.asyncs }

// IsShared reports whether its receives are those of a shared receive queue.
func (q *qp) IsShared() bool { return q.srq != nil }

// Transit is ibv_modify_qp. It is called without the fabric's lock.
func (q *qp) Transit(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	return q.modify(q.record, attr, mask)
}

// BreakNow brings it to the error state. The caller holds Fabric.mu.
func (q *qp) BreakNow() {
	if q.state != ibv.QPS_ERR {
		q.setState(ibv.QPS_ERR)
		q.record.QPBase.State = ibv.QPS_ERR
	}
}

// qpRecord is the C record of a queue pair, with its place in the host's table.
type qpRecord struct {
	ibv.QPEx
	index uint32
}

// findQP is the queue pair of a handle.
func findQP[A abi.Address](address A) *qp {
	if q := find[qp](address); q != nil {
		return q
	}
	if o := find[openedQP](address); o != nil {
		return o.of
	}
	return nil
}

// lockedQP returns the queue pair of a handle, or nil. It takes Fabric.mu for its caller, unless it returns nil.
func lockedQP[A abi.Address](address A) *qp {
	if o := locked[openedQP](address); o != nil {
		return o.of
	}
	return locked[qp](address)
}

// qpOf returns the queue pair that a slot is called with, or nil if it was destroyed.
func qpOf(address uint64) *qp {
	q := all.qps.get(mem.At[qpRecord](address).index)
	if q == nil || mem.AddressOf(q.record) != address {
		return nil
	}
	return q
}
