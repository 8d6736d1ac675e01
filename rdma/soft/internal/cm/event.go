// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// report is an event delivered to a program.
type report struct {
	id     *identifier
	group  *group
	record *eventRecord
}

func (r *report) Fabric() *engine.Engine { return &r.id.cm.Engine }

// createEventChannel is rdma_create_event_channel.
func (c *Manager) createEventChannel() (uint64, runtime.Errno) {
	c.Lock()
	defer c.Unlock()
	ch, errno := c.newEventChannel()
	if errno != 0 {
		return 0, errno
	}
	return mem.AddressOf(ch.record), 0
}

// destroyEventChannel is rdma_destroy_event_channel. It destroys the channel's remaining identifiers.
func destroyEventChannel(of ibv.Ptr[rdmacm.EventChannel]) runtime.Errno {
	ch := verbs.Find[channel](of)
	if ch == nil {
		return 0
	}
	c := ch.cm
	defer c.Sent()
	c.Lock()
	defer c.Unlock()
	if verbs.Still(of, ch) {
		ch.close()
	}
	return 0
}

// getEvent is rdma_get_cm_event. It waits unless the channel's file is nonblocking.
//
// Destroying a channel does not wake a C thread that waits on it, because in librdmacm closing the descriptor does not
// either. Programs like rping leave such a thread behind and would report an error.
func getEvent(of ibv.Ptr[rdmacm.EventChannel], to ibv.Ptr[ibv.Ptr[rdmacm.CMEvent]], w *nap.Waiter) runtime.Errno {
	if of == 0 || to == 0 {
		return syscall.EINVAL
	}
	var record *rdmacm.CMEvent
	errno := syscall.EINVAL
	if ch := verbs.Find[channel](of); ch != nil {
		record, errno = ch.next(w)
	}
	switch {
	case errno == 0:
		*to.Deref() = ibv.PtrTo(record)
	case errno == syscall.EINVAL && w != nil:
		return w.Forever()
	}
	return errno
}

// next takes the next event, does librdmacm's processing of it, and returns it. With a waiter, it returns nap.Asleep
// instead of waiting.
func (ch *channel) next(w *nap.Waiter) (*rdmacm.CMEvent, runtime.Errno) {
	c := ch.cm
	c.Lock()
	defer c.Unlock()
	record, errno := verbs.AllocateOf[eventRecord](&c.Engine)
	if errno != 0 {
		return nil, errno
	}
	for {
		e, errno := ch.events.Wait(&c.Core, true, w)
		if errno != 0 {
			verbs.Free(record)
			return nil, errno
		}
		of := e.id
		of.events.Got++
		if e.group != nil {
			e.group.events.Got++
		}
		if !e.take(record) {
			c.Acknowledged(&of.events, 1)
			continue
		}
		verbs.Enter(record, &report{of, e.group, record})
		return &record.CMEvent, 0
	}
}

// fill fills in the record of an event.
func (e *event) fill(record *eventRecord) {
	*record = eventRecord{CMEvent: rdmacm.CMEvent{ID: ibv.PtrTo(e.id.record), Event: e.kind, Status: e.status}}
	at := uint64(0)
	if n := copy(record.private[:], e.private); n > 0 {
		at = mem.AddressOf(&record.private[0])
	}
	switch e.kind {
	case rdmacm.CM_EVENT_USER:
		*record.Param.Arg() = e.arg
	case rdmacm.CM_EVENT_MULTICAST_JOIN, rdmacm.CM_EVENT_MULTICAST_ERROR:
		*record.Param.UD() = e.ud
		record.Param.UD().PrivateData = uintptr(e.group.context)
	case rdmacm.CM_EVENT_ADDR_RESOLVED, rdmacm.CM_EVENT_ROUTE_RESOLVED, rdmacm.CM_EVENT_ADDRINFO_RESOLVED,
		rdmacm.CM_EVENT_ADDRINFO_ERROR:
	default:
		if e.id.datagrams() {
			*record.Param.UD() = e.ud
			record.Param.UD().PrivateData, record.Param.UD().PrivateDataLen = uintptr(at), uint8(len(e.private))
		} else {
			*record.Param.Conn() = e.conn
			record.Param.Conn().PrivateData, record.Param.Conn().PrivateDataLen = uintptr(at), uint8(len(e.private))
		}
	}
}

// take does librdmacm's processing of an event, and reports whether the program gets it. It may release the fabric's
// lock; the identifier stays, because the event counts as unacknowledged.
func (e *event) take(record *eventRecord) bool {
	id := e.id
	switch e.kind {
	case rdmacm.CM_EVENT_ADDR_RESOLVED:
		if e.status = -int32(id.attach()); e.status != 0 {
			e.kind = rdmacm.CM_EVENT_ADDR_ERROR
		}
		id.writeAddresses()
	case rdmacm.CM_EVENT_ROUTE_RESOLVED:
		if e.status = -int32(id.writeRoute()); e.status != 0 {
			e.kind = rdmacm.CM_EVENT_ROUTE_ERROR
		}
	case rdmacm.CM_EVENT_CONNECT_REQUEST:
		if errno := e.request.admit(id); errno != 0 {
			e.request.part()
			return false
		}
		defer func() { record.ID, record.ListenID = ibv.PtrTo(e.request.record), ibv.PtrTo(id.record) }()
	case rdmacm.CM_EVENT_CONNECT_RESPONSE:
		if id.record.QP == 0 {
			break
		}
		e.kind = rdmacm.CM_EVENT_ESTABLISHED
		if e.status = -int32(id.finish()); e.status != 0 {
			e.kind, id.failed = rdmacm.CM_EVENT_CONNECT_ERROR, true
		}
	case rdmacm.CM_EVENT_REJECTED:
		if id.failed {
			return false
		}
		id.breakQP()
	case rdmacm.CM_EVENT_DISCONNECTED:
		if id.failed {
			return false
		}
	case rdmacm.CM_EVENT_MULTICAST_JOIN:
		if e.group.attach() != 0 {
			e.kind, e.status = rdmacm.CM_EVENT_MULTICAST_ERROR, -1 // as in librdmacm
		}
	}
	e.fill(record)
	return true
}

// ackEvent is rdma_ack_cm_event.
func ackEvent(of ibv.Ptr[rdmacm.CMEvent]) runtime.Errno {
	return verbs.LockedDo(of, func(r *report) runtime.Errno {
		if r.group != nil {
			r.group.events.Acked++
		}
		verbs.Forget(r.record)
		r.id.cm.Acknowledged(&r.id.events, 1)
		return 0
	})
}

// finish connects the active side's queue pair, as librdmacm does when it processes the reply. It is called with the
// fabric's lock, which it releases temporarily.
func (id *identifier) finish() runtime.Errno {
	errno := runtime.Errno(0)
	if id.peerECE.vendor != 0 { // devices of the fabric support no ECE
		errno = syscall.EINVAL
	}
	id.cm.Unlock()
	if errno == 0 {
		errno = id.ready()
	}
	id.cm.Lock()
	if errno == 0 && (id.gone || id.state != answered) { // destroyed, or ended by the peer
		errno = syscall.EINVAL
	}
	if errno != 0 {
		id.breakQP()
		return errno
	}
	id.state = established
	id.confirm()
	return 0
}

// complete waits for the event that completes an operation, if the identifier is synchronous. With a waiter, it returns
// nap.Asleep instead of waiting, and is called again.
func (id *identifier) complete(w *nap.Waiter) runtime.Errno {
	if !id.sync {
		return 0
	}
	id.acknowledge()
	e, errno := id.channel.next(w)
	if errno != 0 {
		return errno
	}
	id.record.Event = ibv.PtrTo(e)
	switch {
	case e.Status == 0:
		return 0
	case e.Event == rdmacm.CM_EVENT_REJECTED:
		return syscall.ECONNREFUSED
	}
	return runtime.Errno(max(e.Status, -e.Status))
}

// acknowledge acknowledges the event held by a synchronous identifier.
func (id *identifier) acknowledge() {
	if event := id.record.Event; event != 0 {
		id.record.Event = 0
		ackEvent(event)
	}
}

// begin starts, under the fabric's lock, an operation that completes with an event.
func (id *identifier) begin(f func() runtime.Errno) nap.Try {
	return id.completed(func() runtime.Errno { return id.locked(f) })
}

// completed runs an operation that completes with an event.
func (id *identifier) completed(f func() runtime.Errno) nap.Try { return inTurn(once(f), id.complete) }

// once returns a step that does not wait.
func once(f func() runtime.Errno) nap.Try { return func(*nap.Waiter) runtime.Errno { return f() } }

// inTurn runs steps in sequence until one fails.
func inTurn(steps ...nap.Try) nap.Try {
	return func(w *nap.Waiter) runtime.Errno {
		for ; len(steps) > 0; steps = steps[1:] {
			if errno := steps[0](w); errno != 0 {
				return errno
			}
		}
		return 0
	}
}

// eventRecord is C's record of an event, with its private data.
type eventRecord struct {
	rdmacm.CMEvent
	private [256]byte
}
