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

func createChannel(a []uint64) (uint64, runtime.Errno) {
	c := locked[context](a[0])
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

func destroyChannel(a []uint64) runtime.Errno {
	ch := locked[channel](a[0])
	if ch == nil {
		return errnos.EINVAL
	}
	defer ch.fabric().unlock()
	if errno := mayGo(ch.fabric(), a[0], ch, func() bool { return ch.uses > 0 }); errno != 0 {
		return errno
	}
	ch.events.Close()
	ch.context.uses--
	forget(ch.record)
	return 0
}

// getCQEvent is ibv_get_cq_event. It waits, unless the channel's file does not block.
func getCQEvent(a []uint64) (uint64, runtime.Errno) {
	if a[1] == 0 || a[2] == 0 {
		return ^uint64(0), errnos.EINVAL
	}
	ch := locked[channel](a[0])
	if ch == nil {
		return ^uint64(0), errnos.EINVAL
	}
	defer ch.fabric().unlock()
	c, errno := ch.events.wait(ch.fabric(), true)
	if errno != 0 {
		return ^uint64(0), errno
	}
	c.events.got++
	*at[ibv.Ptr[ibv.CQEx]](a[1]) = ibv.PtrTo(&c.record.CQEx)
	*at[uintptr](a[2]) = c.record.CQContext
	return 0, 0
}

func ackCQEvents(a []uint64) (uint64, runtime.Errno) {
	c := locked[cq](a[0])
	if c == nil {
		return 0, errnos.EINVAL
	}
	f := c.fabric()
	defer f.unlock()
	c.events.acked += uint32(a[1])
	c.record.CompEventsCompleted += uint32(a[1])
	f.acked.Broadcast()
	return 0, 0
}
