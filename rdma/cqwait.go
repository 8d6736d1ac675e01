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

// ReqNotify arms the queue for one event: on the next completion, or on the next solicited or failed one. Poll again
// afterwards, because completions that are already in the queue cause no event. Wait does both.
//
// C: ibv_req_notify_cq
//
// Man: ibv_req_notify_cq(3)
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	if err := q.use("ibv_req_notify_cq"); err != nil {
		return err
	}
	defer q.done()
	if err := q.readLeftover(); err != nil {
		return err
	}
	return wrap("", q.name, q.queue.ReqNotify(solicitedOnly))
}

// Wait waits for at least one completion and stores up to len(dst) of them in dst. The goroutine sleeps without
// blocking a thread. Before it sleeps it polls for a while, if that has helped before: see [CQ.SetBusyPoll]. The queue
// needs a channel. Any number of goroutines may wait. If ctx ends, Wait returns without a completion; posted requests
// stay posted, and their memory still belongs to the device. Wait fails if the queue is closed or overruns, if its
// device is gone, or if dst is empty.
//
// Repeated waits do not allocate if they use the same context, or contexts that end together: the channel keeps the
// context of the last wait until the context ends, another goroutine waits, or a queue of the channel is closed. A
// program that reads events itself must call ReqNotify for each event.
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
	if err := q.checkNoConsumer("ibv_start_poll"); err != nil {
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
// It sleeps like Wait, or polls like WaitBusy if the queue has no channel. If waiting fails, All yields the error and
// ends; a failed completion does not end it. All polls one completion per iteration, so the loop body may break, poll,
// wait or close queue pairs. It does not allocate per completion. Poll and Wait are more efficient, because they return
// many completions at once.
func (q *CQ) All(ctx context.Context) iter.Seq2[ibv.WC, error] {
	one := into{wcs: make([]ibv.WC, 1)}
	return each(func() (ibv.WC, error) {
		err := q.checkNoConsumer("ibv_poll_cq")
		if err == nil {
			_, err = q.waitFor(ctx, one, never)
		}
		if err != nil {
			return ibv.WC{}, err
		}
		return one.wcs[0], nil
	})
}

// waitFor calls waitUntil if the queue has a channel, and waitBusyUntil otherwise.
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

// into is the destination of completions: a slice or a program.
type into struct {
	wcs     []ibv.WC
	program *PollProgram // if not nil, wcs is not used
}

// take polls once into to.
func (q *CQ) take(to into) (n int, err error) {
	if to.program == nil {
		return q.queue.Poll(to.wcs)
	}
	found, err := q.queue.pollBy(q.ex.c, to.program)
	return len(found), q.explainProgram(err)
}

// notWaited returns an error if a wait cannot begin.
func (q *CQ) notWaited(verb string, dst []ibv.WC) error {
	if err := q.checkNoConsumer(verb); err != nil {
		return err
	}
	return q.roomIn(verb, len(dst))
}

// roomIn rejects a wait for n = 0 completions, which would never end.
func (q *CQ) roomIn(verb string, n int) error {
	if n == 0 {
		if err := q.failure(); err != nil {
			return err
		}
		return invalid(verb, q.name, "the slice for completions is empty")
	}
	return nil
}

func never() bool { return false }

// waitUntil is Wait that also returns when over returns true. It calls over after each wakeup.
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
			"the queue has no completion channel, so Wait cannot sleep: use WaitBusy, which polls")
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
	q.signal() // there may be completions for the next waiting goroutine
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
	return explain(verb, q.name, fmt.Sprintf("%d requests of QP %#x are unsignaled and complete only "+
		"if they fail: set Signaled", n, qp), err)
}

// sleep arms the queue and sleeps until there may be completions to poll. If arming finds completions, it returns them.
// One of the waiting goroutines reads the channel's events on behalf of all its queues.
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

// arm requests an event and then polls completions that arrived before the request.
func (q *CQ) arm(to into, solicited bool) (n int, err error) {
	if err = q.queue.ReqNotify(solicited); err != nil {
		return 0, wrap("", q.name, err)
	}
	return q.take(to)
}

// sleeper is the state of the waiting goroutine that holds the channel's turn.
type sleeper struct {
	to        into
	n         int
	err       error
	solicited bool
	slept     bool // onReadable has been called before
	got       bool // an event was read, or none can come
}

// read arms the queue and reads events of the channel until one is for this queue. Events of other queues wake their
// waiting goroutines. The caller has the channel's turn.
func (q *CQ) read(ctx context.Context, to into, solicited bool, over func() bool) (n int, err error) {
	s := &q.sleeper
	defer func() { *s = sleeper{} }()
	for {
		if err = q.failure(); err != nil {
			return 0, err
		}
		select {
		case <-q.event: // the event arrived before this goroutine got the turn
			return 0, nil
		default:
		}
		*s = sleeper{to: to, solicited: solicited}
		_, err = q.channel.ready.Wait(ctx, q.readable,
			func() bool { return q.failure() != nil || len(q.event) > 0 || over() })
		switch {
		case s.n > 0 || s.err != nil:
			q.eventLeft.Store(q.channel.alone() && q.queue.armed.Load())
			return s.n, s.err
		case err != nil:
			return 0, q.goneOr(wrap("ibv_get_cq_event", q.channel.name, err))
		case s.got:
			cq, err := q.channel.ackEvent()
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

// onReadable is called when the channel's descriptor may have become readable. It reads an event if there can be one,
// and then arms the queue and polls. If the channel has no other queue, and no wait has ended with the event unread, it
// skips reading on devices that do not count events. After a sleep it polls first and leaves the event for the next
// wait to read, which shortens the latency.
func (q *CQ) onReadable() bool {
	s, alone := &q.sleeper, q.channel.alone()
	if s.slept && alone {
		if s.n, s.err = q.take(s.to); s.n > 0 || s.err != nil {
			return true
		}
	}
	s.slept = true
	if q.queue.armed.Swap(false) || q.countsEvents() || !alone {
		q.eventLeft.Store(false)
		for more := true; more && q.channel.get(); more = q.countsEvents() {
			if s.got = !alone || q.channel.failure != nil; s.got {
				return true
			}
			if err := q.ackAndForward(); err != nil { // arm polls its completion
				s.err = q.goneOr(err)
				return true
			}
		}
	}
	s.n, s.err = q.arm(s.to, s.solicited)
	return s.n > 0 || s.err != nil
}

// goneOr returns the error of the device if it is gone, and otherwise err.
func (q *CQ) goneOr(err error) error {
	if gone := q.device.Err(); gone != nil {
		return gone
	}
	return err
}

// failure returns an error if no more completions can arrive: the queue is closed or broken, or the device is gone.
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

// wake makes all waiting goroutines poll again. Each of them wakes the next.
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
			Reason: fmt.Sprintf("%v: the queue has overrun or failed otherwise: close it and its queue pairs", event)})
	q.wake()
}
