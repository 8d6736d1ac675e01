// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// AsyncEvent is an event that a context queues for the program.
type AsyncEvent struct {
	Kind    ibv.EventType
	Element uint64            // the object's address, or the number of the port
	Reports *resource.Reports // events of the object; nil for a port
}

// report queues an event of an object.
func (c *Context) report(kind ibv.EventType, element uint64, r *resource.Reports) {
	if c.closed {
		return
	}
	c.Async.Push(AsyncEvent{kind, element, r})
}

func (c *Context) portEvent(kind ibv.EventType) { c.report(kind, PortNum, nil) }

// dropEvents removes the undelivered events of an object.
func (c *Context) dropEvents(r *resource.Reports) {
	c.Async.Drop(func(e AsyncEvent) bool { return e.Reports == r })
}

// getAsyncEvent implements ibv_get_async_event. It waits unless the context's file is non-blocking.
func getAsyncEvent(of ibv.Ptr[ibv.Context], to ibv.Ptr[ibv.AsyncEvent], w *nap.Waiter) runtime.Errno {
	c := Find[Context](of)
	if c == nil || to == 0 {
		return syscall.EINVAL
	}
	c.Fabric().Mu.Lock()
	defer c.Fabric().Unlock()
	e, errno := c.Async.Wait(&c.Fabric().Core, false, w)
	if errno != 0 {
		return errno
	}
	event := to.Deref()
	*event = ibv.AsyncEvent{EventType: e.Kind}
	if e.Reports == nil {
		*event.Element.PortNum() = PortNum
	} else {
		e.Reports.Got++
		*event.Element.QP() = ibv.Ptr[ibv.QP](e.Element)
	}
	return 0
}

// reporter is an object with asynchronous events.
type reporter interface {
	reported() *resource.Reports
	Fabric() *engine.Engine
}

func ackAsyncEvent(of ibv.Ptr[ibv.AsyncEvent]) runtime.Errno {
	if of == 0 {
		return syscall.EINVAL
	}
	all.mu.RLock()
	object, ok := all.objects[uint64(*of.Deref().Element.QP())].(reporter)
	all.mu.RUnlock()
	if ok {
		f := object.Fabric()
		f.Mu.Lock()
		defer f.Unlock()
		f.Acknowledged(object.reported(), 1)
	}
	return 0
}

// Channel is a completion channel.
type Channel struct {
	*Context
	record *ibv.CompChannel
	Events resource.Events[*cq]
	uses   int
}

func CreateChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[Context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.Fabric().Unlock()
	record, errno := allocate[ibv.CompChannel](c.Device)
	if errno != 0 {
		return 0, errno
	}
	ch := &Channel{Context: c, record: record}
	if errno := ch.Events.Open(); errno != 0 {
		Forget(record)
		return 0, errno
	}
	*record = ibv.CompChannel{Context: c.Address(), FD: ch.Events.Descriptor()}
	return add(c, record, ch)
}

func DestroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno {
	return LockedDo(of, func(ch *Channel) runtime.Errno {
		return destroy(ch, ch.record, func() bool { return ch.uses > 0 }, ch.Events.Close)
	})
}

// getCQEvent implements ibv_get_cq_event. It waits unless the channel's file is non-blocking.
func getCQEvent(of ibv.Ptr[ibv.CompChannel], queue ibv.Ptr[ibv.Ptr[ibv.CQEx]],
	userContext ibv.Ptr[uintptr], w *nap.Waiter) runtime.Errno {
	if queue == 0 || userContext == 0 {
		return syscall.EINVAL
	}
	ch := locked[Channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.Fabric().Unlock()
	c, errno := ch.Events.Wait(&ch.Fabric().Core, true, w)
	if errno != 0 {
		return errno
	}
	c.events.Got++
	*queue.Deref() = ibv.PtrTo(&c.record.CQEx)
	*userContext.Deref() = c.record.CQContext
	return 0
}

func ackCQEvents(c *cq, n uint32) runtime.Errno {
	f := c.Fabric()
	f.Acknowledged(&c.events, n)
	c.record.CompEventsCompleted += n
	return 0
}
