// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// QP is a queue pair as programs know it.
type QP struct {
	*Context
	engine.QP
	record  *qpRecord
	index   uint32
	owner   *PD
	closed  bool        // its own handle was destroyed, and others are open
	handles []*openedQP // of XRC_RECV, that ibv_open_qp gave
	Asyncs  resource.Reports

	// Guarded by QP.post.
	build    builder
	binds    lastBound
	latestAH *ah
}

// tell queues an event for every context with a handle.
func (q *QP) tell(kind ibv.EventType) {
	if !q.closed {
		q.Context.tell(kind, mem.AddressOf(q.record), &q.Asyncs)
	}
	for _, o := range q.handles {
		o.Context.tell(kind, mem.AddressOf(o.record), &o.asyncs)
	}
}

func (q *QP) reported() *resource.Reports { return &q.Asyncs }

// IsShared reports whether its receives are those of a shared receive queue.
func (q *QP) IsShared() bool { return q.SRQ != nil }

// Transit is ibv_modify_qp. It is called without the fabric's lock.
func (q *QP) Transit(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	return q.modify(q.record, attr, mask)
}

// BreakNow brings it to the error state. The caller holds Fabric.mu.
func (q *QP) BreakNow() {
	if q.State != ibv.QPS_ERR {
		q.SetState(ibv.QPS_ERR)
		q.record.QPBase.State = ibv.QPS_ERR
	}
}

// qpRecord is the C record of a queue pair, with its place in the host's table.
type qpRecord struct {
	ibv.QPEx
	index uint32
}

// FindQP is the queue pair of a handle.
func FindQP[A abi.Address](address A) *QP {
	if q := Find[QP](address); q != nil {
		return q
	}
	if o := Find[openedQP](address); o != nil {
		return o.of
	}
	return nil
}

// lockedQP returns the queue pair of a handle, or nil. It takes Fabric.mu for its caller, unless it returns nil.
func lockedQP[A abi.Address](address A) *QP {
	if o := locked[openedQP](address); o != nil {
		return o.of
	}
	return locked[QP](address)
}

// qpOf returns the queue pair that a slot is called with, or nil if it was destroyed.
func qpOf(address uint64) *QP {
	q := all.qps.get(mem.At[qpRecord](address).index)
	if q == nil || mem.AddressOf(q.record) != address {
		return nil
	}
	return q
}
