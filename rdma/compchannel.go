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
// wait on Go's netpoller, so no thread blocks unless KeepThread is set. The first wait, or a call of C, makes the
// channel's descriptor non-blocking.
//
// Man: ibv_create_comp_channel(3)
type CompChannel struct {
	object
	c      *ibv.CompChannel
	device *Device
	ready  *readiness.FD

	// guarded by ready's turn
	get     func() bool
	cq      *ibv.Ptr[ibv.CQ] // C stores results of ibv_get_cq_event here
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
			return nil, fmt.Errorf("cannot wait for its descriptor: %w", err)
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

// C returns C's object, with a non-blocking descriptor, for calls to generated/libibverbs. It belongs to the
// CompChannel.
func (ch *CompChannel) C() *ibv.CompChannel {
	if ch.life.TryUse() {
		_ = ch.ready.SetNonblock() // a wait would report the error
		ch.done()
	}
	return whileOpen(&ch.object, ch.c)
}

// alone reports whether the channel has exactly one completion queue.
func (ch *CompChannel) alone() bool { return ch.life.Children() == 1 }

// Ptr returns the channel for use in attributes.
func (ch *CompChannel) Ptr() ibv.Ptr[ibv.CompChannel] { return ptrWhileOpen(&ch.object, ch.c) }

// KeepThread makes waiting goroutines, in Wait or in a queue's Wait, block their threads in the system call instead of
// waiting on Go's netpoller. This shortens the wakeup, because the netpoller would have to wake other threads first. At
// most 32 goroutines of the process keep their threads at a time; further ones wait on the netpoller. KeepThread has no
// effect on systems other than Linux.
func (ch *CompChannel) KeepThread(keep bool) { ch.ready.KeepThread(keep) }

// ackEvent acknowledges the event that get has read. It returns the event's queue, or nil if the queue is closed. The
// caller holds ready's turn.
func (ch *CompChannel) ackEvent() (*CQ, error) {
	if ch.failure != nil {
		return nil, wrap("ibv_get_cq_event", ch.name, ch.failure)
	}
	cq, _ := ch.device.objects.find(uintptr(*ch.cq)).(*CQ)
	if cq == nil { // not an object of this package, but C requires the acknowledgement
		return nil, libibverbs.AckCQEvents(ch.cq.Deref(), 1)
	}
	cq.acknowledge()
	return cq, nil
}

// Wait waits for an event of any of the channel's completion queues, and returns that queue. Use Wait to serve many
// queues in one goroutine: arm each queue with CQ.ReqNotify, at first and after each event, and then poll it, because
// completions that are already in the queue cause no event. CQ.Wait does all of this; do not use both on one channel.
// Any number of goroutines may wait; each event goes to one of them. Wait fails if ctx ends, if the channel is closed,
// or if the device is gone.
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
			cq, err = ch.ackEvent()
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

// Events returns an iterator that waits for events and yields their queues; see [CompChannel.Wait]. It yields the first
// error and ends. The loop may end at any time.
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

// readLeftover reads the event that the last wait left unread, so that the caller does not mistake it for the next
// event.
func (q *CQ) readLeftover() error {
	if !q.eventLeft.Load() || !q.channel.alone() {
		return nil
	}
	select {
	case q.channel.ready.Turn <- struct{}{}:
		defer func() { <-q.channel.ready.Turn }()
	default: // a waiting goroutine reads the event
		return nil
	}
	if !q.eventLeft.Swap(false) || !q.channel.get() {
		return nil
	}
	return q.ackAndForward()
}

// ackAndForward acknowledges the event that get has read. If the event is of another queue, it wakes a goroutine that
// waits for that queue.
func (q *CQ) ackAndForward() error {
	cq, err := q.channel.ackEvent()
	if cq != nil && cq != q {
		cq.signalAlways()
	}
	return err
}

// countsEvents reports whether arming passes the number of events read so far to the device, as on mlx5 and EFA. Such a
// device raises no further event until every earlier one has been read, including events that C requested or that the
// device raised without a request.
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

// acknowledge counts an event and acknowledges events to C in batches.
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

// acknowledgeAll acknowledges all events to C, because C waits for that before it destroys a queue. With ending, later
// events, which a reader of another queue may have just read, are acknowledged at once.
func (q *CQ) acknowledgeAll(ending bool) {
	q.room.Lock()
	defer q.room.Unlock()
	q.flushing = ending
	if q.unacked > 0 {
		libibverbs.AckCQEvents(q.c, q.unacked)
		q.unacked = 0
	}
}
