// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// channel is a completion channel.
type channel struct {
	*context
	record *ibv.CompChannel
	events Events[*cq]
	uses   int
}

func createChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().Unlock()
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
	return mem.AddressOf(record), 0
}

func destroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno {
	ch := locked[channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.fabric().Unlock()
	if errno := mayGo(ch.fabric(), of, ch, func() bool { return ch.uses > 0 }); errno != 0 {
		return errno
	}
	ch.events.Close()
	ch.context.leave()
	forget(ch.record)
	return 0
}

// getCQEvent is ibv_get_cq_event. It waits, unless the channel's file does not block.
func getCQEvent(of ibv.Ptr[ibv.CompChannel], queue ibv.Ptr[ibv.Ptr[ibv.CQEx]],
	userContext ibv.Ptr[uintptr], w *nap.Waiter) runtime.Errno {
	if queue == 0 || userContext == 0 {
		return syscall.EINVAL
	}
	ch := locked[channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.fabric().Unlock()
	c, errno := ch.events.Wait(&ch.fabric().Core, true, w)
	if errno != 0 {
		return errno
	}
	c.events.Got++
	*queue.Deref() = ibv.PtrTo(&c.record.CQEx)
	*userContext.Deref() = c.record.CQContext
	return 0
}

func ackCQEvents(of ibv.Ptr[ibv.CQ], n uint32) runtime.Errno {
	c := locked[cq](of)
	if c == nil {
		return syscall.EINVAL
	}
	f := c.fabric()
	defer f.Unlock()
	f.Acknowledged(&c.events, n)
	c.record.CompEventsCompleted += n
	return 0
}
