// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime/debug"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// tags are the tag list of a shared receive queue that matches tags.
type tags struct {
	entries    []*tag // in the order in which they match
	free       []*tag // that are to be used again
	most       int
	last       uint32             // handle
	ops        resource.RecvQueue // counts operations whose completions were not polled
	unexpected uint32             // messages that matched no tag
	told       uint32             // of those, what the program last said that it has seen
	headers    tagHeaders         // of the message that is carried out
}

// tag is an entry of the list.
type tag struct {
	handle    uint32
	id        uint64 // recv_wr_id
	tag, mask uint64
	sges      []ibv.SGE
	held      bool // added when the program had not seen every unexpected message, and so matches none before it has
}

const (
	tmhSize   = uint64(unsafe.Sizeof(ibv.TMH{}))
	rvhSize   = uint64(unsafe.Sizeof(ibv.RVH{}))
	rndvBytes = 64 // max_rndv_hdr_size
)

// checkTags checks what a queue that matches tags is asked for.
func checkTags(c *ibv.TMCap) runtime.Errno {
	if c.MaxNumTags == 0 || c.MaxNumTags > maxTags || c.MaxOps == 0 || c.MaxOps > maxTagOps {
		return syscall.EINVAL
	}
	return 0
}

func newTags(c *ibv.TMCap) *tags {
	return &tags{most: int(c.MaxNumTags), ops: resource.RecvQueue{Capacity: c.MaxOps, Shared: true}}
}

// inStep reports whether the program has seen every unexpected message.
func (t *tags) inStep() bool { return t.told == t.unexpected }

// tell takes the program's count of unexpected messages.
func (t *tags) tell(count uint32) {
	t.told = count
	if t.inStep() {
		for _, e := range t.entries {
			e.held = false
		}
	}
}

// holds reports whether a tag is held back.
func (t *tags) holds() bool {
	return !t.inStep() && slices.ContainsFunc(t.entries, func(e *tag) bool { return e.held })
}

// match is the place of the first entry that a tag matches, or −1; take takes it out of the list. An entry whose tag
// has a bit that its mask lacks matches nothing: ibv_post_srq_ops(3) masks the message's tag alone.
func (t *tags) match(of uint64) int {
	return slices.IndexFunc(t.entries, func(e *tag) bool { return !e.held && of&e.mask == e.tag })
}

func (t *tags) take(i int) { t.entries = slices.Delete(t.entries, i, i+1) }

// add adds an entry with so many buffers behind the others.
func (t *tags) add(sges []ibv.SGE) *tag {
	var e *tag
	if n := len(t.free); n > 0 {
		e, t.free = t.free[n-1], t.free[:n-1]
	} else {
		e = &tag{}
	}
	t.last++
	*e = tag{handle: t.last, sges: append(e.sges[:0], sges...)}
	t.entries = append(t.entries, e)
	return e
}

// recycle gives back an entry that was taken, and that nobody needs any more.
func (t *tags) recycle(e *tag) { t.free = append(t.free, e) }

// postSRQOps is the operation post_srq_ops.
func postSRQOps(address, first, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := locked[srq](address)
	if s == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer s.fabric().unlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the list may be where no memory is
	n := uint32(0)
	for op := first; op != 0; n++ {
		w, errno := at[ibv.OpsWR](op), syscall.ENOMEM // a list without an end
		if s.tags == nil || n < s.tags.ops.Capacity {
			errno = s.operate(w)
		}
		if errno != 0 {
			if bad != 0 {
				*at[uintptr](bad) = uintptr(op)
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
	case t.ops.Posted-t.ops.Freed.Load() >= t.ops.Capacity:
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
		t.tell(w.TM.UnexpectedCnt)
	}
	switch w.Opcode {
	case ibv.WR_TAG_ADD:
		add := &w.TM.Add
		var sges []ibv.SGE
		if add.NumSGE > 0 {
			sges = list[ibv.SGE](uint64(add.SGList), int(add.NumSGE))
		}
		e := t.add(sges)
		e.id, e.tag, e.mask, e.held = add.RecvWRID, add.Tag, add.Mask, !t.inStep()
		w.TM.Handle = e.handle
	case ibv.WR_TAG_DEL:
		i := slices.IndexFunc(t.entries, func(e *tag) bool { return e.handle == w.TM.Handle })
		if i < 0 { // a message took it
			status = ibv.WC_TM_ERR
		} else {
			e := t.entries[i]
			t.take(i)
			t.recycle(e)
		}
	}
	if w.Flags&ibv.OPS_SIGNALED == 0 && status == ibv.WC_SUCCESS {
		return 0
	}
	e := s.cq.next()
	*e = completion{wc: ibv.WC{WRID: w.WRID, Status: status, Opcode: opcode},
		Slot: resource.Slot{Receives: &t.ops}}
	if !t.inStep() {
		e.wc.WCFlags = ibv.WC_TM_SYNC_REQ
	}
	t.ops.Posted++
	s.cq.publish(e, false)
	return 0
}

func (s *srq) checkTag(add *ibv.OpsTMAdd) runtime.Errno {
	switch {
	case add.NumSGE < 0 || uint32(max(add.NumSGE, 0)) > s.recvs.MaxSGE || add.NumSGE > 0 && add.SGList == 0:
		return syscall.EINVAL
	case len(s.tags.entries) >= s.tags.most:
		return syscall.ENOMEM
	}
	return 0
}

// rendezvous is data that a message announced, and for which it took a tag: the receiver reads it, then sends a message,
// the FIN. Both go before requests of the receiving queue pair that were not begun. Of an eager message it describes the
// completion.
type rendezvous struct {
	tag       *tag
	headers   tagHeaders
	source    uint32 // number of the sender
	solicited bool
	isRead    bool
}

// tagHeaders are the headers of a message that announces a rendezvous. Others have the first one.
type tagHeaders struct {
	tmh ibv.TMH
	rvh ibv.RVH
}

// greatest is how many bytes the greatest message has that finds room now, with its header.
func (s *srq) greatest() (n uint64) {
	for _, e := range s.tags.entries {
		n = max(n, resource.Room(e.sges)+tmhSize)
	}
	return max(n, s.recvs.Room())
}
