// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// cmChannel is an event channel.
type cmChannel struct {
	cm     *Manager
	record *rdmacm.EventChannel
	events device.Events[*cmEvent]
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

func (c *Manager) newEventChannel() (*cmChannel, runtime.Errno) {
	record, errno := device.Allocate[rdmacm.EventChannel](c.Fabric)
	if errno != 0 {
		return nil, errno
	}
	ch := &cmChannel{cm: c, record: record}
	if errno := ch.events.Open(); errno != 0 {
		device.Free(record)
		return nil, errno
	}
	record.FD = ch.events.Descriptor()
	c.channels++
	device.Enter(record, ch)
	return ch, 0
}

// push tells the program of an identifier of an event.
func (id *cmID) push(e *cmEvent) {
	if id.gone || id.channel == nil { // a request that the program has not taken
		return
	}
	e.id = id
	id.channel.events.Push(e)
}

// tell is push of an event without parameters.
func (id *cmID) tell(kind rdmacm.CMEventType, status int32) {
	id.push(&cmEvent{kind: kind, status: status})
}
