// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// PostProgram posts all requests of the program in one call: all of them, or none and an error. The program must be for
// the queue's queue pair.
//
// On Soft-RoCE, whose library mishandles inline data and several entries in programs, ibv_post_send posts a program
// that has any. If that takes only some of the requests, the error's Index is that of the first one that it did not
// take.
//
// A program that was posted once is known to fit. From then on it goes to C by a few assembly instructions where
// nothing wants to see the post, and else by the checks that a list gets.
func (q *SendQueue) PostProgram(p *WRProgram) error {
	if p == nil || p.qp == nil { // here, because a panic below leaves the queue locked
		return q.unmade(p)
	}
	if !q.locked {
		return q.programs.Post(&p.chain)
	}
	q.mu.Lock()
	if q.short && q.shortProgram(p) {
		q.mu.Unlock()
		return nil
	}
	if !q.plain || !q.fits(p) {
		return q.unusualProgram(p)
	}
	var m mark
	if q.checks != nil {
		var ok bool
		if !q.checks.inState(q.qp) {
			return q.unusualProgram(p)
		} else if m, ok = q.takeUsual(p); !ok {
			return q.unusualProgram(p)
		}
	}
	if r := q.programs.Call(&p.chain); r != 0 {
		defer q.mu.Unlock()
		return q.programFailed(p, m, r)
	}
	q.mu.Unlock()
	return nil
}

// unusualProgram is the rest of PostProgram. The caller holds slots.mu; unusualProgram releases it.
func (q *SendQueue) unusualProgram(p *WRProgram) error {
	defer q.mu.Unlock()
	if q.refusal != nil {
		return q.refusal
	}
	return q.postProgram(q.path, p)
}

// programs is a queue as the poster of its programs knows it.
type programs SendQueue

func (p *programs) PostUnusual(c *runtime.Chain) error {
	q := (*SendQueue)(p)
	q.mu.Lock()
	return q.unusualProgram(programOf(c))
}

func (p *programs) PostFailed(c *runtime.Chain, result int32) error {
	if result == program.OtherObject {
		return p.PostUnusual(c) // which says so
	}
	return (*SendQueue)(p).noneTaken(programOf(c), result)
}

var errProgramEmpty = invalid("", "", "the program is empty, so there is nothing to post, and no completion will come")

var (
	errProgramNil  = invalid("", "", "the program is nil")
	errProgramZero = invalid("", "", "the program is the zero value of its type, and needs its constructor")
)

// errIrregular is the error of a program that has to be posted as a list, and cannot be one.
var errIrregular = &runtime.NotSupportedError{Function: "ibv_wr_post", Missing: "the provider's library mishandles " +
	"inline data and several entries; post atomic writes and flushes in a program without them"}

// fits says whether the program was posted before, and is for the queue.
func (q *SendQueue) fits(p *WRProgram) bool {
	return p.chain.Len == p.chain.Closed && q.qp == &p.qp.QPBase
}

// takeUsual takes slots for a program of the usual kind as for a list, or says that it is not.
func (q *SendQueue) takeUsual(p *WRProgram) (m mark, ok bool) {
	switch {
	case !p.usual:
		return m, false
	case len(p.wrs) == 1:
		return q.takeOne(&p.wrs[0])
	}
	return q.takeAlike(p.wrs, q.checks)
}

// postProgram is PostProgram for all kinds of callers. The caller holds slots.mu.
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
	return q.programFailed(p, m, r)
}

// programFailed is the error of a program that C did not take, whose slots it gives back. The caller holds
// slots.mu.
func (q *SendQueue) programFailed(p *WRProgram, m mark, result int32) error {
	if q.checks != nil {
		q.undo(m, 0)
	}
	return q.noneTaken(p, result)
}

// noneTaken is the error of a program that C did not take.
func (q *SendQueue) noneTaken(p *WRProgram, result int32) error {
	return &PostError{Verb: "ibv_wr_complete", QPNum: q.qp.QPNum, QPType: q.qp.QPType, WRID: p.wrs[0].WRID,
		Errno: errnoOf(result), Reason: "none of the requests was posted"}
}

// takeProgram checks a program, and takes slots for its requests. The runner is nil where it is posted as a list.
func (q *SendQueue) takeProgram(path Path, p *WRProgram) (runner datapath.Runner, m mark, err error) {
	if p.finish(); p.err != nil {
		return nil, m, q.unfitProgram(p.err)
	} else if len(p.wrs) == 0 {
		return nil, m, q.unfitProgram(errProgramEmpty)
	}
	byList := p.irregular && q.avoidSetters
	runner, runs := path.(datapath.Runner)
	switch {
	case byList && p.unlisted != nil:
		return nil, m, errIrregular
	case byList:
		runs = false
	case !runs:
		runner, runs = trace.Sends(path, q.qp, p.wrs)
	}
	if runs && p.unable != nil {
		return nil, m, p.unable
	} else if !runs && p.unlisted != nil {
		return nil, m, p.unlisted
	}
	if q.qp != &p.qp.QPBase {
		return nil, m, q.unfitProgram(invalid("", "", "the program is of QP %#x, and the queue of QP %#x", p.qp.QPBase.QPNum,
			q.qp.QPNum))
	}
	if !runs {
		runner = nil
	}
	if !q.fits(p) {
		p.ready()
	}
	if byList {
		p.unfit() // the next post comes here as well
	}
	if q.checks == nil {
		return runner, m, nil
	}
	if !q.checks.inState(q.qp) {
		return nil, m, p.refused(0, einval, stateReason(q.qp.State, ibv.WorkQueueSend))
	}
	m, ok := q.takeUsual(p)
	if ok {
		return runner, m, nil
	}
	for i, size := range p.sizes {
		if reason := q.checks.sizeReason(p.wrs[i].Opcode, p.wrs[i].SendFlags, size); reason != "" {
			return nil, m, p.refused(i, einval, reason)
		}
	}
	if m, ok = q.takeSend(p.wrs, nil); !ok {
		errno, reason := q.noRoom(len(p.wrs))
		return nil, m, p.refused(0, errno, reason)
	}
	return runner, m, nil
}

// unmade is the error of a post of a program that is nil, or that no constructor has made.
func (q *SendQueue) unmade(p *WRProgram) error {
	if p == nil {
		return q.recordedProgram(q.unfitProgram(errProgramNil))
	}
	return q.recordedProgram(q.unfitProgram(errProgramZero))
}

// unfitProgram is the error of a post of a program with that error.
func (q *SendQueue) unfitProgram(err error) error {
	if _, ok := err.(*PostError); ok || errors.Is(err, runtime.ErrNotSupported) {
		return err
	}
	return (&PostError{Verb: "ibv_wr_complete", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: -1}).because(err)
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

// postList posts the program as a list by a path. The caller holds slots.mu.
func (q *SendQueue) postList(path Path, p *WRProgram, m mark) error {
	if !p.usual {
		p.inlined()
	}
	p.bad = 0
	r := path.PostSend(q.qp, &p.wrs[0], &p.bad)
	if r == 0 {
		return nil
	}
	return q.listFailed(p, m, r)
}

// listFailed is the error of a list that a path did not take, or not whole. The caller holds slots.mu.
func (q *SendQueue) listFailed(p *WRProgram, m mark, r int32) error {
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
	return q.orMisused(e)
}
