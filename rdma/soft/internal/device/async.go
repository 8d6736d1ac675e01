// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/runtime"
)

// asyncEvent is an event that a context queues for the program.
type asyncEvent struct {
	kind    ibv.EventType
	element uint64   // the object's address; of a port, its number
	reports *Reports // of the object; nil for a port
}

// tell queues an event of an object.
func (c *context) tell(kind ibv.EventType, element uint64, r *Reports) {
	if c.closed {
		return
	}
	c.async.Push(asyncEvent{kind, element, r})
}

func (c *context) portEvent(kind ibv.EventType) { c.tell(kind, portNum, nil) }

// silence removes the undelivered events of an object.
func (c *context) silence(r *Reports) {
	c.async.Drop(func(e asyncEvent) bool { return e.reports == r })
}

// getAsyncEvent is ibv_get_async_event. It waits, unless the context's file does not block.
func getAsyncEvent(of ibv.Ptr[ibv.Context], to ibv.Ptr[ibv.AsyncEvent], w *nap.Waiter) runtime.Errno {
	c := find[context](of)
	if c == nil || to == 0 {
		return syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	e, errno := c.async.Wait(&c.fabric().Core, false, w)
	if errno != 0 {
		return errno
	}
	event := to.Deref()
	*event = ibv.AsyncEvent{EventType: e.kind}
	if e.reports == nil {
		*event.Element.PortNum() = portNum
	} else {
		e.reports.Got++
		*event.Element.QP() = ibv.Ptr[ibv.QP](e.element)
	}
	return 0
}

// reporter is an object that asynchronous events concern.
type reporter interface {
	reported() *Reports
	fabric() *Engine
}

func ackAsyncEvent(of ibv.Ptr[ibv.AsyncEvent]) runtime.Errno {
	if of == 0 {
		return syscall.EINVAL
	}
	all.mu.RLock()
	object, ok := all.objects[uint64(*of.Deref().Element.QP())].(reporter)
	all.mu.RUnlock()
	if ok {
		f := object.fabric()
		f.mu.Lock()
		defer f.Unlock()
		f.Acknowledged(object.reported(), 1)
	}
	return 0
}
