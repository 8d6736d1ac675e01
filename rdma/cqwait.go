// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
)

// ReqNotify requests one event: for the next completion, or only for a solicited or failed one. Poll again afterwards,
// because earlier completions cause no event. Wait does both.
//
// C: ibv_req_notify_cq
//
// Man: ibv_req_notify_cq(3)
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	if err := q.use("ibv_req_notify_cq"); err != nil {
		return err
	}
	defer q.done()
	if err := q.readLeft(); err != nil {
		return err
	}
	return wrap("", q.name, q.queue.ReqNotify(solicitedOnly))
}

// Wait polls until there is at least one completion. Between polls the goroutine sleeps, but not its thread. Before it
// sleeps it polls for a while, if that has paid off before: see [CQ.SetBusyPoll]. The queue needs a channel. Any number
// of goroutines may wait. If ctx ends, Wait returns without a completion; posted requests stay posted, and their memory
// belongs to the device. Wait fails if the queue is closed or overruns, if its device is gone, or if dst has no room.
//
// It does not allocate while it gets the same context again, or contexts that end together with it: the channel keeps
// the context of the last wait until the context ends, another goroutine waits, or a queue of the channel is closed. A
// program that reads events itself asks for them with ReqNotify.
//
// C: ibv_get_cq_event, ibv_ack_cq_events, ibv_req_notify_cq, ibv_poll_cq
//
// Man: ibv_get_cq_event(3)
func (q *CQ) Wait(ctx context.Context, dst []ibv.WC) (n int, err error) {
	return q.wait(ctx, dst, false)
}

// WaitSolicited is like Wait, but sleeps until a completion is solicited (the sender set IBV_SEND_SOLICITED) or failed.
//
// Man: ibv_req_notify_cq(3)
func (q *CQ) WaitSolicited(ctx context.Context, dst []ibv.WC) (n int, err error) {
	return q.wait(ctx, dst, true)
}

// WaitProgram waits like [CQ.Wait] and polls with a program like [CQ.PollProgram]. It sleeps like Wait, or polls like
// WaitBusy if the queue has no channel.
//
// C: ibv_start_poll, ibv_next_poll, ibv_end_poll, ibv_get_cq_event, ibv_ack_cq_events, ibv_req_notify_cq
//
// Man: ibv_create_cq_ex(3)
func (q *CQ) WaitProgram(ctx context.Context, p *PollProgram) ([]Completion, error) {
	if err := q.notForUsers("ibv_start_poll"); err != nil {
		return nil, err
	}
	if q.ex == nil {
		return nil, q.notExtended()
	}
	if p == nil {
		return nil, isNil("ibv_start_poll", q.name, "program")
	}
	n, err := q.waitFor(ctx, into{program: p}, never)
	return p.polled()[:n], err
}

// All returns an endless iterator over completions:
//
//	for wc, err := range cq.All(ctx) {
//		if err == nil {
//			err = rdma.CompletionErr(&wc)
//		}
//		…
//	}
//
// It sleeps like Wait, or polls like WaitBusy if the queue has no channel. An error of the wait is yielded and ends the
// iteration; a failed completion does not. All polls one completion per iteration, so the loop may end at any time,
// poll and wait by itself, or close queue pairs. It does not allocate per completion. Poll and Wait return many
// completions at once, which costs less.
func (q *CQ) All(ctx context.Context) iter.Seq2[ibv.WC, error] {
	one := into{wcs: make([]ibv.WC, 1)}
	return each(func() (ibv.WC, error) {
		err := q.notForUsers("ibv_poll_cq")
		if err == nil {
			_, err = q.waitFor(ctx, one, never)
		}
		if err != nil {
			return ibv.WC{}, err
		}
		return one.wcs[0], nil
	})
}

// waitFor is waitUntil for queues with a channel, and waitBusyUntil for others.
func (q *CQ) waitFor(ctx context.Context, to into, over func() bool) (n int, err error) {
	if q.channel == nil {
		return q.waitBusyUntil(ctx, to, over)
	}
	return q.waitUntil(ctx, to, false, over)
}

func (q *CQ) wait(ctx context.Context, dst []ibv.WC, solicited bool) (n int, err error) {
	if err := q.notWaited("ibv_get_cq_event", dst); err != nil {
		return 0, err
	}
	return q.waitUntil(ctx, into{wcs: dst}, solicited, never)
}

// into is where a wait stores completions.
type into struct {
	wcs     []ibv.WC     // or
	program *PollProgram // into the program's memory
}

// take polls once.
func (q *CQ) take(to into) (n int, err error) {
	if to.program == nil {
		return q.queue.Poll(to.wcs)
	}
	found, err := q.queue.pollBy(q.ex.c, to.program)
	return len(found), q.ofOther(err)
}

// notWaited returns why a wait cannot begin, or nil.
func (q *CQ) notWaited(verb string, dst []ibv.WC) error {
	if err := q.notForUsers(verb); err != nil {
		return err
	}
	return q.roomIn(verb, len(dst))
}

// roomIn rejects a wait into an empty slice, which could never end.
func (q *CQ) roomIn(verb string, n int) error {
	if n == 0 {
		if err := q.failure(); err != nil {
			return err
		}
		return invalid(verb, q.name, "there is no room for a completion: the slice is empty")
	}
	return nil
}

func never() bool { return false }

// waitUntil is Wait that also returns when over returns true. It calls over after every wakeup.
func (q *CQ) waitUntil(ctx context.Context, to into, solicited bool, over func() bool) (n int, err error) {
	const verb = "ibv_get_cq_event"
	if to.program == nil {
		n, err = q.queue.Poll(to.wcs)
	} else {
		n, err = q.take(to)
	}
	if n > 0 || err != nil {
		return n, err
	}
	if q.channel == nil {
		return 0, invalid(verb, q.name,
			"the queue was created without a completion channel, so Wait cannot sleep: use WaitBusy, which polls")
	}
	if !solicited {
		if n, err = q.spin(to); n > 0 || err != nil {
			return n, err
		}
	}
	if err = q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	q.waiters.Add(1)
	defer q.waiters.Add(-1)
	for !over() {
		n, err = q.sleep(ctx, to, solicited, over)
		if n == 0 && err == nil {
			n, err = q.take(to)
		}
		if n > 0 || err != nil {
			break
		}
	}
	q.signal() // the next waiting goroutine may find more
	return n, q.unsignalled("ibv_get_cq_event", err)
}

// unsignalled adds a hint to the error of a wait that timed out while unsignaled requests were outstanding.
func (q *CQ) unsignalled(verb string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	qp, n := q.queue.silent()
	if n == 0 {
		return err
	}
	return explain(verb, q.name, fmt.Sprintf("%d requests of QP %#x are unsignaled and have no completion "+
		"unless they fail: set Signaled", n, qp), err)
}

// sleep returns when there may be completions to poll, or with completions found after arming the queue. One of the
// waiting goroutines reads the events of the channel for all its queues.
func (q *CQ) sleep(ctx context.Context, to into, solicited bool, over func() bool) (n int, err error) {
	turn := q.channel.ready.Turn
	select {
	case turn <- struct{}{}:
	default: // another goroutine reads
		if n, err = q.arm(to, solicited); n > 0 || err != nil {
			return n, err
		}
		if err = q.failure(); err != nil { // another goroutine has taken its token
			return 0, err
		}
		select {
		case <-q.event:
			return 0, q.failure()
		default:
		}
		select {
		case <-q.event:
			return 0, q.failure()
		case <-ctx.Done():
			return 0, ctx.Err()
		case turn <- struct{}{}:
		}
	}
	defer func() { <-turn }()
	return q.read(ctx, to, solicited, over)
}

// arm requests an event, and polls completions that arrived before the request.
func (q *CQ) arm(to into, solicited bool) (n int, err error) {
	if err = q.queue.ReqNotify(solicited); err != nil {
		return 0, wrap("", q.name, err)
	}
	return q.take(to)
}

// asleep is the wait of the goroutine that has the channel's turn.
type asleep struct {
	to        into
	n         int
	err       error
	solicited bool
	slept     bool // looked has been called before
	got       bool // an event was read, or none can come
}

// read arms the queue and reads events of the channel until one is for this queue. Events of other queues wake their
// waiting goroutines. The caller has the channel's turn.
func (q *CQ) read(ctx context.Context, to into, solicited bool, over func() bool) (n int, err error) {
	s := &q.asleep
	defer func() { *s = asleep{} }()
	for {
		if err = q.failure(); err != nil {
			return 0, err
		}
		select {
		case <-q.event: // the event came before this goroutine had its turn
			return 0, nil
		default:
		}
		*s = asleep{to: to, solicited: solicited}
		_, err = q.channel.ready.Wait(ctx, q.look,
			func() bool { return q.failure() != nil || len(q.event) > 0 || over() })
		switch {
		case s.n > 0 || s.err != nil:
			q.left.Store(q.channel.alone() && q.queue.armed.Load())
			return s.n, s.err
		case err != nil:
			return 0, q.goneOr(wrap("ibv_get_cq_event", q.channel.name, err))
		case s.got:
			cq, err := q.channel.taken()
			switch {
			case err != nil:
				return 0, q.goneOr(err)
			case cq == q:
				return 0, q.failure()
			case cq != nil:
				cq.signalAlways()
			}
			q.queue.armed.Store(true) // still
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case over():
			return 0, nil
		}
	}
}

// looked is called whenever the channel's file may have become readable. It reads an event if there can be one, and
// otherwise arms the queue. Every later completion causes another call, so a channel without an event is read only
// where events are counted. After a sleep it polls first and leaves the event to the next wait, so that a peer gets its
// answer sooner.
func (q *CQ) looked() bool {
	s, alone := &q.asleep, q.channel.alone()
	if s.slept && alone {
		if s.n, s.err = q.take(s.to); s.n > 0 || s.err != nil {
			return true
		}
	}
	s.slept = true
	if q.queue.armed.Swap(false) || q.countsEvents() || !alone {
		q.left.Store(false)
		for more := true; more && q.channel.get(); more = q.countsEvents() {
			if s.got = !alone || q.channel.failure != nil; s.got {
				return true
			}
			if err := q.tookEvent(); err != nil { // its completion is found after arming
				s.err = q.goneOr(err)
				return true
			}
		}
	}
	s.n, s.err = q.arm(s.to, s.solicited)
	return s.n > 0 || s.err != nil
}

// goneOr returns the reason why the device is gone, or else the error.
func (q *CQ) goneOr(err error) error {
	if gone := q.device.Err(); gone != nil {
		return gone
	}
	return err
}

// failure returns the error that ends all waits, or nil.
func (q *CQ) failure() error {
	if q.isClosed() {
		return &VerbError{Verb: "ibv_poll_cq", Object: q.name, Errno: syscall.EINVAL, Err: ErrClosed}
	}
	if e := q.dead.Load(); e != nil {
		return e
	}
	return q.device.Err()
}

// signal wakes one more waiting goroutine, if there is one.
func (q *CQ) signal() {
	if q.waiters.Load() > 1 {
		q.signalAlways()
	}
}

func (q *CQ) signalAlways() {
	select {
	case q.event <- struct{}{}:
	default:
	}
}

// wake makes all waiting goroutines poll again; each wakes the next.
func (q *CQ) wake() {
	q.signalAlways()
	if q.channel != nil {
		q.channel.ready.Poke()
	}
}

// broken records that the device stopped the queue.
func (q *CQ) broken(event ibv.EventType) {
	q.dead.CompareAndSwap(nil,
		&VerbError{Object: q.name, Errno: syscall.EIO,
			Reason: fmt.Sprintf("%v: the queue has overrun, or failed otherwise; it and its queue pairs have to be "+
				"closed",
				event)})
	q.wake()
}
