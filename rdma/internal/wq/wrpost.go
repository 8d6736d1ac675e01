// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// PostProgram posts all requests of the program in one call: all of them, or none and an error. The program must be for
// the queue's queue pair.
func (q *SendQueue) PostProgram(p *WRProgram) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return q.refusal
	}
	return q.postProgram(q.path, p)
}

// PostProgram is [SendQueue.PostProgram].
func (x *ExclusiveSendQueue) PostProgram(p *WRProgram) error {
	if err := x.own(); err != nil {
		return err
	}
	// It needs no lock: the queue takes nothing but by the handle.
	return x.send.postProgram(x.path, p)
}

var errProgramEmpty = invalid("the program is empty, so there is nothing to post, and no completion will come")

// postProgram is PostProgram for all kinds of callers. The caller holds slots.mu, or has the exclusive handle.
func (q *SendQueue) postProgram(path Path, p *WRProgram) error {
	runner, m, err := q.takeProgram(path, p)
	if err != nil {
		return q.recordedProgram(err)
	}
	if runner == nil {
		return q.postList(path, p, m)
	}
	r := runner.Run(&p.program)
	if r == 0 {
		return nil
	}
	if q.checks != nil {
		q.undo(m, 0)
	}
	return &PostError{Verb: "ibv_wr_complete", QPNum: q.qp.QPNum, QPType: q.qp.QPType, WRID: p.wrs[0].WRID,
		Errno: errnoOf(r), Reason: "none of the requests was posted"}
}

// takeProgram checks a program, and takes slots for its requests. The runner is nil where it is posted as a list.
func (q *SendQueue) takeProgram(path Path, p *WRProgram) (runner datapath.Runner, m mark, err error) {
	if p.finish(); p.err != nil {
		return nil, m, q.unfitProgram(p.err)
	} else if len(p.wrs) == 0 {
		return nil, m, q.unfitProgram(errProgramEmpty)
	}
	runner, runs := path.(datapath.Runner)
	if !runs {
		runner, runs = trace.Sends(path, q.qp, p.wrs)
	}
	if runs && p.unable != nil {
		return nil, m, p.unable
	} else if !runs && p.unlisted != nil {
		return nil, m, p.unlisted
	}
	if q.qp != &p.qp.QPBase {
		return nil, m, q.unfitProgram(invalid("the program is of QP %#x, and the queue of QP %#x", p.qp.QPBase.QPNum,
			q.qp.QPNum))
	}
	if !runs {
		runner = nil
	}
	if q.checks == nil {
		return runner, m, nil
	}
	if !q.checks.inState(q.qp) {
		return nil, m, p.refused(0, einval, stateReason(q.qp.State, ibv.WorkQueueSend))
	}
	for i, size := range p.sizes {
		if reason := q.checks.sizeReason(p.wrs[i].Opcode, p.wrs[i].SendFlags, size); reason != "" {
			return nil, m, p.refused(i, einval, reason)
		}
	}
	m, ok := q.takeSend(p.wrs, nil)
	if !ok {
		return nil, m, p.refused(0, enomem, q.reason(len(p.wrs)))
	}
	return runner, m, nil
}

// refused is the error of a post whose request a check refuses.
func (p *WRProgram) refused(i int, errno runtime.Errno, reason string) *PostError {
	e := p.failure(i)
	e.Verb, e.Errno, e.Reason = "ibv_wr_complete", errno, reason
	return e
}

// recordedProgram is [recorded] for programs, which may need functions that are missing.
func (q *SendQueue) recordedProgram(err error) error {
	if _, ok := err.(*PostError); !ok {
		trace.Refused("ibv_wr_complete", q.qp.QPNum, 0, verberr.EOPNOTSUPP, err.Error())
	}
	return recorded(err)
}

// postList posts the program as a list by a path. The caller holds slots.mu, or has the exclusive handle.
func (q *SendQueue) postList(path Path, p *WRProgram, m mark) error {
	for i := range p.wrs {
		w := &p.wrs[i]
		if p.sizes[i].inline {
			w.SendFlags |= ibv.SEND_INLINE
		}
		if w.Next = 0; i+1 < len(p.wrs) {
			w.Next = ibv.PtrTo(&p.wrs[i+1])
		}
	}
	p.bad = 0
	r := path.PostSend(q.qp, &p.wrs[0], &p.bad)
	if r == 0 {
		return nil
	}
	e := &PostError{Verb: "ibv_wr_complete", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: -1, Errno: errnoOf(r)}
	const size = unsafe.Sizeof(ibv.SendWR{})
	at := uintptr(p.bad) - uintptr(unsafe.Pointer(&p.wrs[0]))
	if at%size == 0 && at/size < uintptr(len(p.wrs)) {
		e.Index = int(at / size)
		e.WRID = p.wrs[e.Index].WRID
		if q.checks != nil {
			q.undo(m, e.Index)
		}
	}
	return e
}
