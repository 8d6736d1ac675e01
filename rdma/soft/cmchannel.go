package soft

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// cmChannel is an event channel.
type cmChannel struct {
	cm     *cmManager
	record *rdmacm.EventChannel
	events events[*cmEvent]
}

// cmEvent is one that waits to be taken.
type cmEvent struct {
	id      *cmID // whose; of a request, the listener
	kind    rdmacm.CMEventType
	status  int32
	request *cmID // that came in
	conn    rdmacm.ConnParam
	ud      rdmacm.UDParam
	private []byte
	group   *cmGroup // of multicast
	arg     uint64
}

// cmEventRecord is an event as C knows it, with what the peer said.
type cmEventRecord struct {
	rdmacm.CMEvent
	private [256]byte
}

// cmReport is an event that a program has.
type cmReport struct {
	id     *cmID
	group  *cmGroup
	record *cmEventRecord
}

// createEventChannel is rdma_create_event_channel.
func (c *cmManager) createEventChannel([]uint64) (uint64, runtime.Errno) {
	c.mu.Lock()
	defer c.unlock()
	ch, errno := c.newEventChannel()
	if errno != 0 {
		return 0, errno
	}
	return addressOf(ch.record), 0
}

func (c *cmManager) newEventChannel() (*cmChannel, runtime.Errno) {
	record, errno := allocateOf[rdmacm.EventChannel](c.Fabric)
	if errno != 0 {
		return nil, errno
	}
	ch := &cmChannel{cm: c, record: record}
	if errno := ch.events.open(); errno != 0 {
		all.space.Free(pointer(addressOf(record)))
		return nil, errno
	}
	record.FD = ch.events.fd
	c.channels++
	enter(record, ch)
	return ch, 0
}

// destroyEventChannel is rdma_destroy_event_channel. Identifiers that are left on it are gone with it.
func destroyEventChannel(a []uint64) (uint64, runtime.Errno) {
	ch := find[cmChannel](a[0])
	if ch == nil {
		return 0, 0
	}
	ch.cm.mu.Lock()
	defer ch.cm.unlock()
	if still(a[0], ch) {
		ch.close()
	}
	return 0, 0
}

func (ch *cmChannel) close() {
	c := ch.cm
	for i := len(c.ids) - 1; i >= 0; i-- {
		if id := c.ids[i]; id.channel == ch {
			id.part()
			id.release()
		}
	}
	ch.events.close()
	c.channels--
	forget(ch.record)
}

// push tells the program of an identifier of an event.
func (id *cmID) push(e *cmEvent) {
	if id.gone || id.channel == nil { // a request that the program has not taken
		return
	}
	e.id = id
	id.channel.events.push(e)
}

// tell is push of an event without parameters.
func (id *cmID) tell(kind rdmacm.CMEventType, status int32) {
	id.push(&cmEvent{kind: kind, status: status})
}

// getCMEvent is rdma_get_cm_event. It waits, unless the channel's file does not block.
func getCMEvent(a []uint64) (uint64, runtime.Errno) {
	ch := find[cmChannel](a[0])
	if ch == nil || a[1] == 0 {
		return ^uint64(0), einval
	}
	record, errno := ch.next()
	if errno != 0 {
		return ^uint64(0), errno
	}
	*at[ibv.Ptr[rdmacm.CMEvent]](a[1]) = ibv.PtrTo(record)
	return 0, 0
}

// next takes the next event, does what librdmacm does as it comes, and gives it to the program.
func (ch *cmChannel) next() (*rdmacm.CMEvent, runtime.Errno) {
	c := ch.cm
	c.mu.Lock()
	defer c.unlock()
	record, errno := allocateOf[cmEventRecord](c.Fabric)
	if errno != 0 {
		return nil, errno
	}
	for {
		e, errno := ch.events.wait(c.Fabric, true)
		if errno != 0 {
			all.space.Free(pointer(addressOf(record)))
			return nil, errno
		}
		of := e.id
		of.events.got++
		if e.group != nil {
			e.group.events.got++
		}
		if !e.take(record) {
			of.events.acked++
			c.acked.Broadcast()
			continue
		}
		enter(record, &cmReport{of, e.group, record})
		return &record.CMEvent, 0
	}
}

// fill makes the record of an event.
func (e *cmEvent) fill(record *cmEventRecord) {
	*record = cmEventRecord{CMEvent: rdmacm.CMEvent{ID: ibv.PtrTo(e.id.record), Event: e.kind, Status: e.status}}
	at := uint64(0)
	if n := copy(record.private[:], e.private); n > 0 {
		at = addressOf(&record.private[0])
	}
	switch e.kind {
	case rdmacm.CM_EVENT_USER:
		*record.Param.Arg() = e.arg
	case rdmacm.CM_EVENT_MULTICAST_JOIN, rdmacm.CM_EVENT_MULTICAST_ERROR:
		*record.Param.UD() = e.ud
		record.Param.UD().PrivateData = uintptr(e.group.context)
	case rdmacm.CM_EVENT_ADDR_RESOLVED, rdmacm.CM_EVENT_ROUTE_RESOLVED, rdmacm.CM_EVENT_ADDRINFO_RESOLVED, rdmacm.CM_EVENT_ADDRINFO_ERROR:
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

// take does what librdmacm does with an event, and says whether the program is to have it. The fabric's lock may be given up meanwhile; the
// identifier stays, for the event counts as not acknowledged.
func (e *cmEvent) take(record *cmEventRecord) bool {
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
			e.kind, e.status = rdmacm.CM_EVENT_MULTICAST_ERROR, -1 // which is what librdmacm says
		}
	}
	e.fill(record)
	return true
}

// ackCMEvent is rdma_ack_cm_event.
func ackCMEvent(a []uint64) (uint64, runtime.Errno) {
	r := find[cmReport](a[0])
	if r == nil {
		return ^uint64(0), einval
	}
	c := r.id.cm
	c.mu.Lock()
	defer c.unlock()
	if !still(a[0], r) {
		return ^uint64(0), einval
	}
	r.acknowledge()
	return 0, 0
}

func (r *cmReport) acknowledge() {
	r.id.events.acked++
	if r.group != nil {
		r.group.events.acked++
	}
	forget(r.record)
	r.id.cm.acked.Broadcast()
}
