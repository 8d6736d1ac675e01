// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Publish hands the filled requests to the device, which executes those that are ready. It reports whether the queue
// takes work in its state. The caller holds QP.Post, and has called SetPanicOnFault. It takes Core.Mu.
func (q *QP) Publish(n uint32) bool {
	f := q.On
	f.Mu.Lock()
	f.panics = true
	defer func() {
		f.panics = false
		f.UnlockPosted()
	}()
	takes := q.State >= ibv.QPS_RTS && q.State <= ibv.QPS_ERR
	if takes && n > 0 {
		q.Posted += n
		q.Progress()
	}
	return takes
}

// Place returns the request at a position.
func (q *QP) Place(position uint32) *Request { return &q.ring[position&q.mask] }

// Claim returns the request at a position if its slot is free. The caller holds QP.Post.
func (q *QP) Claim(position uint32) (*Request, runtime.Errno) {
	if position-q.retired.Load() >= q.Cap.MaxSendWR {
		return nil, syscall.ENOMEM
	}
	return q.Place(position), 0
}

// Entries returns the space for the scatter/gather entries of a place.
func (q *QP) Entries(position uint32) []ibv.SGE {
	return q.sges[(position&q.mask)*q.Cap.MaxSendSGE:][:q.Cap.MaxSendSGE]
}

func (q *QP) AddInline(position uint32, r *Request, address uint64, length uint64) runtime.Errno {
	if length > uint64(q.Cap.MaxInlineData)-uint64(r.Inline) {
		return syscall.EINVAL
	}
	if length > 0 {
		mem.Move(q.inlineAt(position)+uint64(r.Inline), address, length)
		r.Inline += int32(length)
	}
	return 0
}

// inlineAt returns the address of a place's inline data, in memory that the queue pair keeps.
func (q *QP) inlineAt(position uint32) uint64 {
	if q.Cap.MaxInlineData == 0 {
		return 0
	}
	return mem.AddressOf(&q.inline[(position&q.mask)*q.Cap.MaxInlineData])
}

// Start initializes a request in the ring. It sets fields one by one, because a composite literal would be built
// elsewhere and copied.
func (r *Request) Start(id uint64, op ibv.WROpcode, flags ibv.SendFlags) {
	r.id, r.Opcode, r.flags = id, op, flags
	r.Imm, r.RKey, r.Remote, r.Operand, r.Swap = 0, 0, 0, 0, 0
	r.SGEs, r.Inline, r.Number, r.QKey = 0, -1, 0, 0
	if r.AH != nil {
		r.AH = nil
	}
}
