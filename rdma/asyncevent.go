// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/readiness"
)

// AsyncEvent is an event of a device or of one of its objects, other than a completion. The field for the object's type
// is set, unless the object was closed before the event was read or was not created by this package. The object may be
// closed by now.
//
// ibv.AsyncEventMeaning explains the event types.
//
// Man: ibv_get_async_event(3)
type AsyncEvent struct {
	Type ibv.EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	WQ   *WQ
	Port uint8 // port number, from 1; 0 if the event is not about a port
	Lost int   // number of older events dropped because no goroutine read them
}

// String returns the type of the event and its object.
func (e AsyncEvent) String() string {
	s := e.Type.String()
	switch {
	case e.QP != nil:
		s += " of " + e.QP.name
	case e.CQ != nil:
		s += " of " + e.CQ.name
	case e.SRQ != nil:
		s += " of " + e.SRQ.name
	case e.WQ != nil:
		s += " of " + e.WQ.name
	case e.Port != 0:
		s += fmt.Sprintf(" of port %d", e.Port)
	}
	return s
}

// LogValue is String, for package log/slog.
func (e AsyncEvent) LogValue() slog.Value { return slog.StringValue(e.String()) }

// asyncBacklog is the maximum number of events kept for Device.Event.
const asyncBacklog = 1024

// asyncEvents reads a device's events as they arrive, acknowledges them, notifies their objects, and keeps them for
// Device.Event.
type asyncEvents struct {
	fd    *readiness.FD
	ended chan struct{}

	mu      sync.Mutex
	stopped bool
	err     error // set when there can be no more events
	queue   []AsyncEvent
	lost    int
	flushes []chan struct{} // of waiting flush calls; closed when no event is left to read
	more    chan struct{}   // holds a token while the queue has an event or err is set
}

func (a *asyncEvents) start(d *Device) (err error) {
	a.more, a.ended = make(chan struct{}, 1), make(chan struct{})
	if a.fd, err = readiness.New(d.c.AsyncFD, d.Name()+": events"); err != nil {
		return err
	}
	go a.read(d)
	return nil
}

// stop stops the read goroutine and waits until it has returned.
func (a *asyncEvents) stop() {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	a.fd.Poke()
	<-a.ended
	a.fd.Close()
}

func (a *asyncEvents) isStopped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopped
}

// read reads events until the device is closed or gone. It runs in its own goroutine.
func (a *asyncEvents) read(d *Device) {
	defer close(a.ended)
	event := new(ibv.AsyncEvent)
	var failure error
	var flushes []chan struct{}
	get := func() bool {
		flushes = append(flushes, a.takeFlushes()...)
		failure = libibverbs.GetAsyncEvent(d.c, event)
		if !errors.Is(failure, syscall.EAGAIN) {
			return true
		}
		for _, done := range flushes {
			close(done)
		}
		flushes = flushes[:0]
		return false
	}
	for {
		got, err := a.fd.Wait(context.Background(), get, a.isStopped)
		if err == nil && got {
			err = failure
		}
		if err != nil {
			err = explain("ibv_get_async_event", d.Name(), "no more events: the device was unplugged", err)
			d.fail(err)
			a.end(err)
			return
		}
		if !got {
			a.end(&VerbError{Verb: "ibv_get_async_event", Object: d.Name(), Errno: syscall.EINVAL, Err: ErrClosed})
			return
		}
		e := d.asyncEvent(event)
		libibverbs.AckAsyncEvent(event)
		d.notify(e)
		a.add(e)
		if gone := d.Err(); gone != nil {
			a.end(gone) // stop, although some kernels report more events
		}
	}
}

// takeFlushes removes and returns the pending flush requests.
func (a *asyncEvents) takeFlushes() []chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	flushes := a.flushes
	a.flushes = nil
	return flushes
}

// flush waits until every event that C has queued so far has been passed to notify.
func (a *asyncEvents) flush() {
	select {
	case <-a.ended:
		return
	default:
	}
	read := make(chan struct{})
	a.mu.Lock()
	a.flushes = append(a.flushes, read)
	a.mu.Unlock()
	a.fd.Poke()
	select {
	case <-read:
	case <-a.ended:
	}
}

// asyncEvent converts C's event. Call it before acknowledging the event, because C may destroy the object afterwards.
func (d *Device) asyncEvent(c *ibv.AsyncEvent) AsyncEvent {
	e := AsyncEvent{Type: c.EventType}
	switch ibv.AsyncEventMeaning(c.EventType).Element {
	case ibv.AsyncElementQP:
		e.QP, _ = d.objects.find(uintptr(*c.Element.QP())).(*QP)
	case ibv.AsyncElementCQ:
		e.CQ, _ = d.objects.find(uintptr(*c.Element.CQ())).(*CQ)
	case ibv.AsyncElementSRQ:
		e.SRQ, _ = d.objects.find(uintptr(*c.Element.SRQ())).(*SRQ)
	case ibv.AsyncElementWQ:
		e.WQ, _ = d.objects.find(uintptr(*c.Element.WQ())).(*WQ)
	case ibv.AsyncElementPort:
		e.Port = uint8(*c.Element.PortNum())
	}
	return e
}

// notify updates the state of the event's object and wakes goroutines that wait for it.
func (d *Device) notify(e AsyncEvent) {
	switch {
	case e.Type == ibv.EVENT_DEVICE_FATAL:
		d.fail(&VerbError{Object: d.Name(), Errno: syscall.EIO,
			Reason: "the device reported a fatal error, or was unplugged: " + e.Type.String()})
	case e.Type == ibv.EVENT_QP_LAST_WQE_REACHED && e.QP != nil:
		e.QP.lastWQE.set()
		d.noLastWQE.Store(false)
	case e.CQ != nil:
		e.CQ.broken(e.Type)
	}
}

// fail records that the device is gone and wakes goroutines that wait for completions.
func (d *Device) fail(err error) {
	var e *VerbError
	if !errors.As(err, &e) || !d.failed.CompareAndSwap(nil, e) {
		return
	}
	d.objects.each(func(o any) {
		switch o := o.(type) {
		case *CQ:
			o.wake()
		case *CompChannel:
			o.ready.Poke()
		}
	})
}

// add appends an event. If the queue is full, it drops the oldest one.
func (a *asyncEvents) add(e AsyncEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == asyncBacklog {
		a.queue = a.queue[1:]
		a.lost++
	}
	a.queue = append(a.queue, e)
	a.signal()
}

func (a *asyncEvents) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.signal()
}

func (a *asyncEvents) signal() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// take removes and returns the oldest event. If there is none and can be none, it returns the error.
func (a *asyncEvents) take() (e AsyncEvent, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == 0 {
		if a.err != nil {
			a.signal() // for the next waiting goroutine
		}
		return e, false, a.err
	}
	e, a.queue = a.queue[0], a.queue[1:]
	e.Lost, a.lost = a.lost, 0
	if len(a.queue) > 0 || a.err != nil {
		a.signal()
	}
	return e, true, nil
}

// Event waits for the next event of the device and its objects. The package reads and acknowledges events as they
// arrive and keeps the newest 1,024. Any number of goroutines may wait; each event goes to one of them. When the device
// is closed or gone, Event returns the remaining events and then an error.
//
// C: ibv_get_async_event, ibv_ack_async_event
//
// Man: ibv_get_async_event(3)
func (d *Device) Event(ctx context.Context) (AsyncEvent, error) {
	for {
		if e, ok, err := d.events.take(); ok || err != nil {
			return e, err
		}
		select {
		case <-d.events.more:
		case <-ctx.Done():
			return AsyncEvent{}, ctx.Err()
		}
	}
}

// Events returns an iterator over the device's events. It yields the first error and ends; see [Device.Event]. The loop
// may end at any time.
func (d *Device) Events(ctx context.Context) iter.Seq2[AsyncEvent, error] {
	return each(func() (AsyncEvent, error) { return d.Event(ctx) })
}

// latch is a flag that goroutines can wait for.
type latch struct {
	mu    sync.Mutex
	isSet bool
	c     chan struct{}
}

// done returns a channel that is closed when the latch is set.
func (o *latch) done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.c == nil {
		o.c = make(chan struct{})
		if o.isSet {
			close(o.c)
		}
	}
	return o.c
}

func (o *latch) set() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.isSet && o.c != nil {
		close(o.c)
	}
	o.isSet = true
}

// reset clears the latch and reports whether it was set.
func (o *latch) reset() (wasSet bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if wasSet = o.isSet; wasSet {
		o.isSet, o.c = false, nil
	}
	return wasSet
}
