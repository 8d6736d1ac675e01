// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// publish hands the filled requests to the device, which executes those that are ready. It reports whether the queue
// takes work in its state. The caller holds qp.post, and has called SetPanicOnFault. It takes Fabric.mu.
func (q *QP) publish(n uint32) bool {
	f := q.on
	f.mu.Lock()
	f.panics = true
	defer func() {
		f.panics = false
		f.UnlockPosted()
	}()
	takes := q.state >= ibv.QPS_RTS && q.state <= ibv.QPS_ERR
	if takes && n > 0 {
		q.posted += n
		q.Progress()
	}
	return takes
}

// claim is the request at a position, if there is a slot for it. The caller holds qp.post.
func (q *QP) claim(position uint32) (*request, runtime.Errno) {
	if position-q.retired.Load() >= q.cap.MaxSendWR {
		return nil, syscall.ENOMEM
	}
	return &q.ring[position&q.mask], 0
}

// entries is the room for the scatter/gather entries of a place.
func (q *QP) entries(position uint32) []ibv.SGE {
	return q.sges[(position&q.mask)*q.cap.MaxSendSGE:][:q.cap.MaxSendSGE]
}

func (q *QP) addInline(position uint32, r *request, address uint64, length uint64) runtime.Errno {
	if length > uint64(q.cap.MaxInlineData)-uint64(r.inline) {
		return syscall.EINVAL
	}
	if length > 0 {
		mem.Move(q.inlineAt(position)+uint64(r.inline), address, length)
		r.inline += int32(length)
	}
	return 0
}

// inlineAt is where the inline data of a place lies: in memory that the queue pair keeps.
func (q *QP) inlineAt(position uint32) uint64 {
	if q.cap.MaxInlineData == 0 {
		return 0
	}
	return mem.AddressOf(&q.inline[(position&q.mask)*q.cap.MaxInlineData])
}

// start makes a place of the ring a request of which nothing else is known yet. It sets fields one by one: a literal
// is made elsewhere first, and copied with its pointers.
func (r *request) start(id uint64, op ibv.WROpcode, flags ibv.SendFlags) {
	r.id, r.opcode, r.flags = id, op, flags
	r.imm, r.rkey, r.remote, r.operand, r.swap = 0, 0, 0, 0, 0
	r.sges, r.inline, r.number, r.qkey = 0, -1, 0, 0
	if r.ah != nil {
		r.ah = nil
	}
}
