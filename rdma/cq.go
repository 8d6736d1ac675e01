// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/trace"
)

// CQ is a completion queue.
//
// Any number of goroutines may poll it at once; each completion goes to one of them. Polling releases the slots of
// queue pairs, so a queue pair fills up unless its completions are polled.
//
// Closing a queue pair moves its completions from the device's completion queue to Go memory; the next polls return
// them. They no longer occupy entries, so another queue pair can be created at once. Poll may therefore return more
// completions than Len. Only completions of tag matching by libmlx5 stay in the device's queue.
//
// A CQ uses 736 bytes of Go memory in addition to C's, plus 43 to 128 bytes for each of its queue pairs.
//
// Man: ibv_create_cq(3)
type CQ struct {
	object
	c       *ibv.CQ
	ex      *extended // nil if the queue is not extended
	device  *Device
	channel *CompChannel // or nil
	queue   *CompletionQueue
	native  *directQueue
	users   atomic.Pointer[CompletionQueue] // queue, or one that rejects polls while a Poller or Calls exists

	event     chan struct{} // holds a token if there may be completions to poll
	waiters   atomic.Int32
	calls     atomic.Bool               // the consumer is Calls; otherwise a Poller
	eventLeft atomic.Bool               // the last wait may not have read its event from the channel
	dead      atomic.Pointer[VerbError] // the queue has overrun, or failed otherwise
	busy      busyPoll
	readable  func() bool
	sleeper   sleeper // state of the goroutine that holds the channel's turn and waits for this queue
	// holds a token during a drain, because the queue has room for the markers of one drain
	drains chan struct{}

	room     sync.Mutex
	entries  int              // capacity, without the reserve
	taken    int              // entries reserved for the queues that complete here
	srqs     map[*SRQ]srqRoom // entries reserved for shared receive queues
	unacked  uint32           // events not yet acknowledged to C
	flushing bool             // C waits until every event is acknowledged
}

// extended holds the additional state of an extended queue.
type extended struct {
	c       *ibv.CQEx
	values  ibv.CreateCQWCFlags // values of each completion
	options QueueOptions
}

// reserve is the number of additional entries of a completion queue, for the markers of a drain.
const reserve = 2

// CreateCQ creates a completion queue with room for at least entries completions: the sum of the depths of all queues
// that will complete there. Len returns the actual capacity. channel may be nil, but Wait needs one. vector selects the
// interrupt for completions, from 0 to Device.CompVectors - 1. At most one QueueOptions may be given; only its Path,
// Way and Providers are used.
//
// C: ibv_create_cq
//
// Man: ibv_create_cq(3)
func (d *Device) CreateCQ(entries int, channel *CompChannel, vector int, options ...QueueOptions) (*CQ, error) {
	const verb = "ibv_create_cq"
	q := &CQ{device: d, channel: channel}
	var parents []*object
	var in *ibv.CompChannel
	if channel != nil {
		parents, in = append(parents, &channel.object), channel.c
	}
	return orError(q,
		q.create(verb, entries, vector, options,
			func(n int) (*ibv.CQ, error) { return libibverbs.CreateCQ(d.c, n, 0, in, vector) }, parents...))
}

// CreateCQEx creates an extended completion queue. The WCFlags of attr select the values of each completion: see
// [CQ.PollProgram]. Set Channel with [CompChannel.Ptr], ParentDomain with [PD.Ptr]. CQContext is reserved for C. At
// most one QueueOptions may be given; only its Path, Way and Providers are used.
//
// C: ibv_create_cq_ex
//
// Man: ibv_create_cq_ex(3)
func (d *Device) CreateCQEx(attr *ibv.CQInitAttrEx, options ...QueueOptions) (*CQ, error) {
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
	if attr.CompMask&ibv.CQ_INIT_ATTR_MASK_PD != 0 {
		domain, err := named[PD](d, verb, d.name, "ParentDomain", uintptr(attr.ParentDomain))
		if err != nil {
			return nil, err
		}
		parents = append(parents, &domain.object)
	}
	own := *attr
	return orError(q, q.create(verb, int(attr.CQE), int(attr.CompVector), options, func(n int) (*ibv.CQ, error) {
		own.CQE = uint32(n)
		ex, err := libibverbs.CreateCQEx(d.c, &own)
		if err != nil {
			return nil, err
		}
		q.ex = &extended{c: ex, values: attr.WCFlags}
		return libibverbs.CQExToCQ(ex), nil
	}, parents...))
}

func (q *CQ) create(verb string, entries, vector int, options []QueueOptions, create func(n int) (*ibv.CQ, error),
	parents ...*object) error {
	d := q.device
	var o QueueOptions
	switch len(options) {
	case 0:
	case 1:
		o = options[0]
	default:
		return invalid(verb, d.name, "%d QueueOptions; at most one is allowed", len(options))
	}
	d.pathFor(&o)
	if reason := unfitCQ(entries); reason != "" {
		return invalid(verb, d.name, "%s", reason)
	}
	q.event, q.drains = make(chan struct{}, 1), make(chan struct{}, 1)
	q.busy.most.Store(int64(DefaultBusyPoll))
	q.busy.pays.Store(true)
	q.readable = q.onReadable
	hidden := reserve
	creating := func() (*ibv.CQ, error) {
		c, err := create(entries + reserve)
		if d.refused().NotSoMuch(err) {
			hidden = 0
			c, err = create(entries)
		}
		if err != nil {
			return nil, d.refused().CQ(entries, vector, err)
		}
		o.Path, q.native, err = directQueueOf(o.Path, func(m datapath.Maker) (datapath.Queue, error) { return m.CQ(c) })
		if err == nil {
			q.queue, err = newOwnCompletionQueue(c, o)
		}
		if err != nil {
			q.native.destroy(func() error { return libibverbs.DestroyCQ(c) })
			return nil, err
		}
		if q.ex != nil {
			q.ex.options = o
		}
		q.users.Store(q.queue)
		q.entries = int(c.CQE) - hidden
		return c, nil
	}
	q.life.Hooks = life.Hooks{Wake: q.endWaits, Revive: func() { q.queue.refuse(nil) }}
	return createObject(d, &q.object, &q.c, q, verb, creating, q.destroyC,
		func(c *ibv.CQ) string { return fmt.Sprintf("CQ %d on %s", c.Handle, d.name) }, parents...)
}

// unfitCQ returns the reason why this number of completions is invalid, or "".
func unfitCQ(entries int) string {
	switch {
	case entries < 1:
		return fmt.Sprintf("the number of completions is %d; it must be at least 1", entries)
	case entries > math.MaxInt32-reserve:
		return fmt.Sprintf("%d completions do not fit a C int", entries)
	}
	return ""
}

// endWaits stops all polls from now on, and wakes waiting goroutines.
func (q *CQ) endWaits() {
	q.queue.refuse(&VerbError{Verb: "ibv_poll_cq", Object: q.name, Errno: syscall.EINVAL, Err: ErrClosed})
	q.wake()
}

func (q *CQ) destroyC(c *ibv.CQ) error {
	if q.channel != nil {
		q.channel.ready.Forget()
	}
	q.acknowledgeAll(true)
	misuse := q.native.misuse("Close", q.name)
	if err := q.native.destroy(func() error { return libibverbs.DestroyCQ(c) }); err != nil {
		q.acknowledgeAll(false)
		return err
	}
	return late(misuse)
}

// drainMarker is a marker: the last work request of a queue that is being drained.
type drainMarker struct {
	cq   *CQ
	id   uint64
	done <-chan struct{} // nil: no marker
}

// forget discards a marker that was not posted or will never complete.
func (m *drainMarker) forget() {
	if m.done != nil {
		m.cq.queue.whileNotPolling(func() { delete(m.cq.queue.markers, m.id) })
		*m = drainMarker{}
	}
}

// mark returns a marker that a drain will post.
func (q *CQ) mark() drainMarker {
	id, done := q.queue.mark()
	return drainMarker{q, id, done}
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the CQ.
func (q *CQ) C() *ibv.CQ { return whileOpen(&q.object, q.c) }

// CEx returns C's extended object, or nil.
func (q *CQ) CEx() *ibv.CQEx {
	if q.ex == nil {
		return nil
	}
	return whileOpen(&q.object, q.ex.c)
}

// Ptr returns the queue for use in attributes.
func (q *CQ) Ptr() ibv.Ptr[ibv.CQ] { return ptrWhileOpen(&q.object, q.c) }

// Device returns the queue's device.
func (q *CQ) Device() *Device { return q.device }

// Poll removes up to len(dst) completions from the queue, stores them in dst and returns their number, which may be 0.
// It does not block. Reuse dst, because it escapes to the heap. In a failed completion only wr_id, status, qp_num and
// vendor_err are valid; see [CompletionErr]. While the queue has a [Poller] or [Calls], Poll and the wait methods fail
// with [ErrInUse], because they would take completions from other goroutines.
//
// C: ibv_poll_cq
//
// Man: ibv_poll_cq(3)
func (q *CQ) Poll(dst []ibv.WC) (n int, err error) {
	return q.users.Load().Poll(dst)
}

// checkNoConsumer returns an error if a Poller or Calls polls the queue.
func (q *CQ) checkNoConsumer(verb string) error {
	if q.queue == nil {
		return q.use(verb) // fails for a zero object
	}
	if q.users.Load() == q.queue {
		return nil
	}
	return q.consumed(verb, q.calls.Load())
}

// consumed returns the error of a poll or wait while the queue has a consumer.
func (q *CQ) consumed(verb string, calls bool) error {
	return &VerbError{Verb: verb, Object: q.name, Errno: syscall.EBUSY, Reason: "the queue has " + consumer(calls) +
		", which receives all completions: poll or wait there", Err: ErrInUse}
}

// consumer returns the consumer's name for error texts.
func consumer(calls bool) string {
	if calls {
		return "Calls"
	}
	return "a Poller"
}

// PollProgram polls an extended queue with a program; see [CQ.NewPollProgram]. It does not wait. It releases slots like
// Poll, if the program reads the values needed for that. The returned slice belongs to the program and is valid until
// its next poll. Completions that a drain, or a move of a queue pair to RESET, has polled before have only the values
// of ibv_poll_cq: their timestamps, VLANs, flow tags and tags are 0.
//
// C: ibv_start_poll, ibv_next_poll, ibv_end_poll
//
// Man: ibv_create_cq_ex(3)
func (q *CQ) PollProgram(p *PollProgram) ([]Completion, error) {
	if err := q.checkNoConsumer("ibv_start_poll"); err != nil {
		return nil, err
	}
	if q.ex == nil {
		return nil, q.notExtended()
	}
	if p == nil {
		return nil, isNil("ibv_start_poll", q.name, "program")
	}
	found, err := q.queue.pollBy(q.ex.c, p)
	return found, q.explainProgram(err)
}

func (q *CQ) notExtended() error {
	return invalid("ibv_start_poll", q.name, "the queue is not extended: create it with CreateCQEx")
}

// explainProgram explains the error of a program that belongs to another queue.
func (q *CQ) explainProgram(err error) error {
	if err == errOtherQueue {
		return invalid("ibv_start_poll", q.name, "%v", err)
	}
	return err
}

// NewPollProgram creates a program that polls up to n completions at once and reads all values that the queue provides
// (WCFlags). Run it with PollProgram or WaitProgram. Close it before the queue.
//
// Man: ibv_create_cq_ex(3)
func (q *CQ) NewPollProgram(n int) (*PollProgram, error) {
	const verb = "ibv_start_poll"
	if err := q.use(verb); err != nil {
		return nil, err
	}
	defer q.done()
	if q.ex == nil {
		return nil, q.notExtended()
	}
	p, err := NewPollProgram(q.ex.c, n, q.ex.values, q.ex.options)
	if err == nil && q.native != nil {
		p.path, err = trace.Of(lockedPath{q.native.Queue, &q.queue.mu})
	}
	return p, wrap(verb, q.name, err)
}

// Modify sets event moderation: the queue raises an event after a number of completions, or a number of microseconds
// after the first of them, whichever comes first. cq_mod_caps of [Device.QueryEx] has the maximum values. If either
// number is 0, moderation is off.
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

// Way returns how the queue is polled ("blocking" or "system") and its provider: see [QueueOptions].Way and
// [SendQueue.Provider].
func (q *CQ) Way() (way string, provider string) {
	if q.queue == nil { // the zero value
		return "", ""
	}
	return q.queue.Way().String(), q.queue.Provider()
}

// Close destroys the queue. Close its queue pairs first. Goroutines that wait for completions return with [ErrClosed].
//
// C: ibv_destroy_cq
//
// Man: ibv_create_cq(3)
func (q *CQ) Close() error { return q.end() }
