package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// asyncEvent is one that a context waits to give to the program.
type asyncEvent struct {
	kind    ibv.EventType
	element uint64   // the object's address; of a port, its number
	reports *reports // of the object; nil for a port
}

// tell queues an event of an object.
func (c *context) tell(kind ibv.EventType, element uint64, r *reports) {
	c.async.push(asyncEvent{kind, element, r})
}

func (c *context) portEvent(kind ibv.EventType) { c.tell(kind, portNum, nil) }

// silence takes back what was not told of an object.
func (c *context) silence(r *reports) {
	c.async.drop(func(e asyncEvent) bool { return e.reports == r })
}

// getAsyncEvent is ibv_get_async_event. It waits, unless the context's file does not block.
func getAsyncEvent(a []uint64) (uint64, runtime.Errno) {
	c := find[context](a[0])
	if c == nil || a[1] == 0 {
		return ^uint64(0), einval
	}
	c.fabric().mu.Lock()
	defer c.fabric().unlock()
	e, errno := c.async.wait(c.fabric(), false)
	if errno != 0 {
		return ^uint64(0), errno
	}
	event := at[ibv.AsyncEvent](a[1])
	*event = ibv.AsyncEvent{EventType: e.kind}
	if e.reports == nil {
		*event.Element.PortNum() = portNum
	} else {
		e.reports.got++
		*event.Element.QP() = ibv.Ptr[ibv.QP](e.element)
	}
	return 0, 0
}

// reporter is what asynchronous events are of.
type reporter interface {
	reported() *reports
	fabric() *Fabric
}

func ackAsyncEvent(a []uint64) (uint64, runtime.Errno) {
	if a[0] == 0 {
		return 0, einval
	}
	all.mu.RLock()
	object, ok := all.objects[uint64(*at[ibv.AsyncEvent](a[0]).Element.QP())].(reporter)
	all.mu.RUnlock()
	if ok {
		f := object.fabric()
		f.mu.Lock()
		defer f.unlock()
		object.reported().acked++
		f.acked.Broadcast()
	}
	return 0, 0
}
