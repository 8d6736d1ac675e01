package soft

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// cmID is rdma_cm_id. The record is written only in calls of the program's, as by librdmacm.
type cmID struct {
	cm      *cmManager
	record  *rdmacm.CMID // nil of a request that the program has not taken
	channel *cmChannel
	events  reports
	space   rdmacm.PortSpace
	kind    ibv.QPType
	sync    bool // the channel is its own
	gone    bool // it is destroyed, but for events that are not acknowledged
	failed  bool // its queue pair could not be connected

	state    cmState
	local    netip.AddrPort
	to       netip.AddrPort
	device   *device   // that it is on, or nil
	shares   *cmDevice // of device, once the program can see it
	port     cmPort    // that it has in bound; 0 for none
	asked    *exchange
	timer    uint64 // of resolving or of TIME_WAIT
	listener *cmID  // where a request came in

	reuse, afOnly bool
	tos           uint8
	timeout       uint8
	ece, peerECE  cmECE

	backlog int // of a listener: how many requests may wait to be taken
	waiting int

	// Of a connection.
	number                   uint32          // its communication ID; 0 before it has sent or got a request
	peer                     message.Address // the port of the other end
	peerNumber               uint32          // the other end's communication ID, once it is known
	tid                      uint64          // transaction ID of the request
	inHand                   uint64          // transaction ID of the other side's message that the program has, or had
	param                    rdmacm.ConnParam
	private                  []byte
	qpn, peerQPN             uint32
	psn, peerPSN             uint32
	initiator, responder     uint8 // initiator_depth and responder_resources of its queue pair
	retries, notReadyRetries uint8

	groups    []*cmGroup      // of multicast, that it has joined
	passive   *ibv.QPInitAttr // of rdma_create_ep: what requests get
	looking   bool            // rdma_resolve_addrinfo was called, and its answer was not taken
	addresses *addrInfoRecord // the answer
}

type cmECE struct{ vendor, options uint32 }

func (id *cmID) datagrams() bool { return id.kind == ibv.QPT_UD }

// createCMID is rdma_create_id.
func createCMID(a []uint64) (uint64, runtime.Errno) {
	ch := find[cmChannel](a[0])
	space := rdmacm.PortSpace(uint32(a[3]))
	datagrams, ok := portSpaceKind(space)
	if ch == nil || a[1] == 0 || !ok {
		return ^uint64(0), einval
	}
	kind := ibv.QPT_RC
	if datagrams {
		kind = ibv.QPT_UD
	}
	ch.cm.mu.Lock()
	defer ch.cm.unlock()
	id, errno := ch.cm.newCMID(ch, a[2], space, kind)
	if errno != 0 {
		return ^uint64(0), errno
	}
	*at[ibv.Ptr[rdmacm.CMID]](a[1]) = ibv.PtrTo(id.record)
	return 0, 0
}

// newCMID makes an identifier; one without a channel is synchronous and makes its own.
func (c *cmManager) newCMID(ch *cmChannel, context uint64, space rdmacm.PortSpace, kind ibv.QPType) (*cmID, runtime.Errno) {
	id := &cmID{cm: c, space: space, kind: kind, timeout: cmTimeout}
	if errno := id.show(ch, context); errno != 0 {
		return nil, errno
	}
	c.ids = append(c.ids, id)
	return id, 0
}

// show makes the record.
func (id *cmID) show(ch *cmChannel, context uint64) (errno runtime.Errno) {
	c := id.cm
	own := ch == nil
	if own {
		if ch, errno = c.newEventChannel(); errno != 0 {
			return errno
		}
	}
	record, errno := allocateOf[rdmacm.CMID](c.Fabric)
	if errno != 0 {
		if own {
			ch.close()
		}
		return errno
	}
	id.record, id.channel, id.sync = record, ch, own
	record.Channel, record.Context, record.PS, record.QPType = ibv.PtrTo(ch.record), uintptr(context), id.space, id.kind
	enter(record, id)
	return 0
}

// admit shows the identifier of a request to the program that takes it at a listener.
func (id *cmID) admit(listener *cmID) runtime.Errno {
	listener.waiting--
	ch := listener.channel
	if listener.sync {
		ch = nil
	}
	if errno := id.show(ch, uint64(listener.record.Context)); errno != 0 {
		return errno
	}
	errno := id.attach()
	if errno == 0 {
		errno = id.writeRoute()
	}
	if errno != 0 {
		id.release()
		return errno
	}
	id.writeAddresses()
	return 0
}

// complete waits for the event that ends what was begun, if the identifier is synchronous.
func (id *cmID) complete() runtime.Errno {
	if !id.sync {
		return 0
	}
	id.acknowledge()
	e, errno := id.channel.next()
	if errno != 0 {
		return errno
	}
	id.record.Event = ibv.PtrTo(e)
	switch {
	case e.Status == 0:
		return 0
	case e.Event == rdmacm.CM_EVENT_REJECTED:
		return econnrefused
	}
	return runtime.Errno(max(e.Status, -e.Status))
}

// acknowledge acknowledges the event that a synchronous identifier holds.
func (id *cmID) acknowledge() {
	if event := id.record.Event; event != 0 {
		id.record.Event = 0
		ackCMEvent([]uint64{uint64(event)})
	}
}

// destroyCMID is rdma_destroy_id. It waits until every event is acknowledged.
func destroyCMID(id *cmID, _ []uint64) runtime.Errno {
	id.acknowledge()
	id.cm.mu.Lock()
	defer id.cm.unlock()
	if id.gone {
		return einval
	}
	id.part()
	id.events.settle(id.cm.Fabric)
	id.release()
	return 0
}

// part ends all that the identifier does, and says so to the other side.
func (id *cmID) part() {
	c := id.cm
	id.conclude()
	c.cancel(id.timer)
	id.sayFarewell()
	for len(id.groups) > 0 {
		id.leaveGroup(id.groups[0])
	}
	id.unbind()
	id.forgetRemote()
	id.forgetNumber()
	c.ids = slices.DeleteFunc(c.ids, func(other *cmID) bool { return other == id })
	var requests []*cmID // that nobody will take: they part afterwards, for that makes events
	if id.channel != nil {
		id.channel.events.drop(func(e *cmEvent) bool {
			if e.id == id && e.request != nil {
				requests = append(requests, e.request)
			}
			return e.id == id
		})
	}
	for _, request := range requests {
		request.part()
	}
	if id.addresses != nil {
		forget(id.addresses)
		id.addresses = nil
	}
	id.gone = true
}

// release frees the record.
func (id *cmID) release() {
	if id.shares != nil {
		id.shares.put()
		id.shares = nil
	}
	if id.record == nil {
		return
	}
	if id.record.Route.PathRec != 0 {
		all.space.Free(pointer(uint64(id.record.Route.PathRec)))
	}
	forget(id.record)
	id.record = nil
	if id.sync {
		id.channel.close()
	}
}

// migrateCMID is rdma_migrate_id: the identifier's events arrive at another channel, or without one it becomes synchronous.
func migrateCMID(id *cmID, a []uint64) runtime.Errno {
	to := find[cmChannel](a[1])
	c := id.cm
	if a[1] != 0 && (to == nil || to.cm != c) || a[1] == 0 && id.sync {
		return einval
	}
	id.acknowledge()
	c.mu.Lock()
	defer c.unlock()
	if id.gone {
		return einval
	}
	sync := to == nil
	if sync {
		var errno runtime.Errno
		if to, errno = c.newEventChannel(); errno != 0 {
			return errno
		}
	}
	from, wasSync := id.channel, id.sync
	if from != to {
		from.events.drop(func(e *cmEvent) bool {
			if e.id == id {
				to.events.push(e)
			}
			return e.id == id
		})
	}
	id.channel, id.sync = to, sync
	id.record.Channel = ibv.PtrTo(to.record)
	if wasSync && from != to {
		from.close()
	}
	id.events.settle(c.Fabric)
	return 0
}
