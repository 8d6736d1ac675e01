// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// channel is an event channel.
type channel struct {
	cm     *Manager
	record *rdmacm.EventChannel
	events device.Events[*event]
}

// event is a queued event.
type event struct {
	id      *identifier // of a request, the listener
	kind    rdmacm.CMEventType
	status  int32
	request *identifier // the new identifier, for a request
	conn    rdmacm.ConnParam
	ud      rdmacm.UDParam
	private []byte
	group   *group // for multicast events
	arg     uint64
}

func (c *Manager) newEventChannel() (*channel, runtime.Errno) {
	record, errno := device.Allocate[rdmacm.EventChannel](&c.Engine)
	if errno != 0 {
		return nil, errno
	}
	ch := &channel{cm: c, record: record}
	if errno := ch.events.Open(); errno != 0 {
		device.Free(record)
		return nil, errno
	}
	record.FD = ch.events.Descriptor()
	c.channels++
	device.Enter(record, ch)
	return ch, 0
}

// push queues an event for the identifier's program.
func (id *identifier) push(e *event) {
	if id.gone || id.channel == nil { // destroyed, or an undelivered request
		return
	}
	e.id = id
	id.channel.events.Push(e)
}

// tell queues an event without parameters.
func (id *identifier) tell(kind rdmacm.CMEventType, status int32) {
	id.push(&event{kind: kind, status: status})
}
