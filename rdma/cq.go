package rdma

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/wq"
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
	look      func() bool
	asleep    asleep        // of who holds the channel's turn and waits for this queue
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

// CreateCQ makes a completion queue for at least entries completions: the depths of all queues that will complete there, added up.
// channel, which may be nil, is needed to wait; vector, which interrupt tells of completions, is below Device.CompVectors. Len tells how many
// completions it became.
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
	return made(q, q.create(verb, entries, vector, func(n int) (*ibv.CQ, error) { return libibverbs.CreateCQ(d.c, n, 0, in, vector) }, parents...))
}

// CreateCQEx makes an extended completion queue, which tells of each completion what attr's WCFlags ask for: see [CQ.PollProgram]. Channel is
// that of [CompChannel.Ptr], ParentDomain of [PD.Ptr]. CQContext is C's, and of no use to Go.
//
// C: ibv_create_cq_ex
//
// Man: ibv_create_cq_ex(3)
func (d *Device) CreateCQEx(attr *ibv.CQInitAttrEx) (*CQ, error) {
	const verb = "ibv_create_cq_ex"
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
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
		domain, err := named[PD](d, verb, d.name, "ParentDomain", uintptr(attr.ParentDomain))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &domain.object)
	}
	own := *attr
	return made(q, q.create(verb, int(attr.CQE), int(attr.CompVector), func(n int) (*ibv.CQ, error) {
		own.CQE = uint32(n)
		ex, err := libibverbs.CreateCQEx(d.c, &own)
		if err != nil {
			return nil, err
		}
		q.ex = ex
		return libibverbs.CQExToCQ(ex), nil
	}, parents...))
}

func (q *CQ) create(verb string, entries, vector int, create func(n int) (*ibv.CQ, error), parents ...*object) error {
	d := q.device
	if reason := unfitCQ(entries); reason != "" {
		return invalid(verb, d.name, "%s", reason)
	}
	q.event, q.drains = make(chan struct{}, 1), make(chan struct{}, 1)
	q.busy.most.Store(int64(DefaultBusyPoll))
	q.busy.pays.Store(true)
	q.look = q.looked
	hidden := reserve
	creating := func() (*ibv.CQ, error) {
		c, err := create(entries + reserve)
		if d.hasNotSoMuch(err) {
			hidden = 0
			c, err = create(entries)
		}
		if err != nil {
			return nil, explainCQ(d, entries, vector, err)
		}
		if q.queue, err = wq.NewOwnCompletionQueue(c); err != nil {
			libibverbs.DestroyCQ(c)
			return nil, err
		}
		q.entries = int(c.CQE) - hidden
		return c, nil
	}
	q.life.Hooks = life.Hooks{Wake: q.endWaits, Revive: func() { wq.RefusePolls(q.queue, nil) }}
	return birth(d, &q.object, &q.c, q, "CQ", verb, creating, q.destroyC, func(c *ibv.CQ) string { return fmt.Sprintf("CQ %d of %s", c.Handle, d.name) }, parents...)
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

// endWaits lets nobody poll any more, and wakes who waits.
func (q *CQ) endWaits() {
	wq.RefusePolls(q.queue, &VerbError{Verb: "ibv_poll_cq", Object: q.name, Errno: einval, Err: ErrClosed})
	q.wake()
}

func (q *CQ) destroyC(c *ibv.CQ) error {
	if q.channel != nil {
		q.channel.ready.Forget()
	}
	q.acknowledgeAll(true)
	err := libibverbs.DestroyCQ(c)
	if err != nil {
		q.acknowledgeAll(false)
	}
	return err
}

// mark is a marker that a drain will post.
func (q *CQ) mark() drainMarker {
	id, done := wq.Mark(q.queue)
	return drainMarker{q, id, done}
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the CQ.
func (q *CQ) C() *ibv.CQ { return whileOpen(&q.object, q.c) }

// CEx is the extended object of C, or nil.
func (q *CQ) CEx() *ibv.CQEx { return whileOpen(&q.object, q.ex) }

// Ptr is the queue as attributes name it.
func (q *CQ) Ptr() ibv.Ptr[ibv.CQ] { return ptrWhileOpen(&q.object, q.c) }

// Device is where the queue is.
func (q *CQ) Device() *Device { return q.device }

// Poll takes up to len(dst) completions out of the queue; 0 when there are none. dst is the caller's; it should live on, since a slice on
// the goroutine's stack moves to the heap. Of a failed completion only wr_id, status, qp_num and vendor_err mean something; see
// [CompletionErr]. It does not block.
//
// C: ibv_poll_cq
//
// Man: ibv_poll_cq(3)
func (q *CQ) Poll(dst []ibv.WC) (n int, err error) {
	return wq.PollOwned(q.queue, dst)
}

// PollProgram polls an extended queue by a program that was made for it; see [NewPollProgram]. Slots are given back as with Poll, as far as
// the program reads what tells of them. The slice is the program's, and valid until it polls again. Completions that a drain, or the way of a
// queue pair to RESET, came across tell what ibv_poll_cq does: times, VLANs, flow tags and tags are 0.
//
// C: ibv_start_poll, ibv_next_poll, ibv_end_poll
//
// Man: ibv_create_cq_ex(3)
func (q *CQ) PollProgram(p *PollProgram) ([]Completion, error) {
	found, err := wq.PollBy(q.queue, q.ex, p)
	if err == wq.ErrOtherQueue {
		return nil, invalid("ibv_start_poll", q.name, "%v", err)
	}
	return found, err
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
	if attr == nil {
		return noAttributes(verb, q.name)
	}
	return wrap(verb, q.name, libibverbs.ModifyCQ(q.c, attr))
}

// Exclusive gives a handle for one goroutine, which polls on a stack of its own. The queue cannot be closed before the handle is.
//
// Man: ibv_poll_cq(3)
func (q *CQ) Exclusive() (*ExclusiveCompletionQueue, error) {
	if err := q.use("ibv_poll_cq"); err != nil {
		return nil, err
	}
	defer q.done()
	x, err := q.queue.Exclusive()
	if err != nil {
		return nil, err
	}
	handle := new(life.Life)
	handle.Begin("an exclusive handle of "+q.name, nil, &q.life)
	wq.OnClose(x, func() { handle.Leave(&q.life) })
	return x, nil
}

// Way is how the queue is polled ("blocking", "system" or "exclusive"), and of what provider: [QueueOptions].Way, [SendQueue.Provider].
func (q *CQ) Way() (way string, provider string) { return q.queue.Way().String(), q.queue.Provider() }

// Close destroys the queue. Its queue pairs have to be closed before. Who waits for it is woken, with [ErrClosed].
//
// C: ibv_destroy_cq
//
// Man: ibv_create_cq(3)
func (q *CQ) Close() error { return q.end() }
