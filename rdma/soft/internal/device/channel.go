// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
)

// channel is a completion channel.
type channel struct {
	*context
	record *ibv.CompChannel
	events events[*cq]
	uses   int
}

func createChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, errnos.EINVAL
	}
	defer c.fabric().unlock()
	record, errno := allocate[ibv.CompChannel](c.device)
	if errno != 0 {
		return 0, errno
	}
	ch := &channel{context: c, record: record}
	if errno := ch.events.Open(); errno != 0 {
		forget(record)
		return 0, errno
	}
	*record = ibv.CompChannel{Context: c.address(), FD: ch.events.Descriptor()}
	c.uses++
	enter(record, ch)
	return addressOf(record), 0
}

func destroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno {
	ch := locked[channel](of)
	if ch == nil {
		return errnos.EINVAL
	}
	defer ch.fabric().unlock()
	if errno := mayGo(ch.fabric(), of, ch, func() bool { return ch.uses > 0 }); errno != 0 {
		return errno
	}
	ch.events.Close()
	ch.context.uses--
	forget(ch.record)
	return 0
}

// getCQEvent is ibv_get_cq_event. It waits, unless the channel's file does not block.
func getCQEvent(of ibv.Ptr[ibv.CompChannel], queue ibv.Ptr[ibv.Ptr[ibv.CQEx]],
	userContext ibv.Ptr[uintptr]) runtime.Errno {
	if queue == 0 || userContext == 0 {
		return errnos.EINVAL
	}
	ch := locked[channel](of)
	if ch == nil {
		return errnos.EINVAL
	}
	defer ch.fabric().unlock()
	c, errno := ch.events.wait(ch.fabric(), true)
	if errno != 0 {
		return errno
	}
	c.events.got++
	*queue.Deref() = ibv.PtrTo(&c.record.CQEx)
	*userContext.Deref() = c.record.CQContext
	return 0
}

func ackCQEvents(of ibv.Ptr[ibv.CQ], n uint32) runtime.Errno {
	c := locked[cq](of)
	if c == nil {
		return errnos.EINVAL
	}
	f := c.fabric()
	defer f.unlock()
	c.events.acked += n
	c.record.CompEventsCompleted += n
	f.acked.Broadcast()
	return 0
}
