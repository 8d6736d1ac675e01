// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Len returns the number of completions that the queue holds.
func (q *CQ) Len() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries
}

// Free returns for how many more completions queues may be created. With QueueOptions.Overcommit it may be negative.
func (q *CQ) Free() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries - q.taken
}

// Resize changes the number of completions that the queue holds. It cannot be lower than the number that the queue
// pairs may need.
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
	if q.native != nil { // C would copy completions from where it has polled, which is nowhere
		return &VerbError{Verb: verb, Object: q.name, Errno: syscall.EOPNOTSUPP,
			Reason: "a data path in Go polls the queue and cannot resize it: create it large enough"}
	}
	hidden := reserve
	err := libibverbs.ResizeCQ(q.c, entries+reserve)
	if q.device.refused().NotSoMuch(err) { // as when it was created
		hidden = 0
		err = libibverbs.ResizeCQ(q.c, entries)
	}
	if err != nil {
		return wrap(verb, q.name, q.device.refused().CQ(entries, 0, err))
	}
	q.entries = int(q.c.CQE) - hidden
	return nil
}

// admit reserves room for the completions of a queue pair, a work queue or a shared receive queue: n for its requests,
// plus the depth of srq, which may be nil and is counted once for all its queue pairs.
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
			others = fmt.Sprintf(" and %d for each further one like this", n)
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

// srqRoom is the room that a shared receive queue takes: its depth, once for all its queue pairs.
type srqRoom struct{ users, depth int }

// resizeSRQ reserves room for another depth of a shared receive queue that has room already.
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
			Reason: fmt.Sprintf("%s would need %d completions more, and there is room for %d of %d", srq.name,
				depth-s.depth, q.entries-q.taken, q.entries)}
	}
	q.taken = taken
	q.srqs[srq] = srqRoom{s.users, depth}
	return nil
}

// dismiss releases the room that admit reserved.
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
