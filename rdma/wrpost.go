// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/runtime"
)

// PostProgram posts all requests of the program in one call: all of them, or none and an error. The program must be for
// the queue's queue pair.
//
// On Soft-RoCE, whose library mishandles inline data and several entries in programs, ibv_post_send posts a program
// that has any. If that takes only some of the requests, the error's Index is that of the first one that it did not
// take.
//
// The first post of a program checks it completely. Later ones check it like a list, and run it in one call of C.
func (q *SendQueue) PostProgram(p *WRProgram) error {
	switch {
	case p == nil: // here, because a panic below leaves the queue locked
		return q.recordedProgram(q.unfitProgram(errProgramNil))
	case p.qp == nil:
		return q.recordedProgram(q.unfitProgram(errProgramZero))
	case q.direct && q.fits(p):
		if result := p.program.RunDirect(); result != 0 {
			return q.programFailed(p, mark{}, result)
		}
		return nil
	}
	q.mu.Lock()
	if q.refusal != nil || !q.fits(p) {
		return q.postUnusual(p)
	}
	if q.short && p.usual && len(p.wrs) == 1 && q.one(&p.wrs[0]) {
		q.mu.Unlock()
		return nil
	}
	if !q.plain {
		return q.postUnusual(p)
	}
	var m mark
	if q.checks != nil {
		var ok bool
		if m, ok = q.takeUsual(p); !ok {
			return q.postUnusual(p)
		}
	}
	if result := p.program.RunDirect(); result != 0 {
		defer q.mu.Unlock()
		return q.programFailed(p, m, result)
	}
	q.mu.Unlock()
	return nil
}

// postUnusual is the rest of PostProgram. The caller holds slots.mu; postUnusual releases it.
func (q *SendQueue) postUnusual(p *WRProgram) error {
	defer q.unlock()
	if q.refusal != nil {
		return q.refusal
	}
	runner, m, err := q.takeProgram(p)
	if err != nil {
		return q.recordedProgram(err)
	}
	if runner == nil {
		return q.postList(p, m)
	}
	if r := runner.Run(&p.program); r != 0 {
		return q.programFailed(p, m, r)
	}
	return nil
}

var errProgramEmpty = invalid("", "", "the program is empty, so there is nothing to post, and no completion will come")

var (
	errProgramNil  = invalid("", "", "the program is nil")
	errProgramZero = invalid("", "", "the program is the zero value of its type, and needs its constructor")
)

// errIrregular is the error of a program that has to be posted as a list, and cannot be one.
var errIrregular = &runtime.NotSupportedError{Function: "ibv_wr_post", Missing: "the provider's library mishandles " +
	"inline data and several entries; post atomic writes and flushes in a program without them"}

// fits reports whether the program was posted before, and is for the queue.
func (q *SendQueue) fits(p *WRProgram) bool { return p.runs && q.qp == &p.qp.QPBase }

// takeUsual takes slots for a program of the usual kind as for a list, or returns false.
func (q *SendQueue) takeUsual(p *WRProgram) (m mark, ok bool) {
	switch {
	case !p.usual || !q.checks.inState(q.qp):
		return m, false
	case len(p.wrs) == 1:
		return q.takeOne(&p.wrs[0])
	}
	return q.takeAlike(p.wrs, q.checks)
}

// programFailed is the error of a program that C did not take, whose slots it gives back. The caller holds slots.mu,
// if posts do.
func (q *SendQueue) programFailed(p *WRProgram, m mark, result int32) error {
	if q.checks != nil {
		q.undo(m, 0)
	}
	return q.programError(0, p.wrs[0].WRID, errnoOf(result), "none of the requests was posted")
}

// programError is [queue.failure] of a program.
func (q *SendQueue) programError(i int, id uint64, errno runtime.Errno, reason string) *PostError {
	e := q.failure(i, id, errno, reason)
	e.Verb = "ibv_wr_complete"
	return e
}

// takeProgram checks a program, and takes slots for its requests. The runner is nil where it is posted as a list.
func (q *SendQueue) takeProgram(p *WRProgram) (runner datapath.Runner, m mark, err error) {
	if p.finish(); p.err != nil {
		return nil, m, q.unfitProgram(p.err)
	} else if len(p.wrs) == 0 {
		return nil, m, q.unfitProgram(errProgramEmpty)
	}
	byList := p.irregular && q.avoidSetters
	runner, runs := q.path.(datapath.Runner)
	if !runs {
		runner, runs = trace.Sends(q.path, q.qp, p.wrs)
	}
	switch {
	case byList && p.unlisted != nil:
		return nil, m, errIrregular
	case byList || !runs:
		if runner = nil; p.unlisted != nil {
			return nil, m, p.unlisted
		}
	case p.unable != nil:
		return nil, m, p.unable
	}
	if q.qp != &p.qp.QPBase {
		return nil, m, q.unfitProgram(invalid("", "", "the program is of QP %#x, and the queue of QP %#x",
			p.qp.QPBase.QPNum, q.qp.QPNum))
	}
	if !p.linked {
		p.link()
	}
	if byList {
		p.linked, p.runs = false, false // the next post comes here as well
	}
	if q.checks == nil {
		return runner, m, nil
	}
	if !q.checks.inState(q.qp) {
		return nil, m, q.programError(0, p.wrs[0].WRID, syscall.EINVAL, stateReason(q.qp.State, ibv.WorkQueueSend))
	}
	m, ok := q.takeUsual(p)
	if ok {
		return runner, m, nil
	}
	for i := range p.info {
		if reason := q.checks.programReason(&p.wrs[i], &p.info[i]); reason != "" {
			return nil, m, q.programError(i, p.wrs[i].WRID, syscall.EINVAL, reason)
		}
	}
	if m, ok = q.takeSend(p.wrs, nil); !ok {
		errno, reason := q.noRoom(len(p.wrs))
		return nil, m, q.programError(0, p.wrs[0].WRID, errno, reason)
	}
	return runner, m, nil
}

// unfitProgram is the error of a post of a program with that error.
func (q *SendQueue) unfitProgram(err error) error {
	if _, ok := err.(*PostError); ok || errors.Is(err, runtime.ErrNotSupported) {
		return err
	}
	return q.programError(-1, 0, 0, "").because(err)
}

// recordedProgram is [recorded] for programs, which may need functions that are missing.
func (q *SendQueue) recordedProgram(err error) error {
	if _, ok := err.(*PostError); !ok {
		trace.Refused("ibv_wr_complete", q.qp.QPNum, 0, syscall.EOPNOTSUPP, err.Error())
	}
	return recorded(err)
}

// postList posts the program as a list. The caller holds slots.mu.
func (q *SendQueue) postList(p *WRProgram, m mark) error {
	p.bad = 0
	q.enter(m)
	r := q.path.PostSend(q.qp, &p.wrs[0], &p.bad)
	q.inPath = false
	if r == 0 {
		return nil
	}
	e := q.programError(-1, 0, errnoOf(r), "")
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
