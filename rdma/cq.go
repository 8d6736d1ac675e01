package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// CQ is a completion queue.
//
// Any number of goroutines may poll it at once; each completion goes to one of them. Its queue pairs' slots are given back as their
// completions are polled, so a queue pair whose completions nobody polls fills up.
//
// Man: ibv_create_cq(3)
type CQ struct {
	object
	c       *ibv.CQ
	ex      *ibv.CQEx // nil: not an extended one
	device  *Device
	channel *CompChannel // or nil
	queue   *CompletionQueue

	event     chan struct{} // holds a token when there may be something to poll
	waiters   atomic.Int32
	hasPoller atomic.Bool
	dead      atomic.Pointer[VerbError] // the queue has overrun, or failed otherwise
	busy      busyPoll
	drains    chan struct{} // holds a token while a queue pair is drained: there is room for the markers of one

	room     sync.Mutex
	entries  int              // completions it holds, without the reserve
	taken    int              // of them, by the depths of the queues that complete here
	srqs     map[*SRQ]srqRoom // of shared receive queues
	unacked  uint32           // events that C has not been told of
	flushing bool             // C waits to be told of every event
}

// reserve is how many completions a queue holds beside those of its users: for the markers of a drain.
const reserve = 2

// ackBatch is how many events are acknowledged at once: C takes a lock for it.
const ackBatch = 64

// CreateCQ makes a completion queue for at least entries completions: the depths of all queues that will complete there, added up.
// channel, which may be nil, is needed to wait; vector is below Device.CompVectors.
//
// C: ibv_create_cq
//
// Man: ibv_create_cq(3)
func (d *Device) CreateCQ(entries int, channel *CompChannel, vector int) (*CQ, error) {
	const verb = "ibv_create_cq"
	q := &CQ{device: d, channel: channel}
	var parents []*object
	var in *ibv.CompChannel
	if channel != nil {
		parents, in = append(parents, &channel.object), channel.c
	}
	return made(q, q.create(verb, entries, func(n int) (*ibv.CQ, error) { return libibverbs.CreateCQ(d.c, n, 0, in, vector) }, parents...))
}

// CreateCQEx makes an extended completion queue, which tells of each completion what attr's WCFlags ask for: see [CQ.PollProgram]. Channel is
// that of [CompChannel.Ptr], ParentDomain of [PD.Ptr]. CQContext is C's, and of no use to Go.
//
// C: ibv_create_cq_ex
//
// Man: ibv_create_cq_ex(3)
func (d *Device) CreateCQEx(attr *ibv.CQInitAttrEx) (*CQ, error) {
	const verb = "ibv_create_cq_ex"
	channel, err := lookup[CompChannel](d, verb, d.name, "Channel", uintptr(attr.Channel))
	if err != nil {
		return nil, err
	}
	q := &CQ{device: d, channel: channel}
	var parents []*object
	if channel != nil {
		parents = append(parents, &channel.object)
	}
	if ibv.CQInitAttrMask(attr.CompMask)&ibv.CQ_INIT_ATTR_MASK_PD != 0 {
		domain, err := lookup[PD](d, verb, d.name, "ParentDomain", uintptr(attr.ParentDomain))
		if err != nil {
			return nil, err
		}
		if domain != nil {
			parents = append(parents, &domain.object)
		}
	}
	own := *attr
	return made(q, q.create(verb, int(attr.CQE), func(n int) (*ibv.CQ, error) {
		own.CQE = uint32(n)
		ex, err := libibverbs.CreateCQEx(d.c, &own)
		if err != nil {
			return nil, err
		}
		q.ex = ex
		return libibverbs.CQExToCQ(ex), nil
	}, parents...))
}

func (q *CQ) create(verb string, entries int, create func(n int) (*ibv.CQ, error), parents ...*object) error {
	d := q.device
	if reason := unfitCQ(entries); reason != "" {
		return invalid(verb, d.name, "%s", reason)
	}
	q.event, q.drains = make(chan struct{}, 1), make(chan struct{}, 1)
	q.busy.most.Store(int64(DefaultBusyPoll))
	q.busy.pays.Store(true)
	hidden := reserve
	creating := func() (*ibv.CQ, error) {
		c, err := create(entries + reserve)
		if errors.Is(err, einval) || errors.Is(err, enomem) { // perhaps the device has no more
			hidden = 0
			c, err = create(entries)
		}
		if err != nil {
			return nil, explainCQ(d, entries, err)
		}
		if q.queue, err = NewCompletionQueue(c, QueueOptions{}); err != nil {
			libibverbs.DestroyCQ(c)
			return nil, err
		}
		q.queue.owned = true
		q.queue.tracked.Store(&map[uint32]tracking{})
		return c, nil
	}
	c, err := birth(d, &q.object, q, "CQ", verb, creating, q.destroyC, func(c *ibv.CQ) string { return fmt.Sprintf("CQ %d of %s", c.Handle, d.name) }, parents...)
	if err != nil {
		return err
	}
	q.c, q.entries, q.ending, q.lives = c, int(c.CQE)-hidden, q.endWaits, func() { q.queue.refuse(nil) }
	return nil
}

// unfitCQ says why no queue has so many completions, or nothing.
func unfitCQ(entries int) string {
	switch {
	case entries < 1:
		return fmt.Sprintf("%d completions are too few", entries)
	case entries > math.MaxInt32-reserve:
		return fmt.Sprintf("%d completions are more than C can ask for", entries)
	}
	return ""
}

// explainCQ says what is wrong with a number of completions, if that is it.
func explainCQ(d *Device, entries int, err error) error {
	attr := new(ibv.DeviceAttr)
	if libibverbs.QueryDevice(d.c, attr) == nil && entries > int(attr.MaxCQE) {
		return explain("", "", fmt.Sprintf("%d completions are more than the device's %d (max_cqe)", entries, attr.MaxCQE), err)
	}
	return err
}

// endWaits lets nobody poll any more, and wakes who waits.
func (q *CQ) endWaits() {
	q.queue.refuse(&VerbError{Verb: "ibv_poll_cq", Object: q.name, Errno: einval, Err: ErrClosed})
	q.wake()
}

func (q *CQ) destroyC(c *ibv.CQ) error {
	q.acknowledgeAll(true)
	err := libibverbs.DestroyCQ(c)
	if err != nil {
		q.acknowledgeAll(false)
	}
	return err
}

// refuse makes polls fail from now on, or succeed again with nil; none is under way when it returns.
func (q *CompletionQueue) refuse(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refusal = err
}

// mark is a marker that a drain will post.
func (q *CQ) mark() drainMarker {
	id, done := q.queue.mark()
	return drainMarker{q, id, done}
}

// refused is why polls fail, or nil.
func (q *CompletionQueue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the CQ.
func (q *CQ) C() *ibv.CQ { return whileOpen(&q.object, q.c) }

// CEx is the extended object of C, or nil.
func (q *CQ) CEx() *ibv.CQEx { return whileOpen(&q.object, q.ex) }

// Ptr is the queue as attributes name it.
func (q *CQ) Ptr() ibv.Ptr[ibv.CQ] { return ptrWhileOpen(&q.object, q.c) }

// Device is where the queue is.
func (q *CQ) Device() *Device { return q.device }

// Len is how many completions the queue holds.
func (q *CQ) Len() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries
}

// Free is how many more completions queues may be created for.
func (q *CQ) Free() int {
	q.room.Lock()
	defer q.room.Unlock()
	return q.entries - q.taken
}

// Poll takes up to len(dst) completions out of the queue; 0 when there are none. dst is the caller's; it should live on, since a slice on
// the goroutine's stack moves to the heap. Of a failed completion only wr_id, status, qp_num and vendor_err mean something; see
// [CompletionErr]. It does not block.
//
// C: ibv_poll_cq
//
// Man: ibv_poll_cq(3)
func (q *CQ) Poll(dst []ibv.WC) (n int, err error) {
	if len(dst) == 0 {
		return 0, q.queue.refused()
	}
	return q.queue.Poll(dst)
}

// PollProgram polls an extended queue by a program that was made for it; see [NewPollProgram]. Slots are given back as with Poll, as far as
// the program reads what tells of them.
//
// C: ibv_start_poll, ibv_next_poll, ibv_end_poll
//
// Man: ibv_create_cq_ex(3)
func (q *CQ) PollProgram(p *PollProgram) ([]Completion, error) {
	q.queue.mu.Lock()
	defer q.queue.mu.Unlock()
	if q.queue.refusal != nil {
		return nil, q.queue.refusal
	}
	return q.queue.pollProgram(p)
}

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

// Resize changes how many completions the queue holds; not below what its queue pairs may need.
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
		return invalid(verb, q.name, "%d completions are too few: the queues that complete here may need %d", entries, q.taken)
	}
	if err := libibverbs.ResizeCQ(q.c, entries+reserve); err != nil {
		return wrap(verb, q.name, explainCQ(q.device, entries, err))
	}
	q.entries = int(q.c.CQE) - reserve
	return nil
}

// Modify changes the queue's moderation of events: one for so many completions, or after so many microseconds.
//
// C: ibv_modify_cq
//
// Man: ibv_modify_cq(3)
func (q *CQ) Modify(attr *ibv.ModifyCQAttr) error {
	const verb = "ibv_modify_cq"
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	return wrap(verb, q.name, libibverbs.ModifyCQ(q.c, attr))
}

// admit takes room for a queue pair's completions: of n requests of its own, and of a shared receive queue's, which is nil or counts once.
func (q *CQ) admit(n int, srq *SRQ, overcommit bool) error {
	q.room.Lock()
	defer q.room.Unlock()
	more := n
	if srq != nil && q.srqs[srq].users == 0 {
		more += srq.depth()
	}
	if q.taken+more > q.entries && !overcommit {
		return &VerbError{Object: q.name, Errno: enomem, Reason: fmt.Sprintf("the queue pair may have %d completions outstanding, and of the queue's %d there is room for %d: create the queue with at least %d, or say QueueOptions.Overcommit", more, q.entries, q.entries-q.taken, q.taken+more)}
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

// resizeSRQ takes room for another depth of a shared receive queue, where it has some already.
func (q *CQ) resizeSRQ(srq *SRQ, depth int, force bool) error {
	q.room.Lock()
	defer q.room.Unlock()
	s, ok := q.srqs[srq]
	if !ok {
		return nil
	}
	taken := q.taken + depth - s.depth
	if taken > q.entries && taken > q.taken && q.taken <= q.entries && !force {
		return &VerbError{Object: q.name, Errno: enomem, Reason: fmt.Sprintf("%s would need %d completions more, and there is room for %d of %d", srq.name, depth-s.depth, q.entries-q.taken, q.entries)}
	}
	q.taken = taken
	q.srqs[srq] = srqRoom{s.users, depth}
	return nil
}

// dismiss gives back what admit took.
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

// Exclusive gives a handle for one goroutine, which polls on a stack of its own. The queue cannot be closed before the handle is.
func (q *CQ) Exclusive() (*ExclusiveCompletionQueue, error) {
	if err := q.use("ibv_poll_cq"); err != nil {
		return nil, err
	}
	defer q.done()
	x, err := q.queue.Exclusive()
	if err != nil {
		return nil, err
	}
	handle := &object{}
	handle.born("handle", "an exclusive handle of "+q.name, nil, &q.object)
	x.leave = func() { q.leaves(handle) }
	return x, nil
}

// Way is how the queue is polled.
func (q *CQ) Way() (way string, provider string) { return q.queue.Way().String(), q.queue.Provider() }

// Close destroys the queue. Its queue pairs have to be closed before. Who waits for it is woken, with [ErrClosed].
//
// C: ibv_destroy_cq
//
// Man: ibv_create_cq(3)
func (q *CQ) Close() error { return q.end() }
