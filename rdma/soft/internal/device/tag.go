// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// checkTags checks the requested attributes of a tag-matching queue.
func checkTags(c *ibv.TMCap) runtime.Errno {
	if c.MaxNumTags == 0 || c.MaxNumTags > maxTags || c.MaxOps == 0 || c.MaxOps > maxTagOps {
		return syscall.EINVAL
	}
	return 0
}

// postSRQOps is the operation post_srq_ops.
func postSRQOps(address, first, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := locked[srq](address)
	if s == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer s.fabric().Unlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the list may be where no memory is
	n := uint32(0)
	for op := first; op != 0; n++ {
		w, errno := mem.At[ibv.OpsWR](op), syscall.ENOMEM // a list without an end
		if s.tags == nil || n < s.tags.Ops.Capacity {
			errno = s.operate(w)
		}
		if errno != 0 {
			if bad != 0 {
				*mem.At[uintptr](bad) = uintptr(op)
			}
			return uint64(errno), 0
		}
		op = uint64(w.Next)
	}
	return 0, 0
}

// operate carries out one operation on the tag list.
func (s *srq) operate(w *ibv.OpsWR) runtime.Errno {
	t := s.tags
	switch {
	case t == nil:
		return syscall.EOPNOTSUPP
	case w.Flags&^(ibv.OPS_SIGNALED|ibv.OPS_TM_SYNC) != 0:
		return syscall.EINVAL
	case t.Ops.Posted-t.Ops.Freed.Load() >= t.Ops.Capacity:
		return syscall.ENOMEM
	}
	status, opcode := ibv.WC_SUCCESS, ibv.WC_TM_ADD
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		if errno := s.checkTag(&w.TM.Add); errno != 0 {
			return errno
		}
	case ibv.WR_TAG_DEL:
		opcode = ibv.WC_TM_DEL
	case ibv.WR_TAG_SYNC:
		opcode = ibv.WC_TM_SYNC
	default:
		return syscall.EINVAL
	}
	if w.Flags&ibv.OPS_TM_SYNC != 0 || w.Opcode == ibv.WR_TAG_SYNC {
		t.Tell(w.TM.UnexpectedCnt)
	}
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		add := &w.TM.Add
		var sges []ibv.SGE
		if add.NumSGE > 0 {
			sges = mem.List[ibv.SGE](uint64(add.SGList), int(add.NumSGE))
		}
		e := t.Add(sges)
		e.ID, e.Tag, e.Mask, e.Held = add.RecvWRID, add.Tag, add.Mask, !t.InStep()
		w.TM.Handle = e.Handle
	case ibv.WR_TAG_DEL:
		i := slices.IndexFunc(t.Entries, func(e *resource.Tag) bool { return e.Handle == w.TM.Handle })
		if i < 0 { // a message took it
			status = ibv.WC_TM_ERR
		} else {
			e := t.Entries[i]
			t.Take(i)
			t.Recycle(e)
		}
	}
	if w.Flags&ibv.OPS_SIGNALED == 0 && status == ibv.WC_SUCCESS {
		return 0
	}
	e := s.cq.next()
	*e = Completion{wc: ibv.WC{WRID: w.WRID, Status: status, Opcode: opcode},
		Slot: resource.Slot{Receives: &t.Ops}}
	if !t.InStep() {
		e.wc.WCFlags = ibv.WC_TM_SYNC_REQ
	}
	t.Ops.Posted++
	s.cq.publish(e, false)
	return 0
}

func (s *srq) checkTag(add *ibv.OpsTMAdd) runtime.Errno {
	switch {
	case add.NumSGE < 0 || uint32(max(add.NumSGE, 0)) > s.recvs.MaxSGE || add.NumSGE > 0 && add.SGList == 0:
		return syscall.EINVAL
	case s.tags.IsFull():
		return syscall.ENOMEM
	}
	return 0
}
