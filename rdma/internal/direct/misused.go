// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// A queue must have only one writer. libmlx5 has its own counters: if C posts to a queue of this package, it starts at
// 0, overwrites requests and moves the doorbell record back. Slow operations and failures check for that. They detect
// it as long as the doorbell record or the request is still as C left it.

const ebusy = int32(syscall.EBUSY)

// hint is the hint of all errors.
const hint = ": use it only through package rdma, or create it without a Path"

func (refusing) Misused(bool) string { return "" }
func (refusing) Inspect() string     { return "" }

// Misused checks the doorbell record of one of the two queues, and its completion queue.
func (q *queuePair) Misused(sends bool) string { return q.look(sends, false) }

// Inspect checks both queues, including their requests.
func (q *queuePair) Inspect() string { return cmp.Or(q.look(true, true), q.look(false, true)) }

func (q *queuePair) look(sends, requests bool) (found string) {
	cq := q.recvCQ
	if sends {
		cq = q.sendCQ
	}
	switch {
	case q.isTarget():
	case q.c.State == ibv.QPS_RESET: // C has cleared the doorbell records, or is about to
	case sends:
		found = q.send.misused(requests)
	default:
		found = q.recv.misused()
	}
	if found == "" && cq != nil {
		found = cq.Inspect()
	}
	return found
}

func (q *sendQueue) misused(requests bool) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	record, own := host32(ibv.BE32(atomic.LoadUint32(q.record))), q.next&0xffff
	switch {
	case record != own:
		return fmt.Sprintf("C has also posted sends to the queue pair, or moved it to RESET: its doorbell record "+
			"has %d as the next block, and package rdma has %d", record, own) + hint
	case q.posted-q.done.Load() > q.maxOutstanding:
		return "C has also posted sends to the queue pair: a request has completed twice" + hint
	}
	if !requests {
		return ""
	}
	if at, is := q.overwritten(); is {
		return fmt.Sprintf("C has also posted sends to the queue pair: block %d has a different request",
			at&0xffff) + hint
	}
	return ""
}

// overwritten reports whether a block contains a request with a wrong number, and which block. The caller holds
// sendQueue.mu.
func (q *sendQueue) overwritten() (at uint32, is bool) {
	want := q.posted
	for i := range min(q.next, q.mask+1) {
		at = q.next - 1 - i
		if want == 0 || q.requests[at&q.mask].number != want {
			continue // not the first block of a request
		}
		want--
		c := (*mlx5dv.MLX5WQECtrlSeg)(q.block(at))
		if host32(c.OpmodIdxOpcode)>>8&0xffff != at&0xffff {
			return at, true
		}
	}
	return 0, false
}

func (q *recvQueue) misused() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.record == nil || q.late && q.c.State < ibv.QPS_RTR {
		return ""
	}
	if record := host32(ibv.BE32(atomic.LoadUint32(q.record))); record != q.posted&0xffff {
		return fmt.Sprintf("C has also posted receives to the queue pair, or moved it to RESET: its doorbell "+
			"record counts %d, and package rdma counts %d", record, q.posted&0xffff) + hint
	}
	return ""
}

// Misused checks the doorbell record.
func (q *sharedQueue) Misused(bool) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if record := host32(ibv.BE32(atomic.LoadUint32(q.record))); record != uint32(q.posted) {
		return q.misused(record)
	}
	return ""
}

func (q *sharedQueue) misused(record uint32) string {
	return fmt.Sprintf("C has also posted receives to the queue: its doorbell record counts %d, and package rdma "+
		"counts %d", record, q.posted) + hint
}

// Inspect also compares libmlx5's counters of the queue.
func (q *sharedQueue) Inspect() string {
	if found := q.Misused(false); found != "" {
		return found
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	out := new(mlx5dv.SRQ)
	obj := &mlx5dv.Obj{SRQ: mlx5dv.ObjSRQ{In: ibv.PtrTo(q.c), Out: ibv.PtrTo(out)}}
	if err := q.device.initObj(obj, mlx5dv.OBJ_SRQ); err == nil && [2]uint32{out.Head, out.Tail} != q.inC {
		return q.misused(uint32(q.posted))
	}
	return ""
}

// Misused checks for polls by C, and for queue pairs of C that complete here.
func (q *completionQueue) Misused(bool) string {
	if q.held != nil {
		return q.misused()
	}
	return q.Inspect()
}

// Inspect is Misused. The caller does not hold the queue's lock.
func (q *completionQueue) Inspect() string {
	defer q.locked().Unlock()
	return q.misused()
}

// misused is Inspect. The caller holds the queue's lock.
func (q *completionQueue) misused() string {
	record, own := host32(ibv.BE32(q.record.consumed.Load())), q.consumed&0xffffff
	switch {
	case record != own:
		return fmt.Sprintf("C has also polled the completion queue: its doorbell record counts %d "+
			"completions, and package rdma counts %d", record, own) + hint
	case q.unknownQP != 0:
		return fmt.Sprintf("C has created queue pair %#x, which uses the completion queue", q.unknownQP) + hint
	}
	return ""
}
