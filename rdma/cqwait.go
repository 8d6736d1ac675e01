package rdma

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
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
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, q.channel.ready.Poke)()
	}
	stop := func() bool { return ctx.Err() != nil || q.failure() != nil }
	for {
		if err = q.queue.ReqNotify(solicited); err != nil {
			return 0, wrap("", q.name, err)
		}
		if n, err = q.queue.Poll(dst); n > 0 || err != nil {
			q.signal() // another one who waits may find more
			return n, err
		}
		if err = q.sleep(ctx, stop); err != nil {
			q.signal()
			return 0, err
		}
		if n, err = q.queue.Poll(dst); n > 0 || err != nil {
			q.signal()
			return n, err
		}
	}
}

// sleep returns when there may be something to poll. One of those who wait reads the events of the channel, for all its queues.
func (q *CQ) sleep(ctx context.Context, stop func() bool) error {
	if err := q.failure(); err != nil { // whose token another one has taken
		return err
	}
	for {
		select {
		case <-q.event:
			return q.failure()
		default:
		}
		select {
		case <-q.event:
			return q.failure()
		case <-ctx.Done():
			return ctx.Err()
		case q.channel.ready.Turn <- struct{}{}:
			own, err := q.read(stop)
			<-q.channel.ready.Turn
			switch {
			case err != nil:
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case q.failure() != nil:
				return q.failure()
			case own:
				return nil
			}
		}
	}
}

// read reads one event of the channel, and says whether it is of this queue. That of another one wakes who waits there.
func (q *CQ) read(stop func() bool) (own bool, err error) {
	select {
	case <-q.event: // came before this one had its turn
		return true, nil
	default:
	}
	cq, err := q.channel.next(func() bool { return stop() || len(q.event) > 0 })
	switch {
	case err != nil:
		if gone := q.device.Err(); gone != nil {
			err = gone
		}
		return false, err
	case cq == nil:
		return false, nil
	case cq != q:
		cq.signalAlways()
		return false, nil
	}
	return true, nil
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
