package rdma

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// ackBatch is how many events are acknowledged at once: C takes a lock for it.
const ackBatch = 64

// ReqNotify asks for one event, for the next completion or only for a solicited one or an error. Poll again afterwards: what was there
// before makes no event. Wait does all that.
//
// C: ibv_req_notify_cq
//
// Man: ibv_req_notify_cq(3)
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	if err := q.use("ibv_req_notify_cq"); err != nil {
		return err
	}
	defer q.done()
	return wrap("", q.name, q.queue.ReqNotify(solicitedOnly))
}

// Wait polls until there is at least one completion, and sleeps in between: a goroutine, not a thread. It polls a little longer before that,
// as long as that pays: see [CQ.SetBusyPoll]. The queue needs a channel. Any
// number of goroutines may wait. When ctx ends it gives up, and takes nothing; what was posted stays posted, and its memory the device's.
// When the queue is closed, overruns, or its device is gone, it fails.
//
// It does not allocate while the same context comes again, or contexts that end together with it: the channel holds the context of the last
// wait until it ends, another one waits, or a queue of the channel is closed. Who asks for events beside it does so by ReqNotify.
//
// C: ibv_get_cq_event, ibv_ack_cq_events, ibv_req_notify_cq, ibv_poll_cq
//
// Man: ibv_get_cq_event(3)
func (q *CQ) Wait(ctx context.Context, dst []ibv.WC) (n int, err error) {
	return q.wait(ctx, dst, false)
}

// WaitSolicited is Wait that sleeps on until a completion is solicited (IBV_SEND_SOLICITED of who sends), or failed.
//
// Man: ibv_req_notify_cq(3)
func (q *CQ) WaitSolicited(ctx context.Context, dst []ibv.WC) (n int, err error) {
	return q.wait(ctx, dst, true)
}

func (q *CQ) wait(ctx context.Context, dst []ibv.WC, solicited bool) (n int, err error) {
	return q.waitUntil(ctx, dst, solicited, never)
}

func never() bool { return false }

// waitUntil is Wait that gives up, with nothing, when over says so: it is asked again after every wake.
func (q *CQ) waitUntil(ctx context.Context, dst []ibv.WC, solicited bool, over func() bool) (n int, err error) {
	const verb = "ibv_get_cq_event"
	if n, err = q.Poll(dst); n > 0 || err != nil || len(dst) == 0 {
		return n, err
	}
	if q.channel == nil {
		return 0, invalid(verb, q.name, "the queue was created without a completion channel, so there is nothing to wait for: WaitBusy polls until something comes")
	}
	if !solicited {
		if n, err = q.linger(dst); n > 0 || err != nil {
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
		n, err = q.sleep(ctx, dst, solicited, over)
		if n == 0 && err == nil {
			n, err = q.queue.Poll(dst)
		}
		if n > 0 || err != nil {
			break
		}
	}
	q.signal() // another one who waits may find more
	return n, err
}

// sleep returns when there may be something to poll, or with what there was once the queue was armed. One of those who wait reads the events of
// the channel, for all its queues.
func (q *CQ) sleep(ctx context.Context, dst []ibv.WC, solicited bool, over func() bool) (n int, err error) {
	turn := q.channel.ready.Turn
	select {
	case turn <- struct{}{}:
	default: // another one reads
		if n, err = q.arm(dst, solicited); n > 0 || err != nil {
			return n, err
		}
		if err = q.failure(); err != nil { // whose token another one has taken
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
	return q.read(ctx, dst, solicited, over)
}

// arm asks for an event, and polls what came before that.
func (q *CQ) arm(dst []ibv.WC, solicited bool) (n int, err error) {
	if err = q.queue.ReqNotify(solicited); err != nil {
		return 0, wrap("", q.name, err)
	}
	return q.queue.Poll(dst)
}

// asleep is what who has the channel's turn waits for.
type asleep struct {
	dst       []ibv.WC
	solicited bool
	n         int
	err       error
	got       bool // an event, or why there is none
}

// read arms the queue and reads events of the channel until one is of this queue; those of others wake who waits there. The caller has the
// channel's turn.
func (q *CQ) read(ctx context.Context, dst []ibv.WC, solicited bool, over func() bool) (n int, err error) {
	s := &q.asleep
	defer func() { *s = asleep{} }()
	for {
		if err = q.failure(); err != nil {
			return 0, err
		}
		select {
		case <-q.event: // came before this one had its turn
			return 0, nil
		default:
		}
		*s = asleep{dst: dst, solicited: solicited}
		_, err = q.channel.ready.Wait(ctx, q.look, func() bool { return q.failure() != nil || len(q.event) > 0 || over() })
		switch {
		case s.n > 0 || s.err != nil:
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
			wq.Armed(q.queue).Store(true) // still
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case over():
			return 0, nil
		}
	}
}

// looked is tried by who sleeps, each time the channel's file may have become readable: it reads an event if there can be one, else it arms the
// queue. What happens from then on makes it be tried again, so that a channel in which nothing can be is not read.
func (q *CQ) looked() bool {
	s := &q.asleep
	if wq.Armed(q.queue).Swap(false) || !q.channel.alone() {
		if s.got = q.channel.get(); s.got {
			return true
		}
	}
	s.n, s.err = q.arm(s.dst, s.solicited)
	return s.n > 0 || s.err != nil
}

// goneOr is why the device is gone, where it is, or else the error.
func (q *CQ) goneOr(err error) error {
	if gone := q.device.Err(); gone != nil {
		return gone
	}
	return err
}

// failure says why there is nothing to wait for any more, or nil.
func (q *CQ) failure() error {
	if q.isClosed() {
		return &VerbError{Verb: "ibv_poll_cq", Object: q.name, Errno: einval, Err: ErrClosed}
	}
	if e := q.dead.Load(); e != nil {
		return e
	}
	return q.device.Err()
}

// signal wakes one more of those who wait, if there are any.
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

// wake makes everybody who waits look again. Each wakes the next.
func (q *CQ) wake() {
	q.signalAlways()
	if q.channel != nil {
		q.channel.ready.Poke()
	}
}

// broken notes that the device gave the queue up.
func (q *CQ) broken(event ibv.EventType) {
	q.dead.CompareAndSwap(nil, &VerbError{Object: q.name, Errno: eio, Reason: fmt.Sprintf("%v: the queue has overrun, or failed otherwise; it and its queue pairs have to be closed", event)})
	q.wake()
}

// acknowledge counts an event, and tells C of many at once.
func (q *CQ) acknowledge() {
	q.room.Lock()
	defer q.room.Unlock()
	if q.unacked++; q.unacked >= ackBatch || q.flushing {
		libibverbs.AckCQEvents(q.c, q.unacked)
		q.unacked = 0
	}
}

// acknowledgeAll tells C of all events. While the queue is ending that goes for those as well that another queue's reader has just read:
// C destroys no queue before.
func (q *CQ) acknowledgeAll(ending bool) {
	q.room.Lock()
	defer q.room.Unlock()
	q.flushing = ending
	if q.unacked > 0 {
		libibverbs.AckCQEvents(q.c, q.unacked)
		q.unacked = 0
	}
}
