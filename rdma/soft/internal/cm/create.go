// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// createID is rdma_create_id with a channel, which determines the fabric.
func createID(of ibv.Ptr[rdmacm.EventChannel], to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], context uint64,
	space rdmacm.PortSpace) runtime.Errno {
	ch := device.Find[channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	return ch.cm.createIDOn(ch, to, context, space)
}

// createAnyID is rdma_create_id of this fabric. Without a channel the identifier is synchronous.
func (c *Manager) createAnyID(of ibv.Ptr[rdmacm.EventChannel], to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], context uint64,
	space rdmacm.PortSpace) runtime.Errno {
	if of != 0 {
		return createID(of, to, context, space)
	}
	return c.createIDOn(nil, to, context, space)
}

func (c *Manager) createIDOn(ch *channel, to ibv.Ptr[ibv.Ptr[rdmacm.CMID]], context uint64,
	space rdmacm.PortSpace) runtime.Errno {
	datagrams, ok := portSpaceKind(space)
	if to == 0 || !ok {
		return syscall.EINVAL
	}
	kind := ibv.QPT_RC
	if datagrams {
		kind = ibv.QPT_UD
	}
	c.Lock()
	defer c.Unlock()
	id, errno := c.newID(ch, context, space, kind)
	if errno != 0 {
		return errno
	}
	*to.Deref() = ibv.PtrTo(id.record)
	return 0
}

// newID creates an identifier. Without a channel it is synchronous and creates its own.
func (c *Manager) newID(ch *channel, context uint64, space rdmacm.PortSpace, kind ibv.QPType) (*identifier,
	runtime.Errno) {
	id := &identifier{cm: c, space: space, kind: kind, timeout: defaultTimeout}
	if errno := id.show(ch, context); errno != 0 {
		return nil, errno
	}
	c.ids = append(c.ids, id)
	return id, 0
}

// show creates the identifier's record for the program.
func (id *identifier) show(ch *channel, context uint64) (errno runtime.Errno) {
	c := id.cm
	own := ch == nil
	if own {
		if ch, errno = c.newEventChannel(); errno != 0 {
			return errno
		}
	}
	record, errno := device.Allocate[rdmacm.CMID](&c.Engine)
	if errno != 0 {
		if own {
			ch.close()
		}
		return errno
	}
	id.record, id.channel, id.sync = record, ch, own
	record.Channel, record.Context, record.PS, record.QPType = ibv.PtrTo(ch.record), uintptr(context), id.space, id.kind
	device.Enter(record, id)
	return 0
}

// admit gives the identifier of a request to the program.
func (id *identifier) admit(listener *identifier) runtime.Errno {
	listener.wait(id, -1)
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

// destroyID is rdma_destroy_id. It waits until every event is acknowledged.
func destroyID(id *identifier) runtime.Errno {
	id.acknowledge()
	return id.sent(func() runtime.Errno {
		id.part()
		id.cm.Settle(&id.events)
		id.release()
		return 0
	})
}

// migrateID is rdma_migrate_id: it moves the identifier's events to another channel, or makes it synchronous.
func migrateID(id *identifier, channelTo ibv.Ptr[rdmacm.EventChannel]) runtime.Errno {
	to := device.Find[channel](channelTo)
	c := id.cm
	if channelTo != 0 && (to == nil || to.cm != c) || channelTo == 0 && id.sync {
		return syscall.EINVAL
	}
	id.acknowledge()
	c.Lock()
	defer c.Unlock()
	if id.gone {
		return syscall.EINVAL
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
		from.events.Drop(func(e *event) bool {
			if e.id == id {
				to.events.Push(e)
			}
			return e.id == id
		})
	}
	id.channel, id.sync = to, sync
	id.record.Channel = ibv.PtrTo(to.record)
	if wasSync && from != to {
		from.close()
	}
	c.Settle(&id.events)
	return 0
}
