// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Publish passes n filled requests to the device, which executes those that are ready. It reports whether the queue
// accepts work in its state. The caller holds QP.Post, and has called SetPanicOnFault. It takes Core.Mu.
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

// Claim returns the request at a position, or ENOMEM if all slots are in use. The caller holds QP.Post.
func (q *QP) Claim(position uint32) (*Request, runtime.Errno) {
	if position-q.retired.Load() >= q.Cap.MaxSendWR {
		return nil, syscall.ENOMEM
	}
	return q.Place(position), 0
}

// AddInline appends inline data to a request, or returns EINVAL if it does not fit.
func (q *QP) AddInline(r *Request, address uint64, length uint64) runtime.Errno {
	if length > uint64(q.Cap.MaxInlineData)-uint64(r.Inline) {
		return syscall.EINVAL
	}
	if length > 0 {
		mem.Move(r.data+uint64(r.Inline), address, length)
		r.Inline += int32(length)
	}
	return 0
}

// Start initializes a request of the ring. It sets the fields one by one, because a literal would be built elsewhere
// first and copied with its pointers.
func (r *Request) Start(id uint64, op ibv.WROpcode, flags ibv.SendFlags) {
	r.id, r.Opcode, r.flags = id, op, flags
	r.Imm, r.RKey, r.Remote, r.Operand, r.Swap = 0, 0, 0, 0, 0
	r.SGEs, r.Inline, r.Number, r.QKey = r.SGEs[:0], -1, 0, 0
	if r.AH != nil {
		r.AH = nil
	}
}
