// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Len returns the capacity of the queue, in completions.
func (q *CQ) Len() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries
}

// Free returns the capacity that is not reserved for queues that complete here. With QueueOptions.Overcommit it may be
// negative.
func (q *CQ) Free() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries - q.taken
}

// Resize changes the capacity of the queue. It must not be lower than the capacity reserved for queues that complete
// here.
//
// C: ibv_resize_cq
//
// Man: ibv_resize_cq(3)
func (q *CQ) Resize(entries int) error {
	const verb = "ibv_resize_cq"
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	q.room.Lock()
	defer q.room.Unlock()
	if reason := unfitCQ(entries); reason != "" {
		return invalid(verb, q.name, "%s", reason)
	}
	if entries < q.taken {
		return invalid(verb, q.name, "%d completions are too few: the queues that complete here may need %d", entries,
			q.taken)
	}
	if q.native != nil { // C would copy completions from its own consumer index, which never advanced
		return &VerbError{Verb: verb, Object: q.name, Errno: syscall.EOPNOTSUPP,
			Reason: "a data path in Go polls the queue and cannot resize it: create it large enough"}
	}
	hidden := reserve
	err := libibverbs.ResizeCQ(q.c, entries+reserve)
	if q.device.refused().NotSoMuch(err) { // as at creation
		hidden = 0
		err = libibverbs.ResizeCQ(q.c, entries)
	}
	if err != nil {
		return wrap(verb, q.name, q.device.refused().CQ(entries, 0, err))
	}
	q.entries = int(q.c.CQE) - hidden
	return nil
}

// admit reserves capacity for the completions of a queue pair, a work queue or a shared receive queue: n for its
// requests, plus the depth of srq, which is counted once for all its queue pairs. srq may be nil.
func (q *CQ) admit(n int, srq *SRQ, overcommit bool) error {
	q.room.Lock()
	defer q.room.Unlock()
	more := n
	if srq != nil && q.srqs[srq].users == 0 {
		more += srq.depth()
	}
	if q.taken+more > q.entries && !overcommit {
		others := ""
		if n > 0 {
			others = fmt.Sprintf(" plus %d for each further one like this", n)
		}
		return &VerbError{Object: q.name, Errno: syscall.ENOMEM,
			Reason: fmt.Sprintf("%d completions may be outstanding, but only %d of the queue's %d entries are free: "+
				"create the queue with at least %d%s, or set QueueOptions.Overcommit",
				more, q.entries-q.taken, q.entries, q.taken+more, others)}
	}
	q.taken += more
	if srq != nil {
		if q.srqs == nil {
			q.srqs = map[*SRQ]srqRoom{}
		}
		s := q.srqs[srq]
		q.srqs[srq] = srqRoom{s.users + 1, s.depth + more - n}
	}
	return nil
}

// srqRoom is the capacity reserved for a shared receive queue: its depth, once for all its queue pairs.
type srqRoom struct{ users, depth int }

// resizeSRQ changes the capacity reserved for a shared receive queue to a new depth.
func (q *CQ) resizeSRQ(srq *SRQ, depth int, force bool) error {
	q.room.Lock()
	defer q.room.Unlock()
	s, ok := q.srqs[srq]
	if !ok {
		return nil
	}
	taken := q.taken + depth - s.depth
	if taken > q.entries && taken > q.taken && q.taken <= q.entries && !force {
		return &VerbError{Object: q.name, Errno: syscall.ENOMEM,
			Reason: fmt.Sprintf("%s would need %d more completions, but only %d of %d are free", srq.name,
				depth-s.depth, q.entries-q.taken, q.entries)}
	}
	q.taken = taken
	q.srqs[srq] = srqRoom{s.users, depth}
	return nil
}

// dismiss releases the capacity that admit reserved.
func (q *CQ) dismiss(n int, srq *SRQ) {
	q.room.Lock()
	defer q.room.Unlock()
	q.taken -= n
	if srq == nil {
		return
	}
	s := q.srqs[srq]
	if s.users--; s.users > 0 {
		q.srqs[srq] = s
		return
	}
	delete(q.srqs, srq)
	q.taken -= s.depth
}
