// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/readiness"
	"github.com/goverbs/goverbs/runtime"
)

// CompChannel is a completion channel: it reports that one of its completion queues has completions to poll. Goroutines
// wait for it on Go's netpoller, so no thread blocks, unless KeepThread lets it. The first wait, or C, makes its
// descriptor, which C opened, non-blocking.
//
// Man: ibv_create_comp_channel(3)
type CompChannel struct {
	object
	c      *ibv.CompChannel
	device *Device
	ready  *readiness.FD

	// guarded by ready's turn
	get     func() bool
	cq      *ibv.Ptr[ibv.CQ] // C writes its results to these two
	context *uintptr
	failure error
}

// CreateCompChannel creates a completion channel. Any number of completion queues may share it.
//
// C: ibv_create_comp_channel
//
// Man: ibv_create_comp_channel(3)
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{device: d, cq: new(ibv.Ptr[ibv.CQ]), context: new(uintptr)}
	ch.get = func() bool {
		ch.failure = libibverbs.GetCQEvent(ch.c, ch.cq, ch.context)
		return !errors.Is(ch.failure, syscall.EAGAIN)
	}
	create := func() (*ibv.CompChannel, error) {
		c, err := libibverbs.CreateCompChannel(d.c)
		if err != nil {
			return nil, err
		}
		if ch.ready, err = readiness.New(c.FD, d.name+": completion channel"); err != nil {
			libibverbs.DestroyCompChannel(c)
			return nil, fmt.Errorf("its descriptor cannot be waited for: %w", err)
		}
		return c, nil
	}
	destroy := func(c *ibv.CompChannel) error {
		if err := libibverbs.DestroyCompChannel(c); err != nil {
			return err
		}
		ch.ready.Close()
		return nil
	}
	ch.life.Wake = func() { ch.ready.Poke() }
	return made(ch, createObject(d, &ch.object, &ch.c, ch, "ibv_create_comp_channel", create, destroy,
		func(c *ibv.CompChannel) string { return fmt.Sprintf("completion channel %d on %s", c.FD, d.name) }))
}

// C returns C's object, for calls of generated/libibverbs, with a descriptor that does not block. It belongs to the
// CompChannel.
func (ch *CompChannel) C() *ibv.CompChannel {
	if ch.life.TryUse() {
		_ = ch.ready.SetNonblock() // which a wait would report
		ch.done()
	}
	return whileOpen(&ch.object, ch.c)
}

// alone reports whether the channel has exactly one completion queue.
func (ch *CompChannel) alone() bool { return ch.life.Children() == 1 }

// Ptr returns the channel for use in attributes.
func (ch *CompChannel) Ptr() ibv.Ptr[ibv.CompChannel] { return ptrWhileOpen(&ch.object, ch.c) }

// KeepThread makes a goroutine that waits for the channel's events, in Wait or in a queue's Wait, keep its thread,
// which sleeps in the system call. The thread wakes at once, whereas Go's netpoller has to wake other threads first. At
// most 32 goroutines of the process keep their threads at a time; the others wait on the netpoller, as all do on
// systems other than Linux.
func (ch *CompChannel) KeepThread(keep bool) { ch.ready.KeepThread(keep) }

// taken acknowledges the event that get read, and returns its queue, or nil if the queue is closed. The caller holds
// ready's turn.
func (ch *CompChannel) taken() (*CQ, error) {
	if ch.failure != nil {
		return nil, wrap("ibv_get_cq_event", ch.name, ch.failure)
	}
	cq, _ := ch.device.objects.find(uintptr(*ch.cq)).(*CQ)
	if cq == nil { // not one of our objects; C wants the event acknowledged all the same
		return nil, libibverbs.AckCQEvents(ch.cq.Deref(), 1)
	}
	cq.acknowledge()
	return cq, nil
}

// Wait waits for an event of any of the channel's completion queues, and returns that queue. Arm a queue with
// CQ.ReqNotify, again after each event, and poll it after that, because earlier completions cause no event. Use Wait to
// serve many queues in one goroutine. CQ.Wait does all of this by itself; do not use both on one channel. Any number of
// goroutines may wait; each event goes to one of them. Wait fails if ctx ends, if the channel is closed, or if the
// device is gone.
//
// C: ibv_get_cq_event
//
// Man: ibv_get_cq_event(3)
func (ch *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	const verb = "ibv_get_cq_event"
	if err := ch.use(verb); err != nil {
		return nil, err
	}
	defer ch.done()
	select {
	case ch.ready.Turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-ch.ready.Turn }()
	for {
		var cq *CQ
		got, err := ch.ready.Wait(ctx, ch.get, func() bool { return ch.isClosed() || ch.device.Err() != nil })
		switch {
		case err != nil:
			err = wrap(verb, ch.name, err)
		case got:
			cq, err = ch.taken()
		}
		gone := ch.device.Err()
		switch {
		case cq != nil:
			return cq, nil
		case gone != nil:
			return nil, gone
		case err != nil:
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case ch.isClosed():
			return nil, &VerbError{Verb: verb, Object: ch.name, Errno: syscall.EINVAL, Err: ErrClosed}
		}
	}
}

// Events returns an iterator over the queues of the channel's events. It yields the first error and ends; see
// [CompChannel.Wait]. The loop may end at any time.
func (ch *CompChannel) Events(ctx context.Context) iter.Seq2[*CQ, error] {
	return each(func() (*CQ, error) { return ch.Wait(ctx) })
}

// Close closes the channel. Close its completion queues first.
//
// C: ibv_destroy_comp_channel
//
// Man: ibv_create_comp_channel(3)
func (ch *CompChannel) Close() error { return ch.end() }

// ackBatch is the number of events acknowledged at once, because C takes a lock for each acknowledgement.
const ackBatch = 64

// readLeft reads the event that the last wait left unread, so that the caller does not mistake it for the event it
// requests.
func (q *CQ) readLeft() error {
	if !q.left.Load() || !q.channel.alone() {
		return nil
	}
	select {
	case q.channel.ready.Turn <- struct{}{}:
		defer func() { <-q.channel.ready.Turn }()
	default: // a goroutine waits, which reads it
		return nil
	}
	if !q.left.Swap(false) || !q.channel.get() {
		return nil
	}
	return q.tookEvent()
}

// tookEvent acknowledges the event that get read. An event of another queue wakes a goroutine waiting for that queue.
func (q *CQ) tookEvent() error {
	cq, err := q.channel.taken()
	if cq != nil && cq != q {
		cq.signalAlways()
	}
	return err
}

// countsEvents reports whether an event request carries the number of events read so far, as on mlx5 and EFA. Such a
// device sends no further event until every earlier one was read, including events that C requested or that the device
// sent by itself.
func (q *CQ) countsEvents() bool {
	switch q.queue.Provider() {
	case "rxe", "siw":
		return false
	case "software":
		b, ok := runtime.BackendOf(uintptr(unsafe.Pointer(q.c))).(interface{ CountsEvents(*ibv.CQ) bool })
		return q.native != nil || ok && b.CountsEvents(q.c)
	}
	return true
}

// acknowledge counts an event, and acknowledges events to C in batches.
func (q *CQ) acknowledge() {
	if q.native != nil {
		q.native.Event()
	}
	q.room.Lock()
	defer q.room.Unlock()
	if q.unacked++; q.unacked >= ackBatch || q.flushing {
		libibverbs.AckCQEvents(q.c, q.unacked)
		q.unacked = 0
	}
}

// acknowledgeAll acknowledges all events to C. While the queue is being closed, it also covers events that another
// queue's reader has just read: C destroys no queue with unacknowledged events.
func (q *CQ) acknowledgeAll(ending bool) {
	q.room.Lock()
	defer q.room.Unlock()
	q.flushing = ending
	if q.unacked > 0 {
		libibverbs.AckCQEvents(q.c, q.unacked)
		q.unacked = 0
	}
}
