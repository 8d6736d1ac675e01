// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// Channel is a completion channel.
type Channel struct {
	*Context
	record *ibv.CompChannel
	Events resource.Events[*cq]
	uses   int
}

func CreateChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[Context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.Fabric().Unlock()
	record, errno := allocate[ibv.CompChannel](c.Device)
	if errno != 0 {
		return 0, errno
	}
	ch := &Channel{Context: c, record: record}
	if errno := ch.Events.Open(); errno != 0 {
		Forget(record)
		return 0, errno
	}
	*record = ibv.CompChannel{Context: c.Address(), FD: ch.Events.Descriptor()}
	c.uses++
	Enter(record, ch)
	return mem.AddressOf(record), 0
}

func DestroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno {
	ch := locked[Channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.Fabric().Unlock()
	if errno := mayGo(ch.Fabric(), of, ch, func() bool { return ch.uses > 0 }); errno != 0 {
		return errno
	}
	ch.Events.Close()
	ch.Context.leave()
	Forget(ch.record)
	return 0
}

// getCQEvent is ibv_get_cq_event. It waits, unless the channel's file does not block.
func getCQEvent(of ibv.Ptr[ibv.CompChannel], queue ibv.Ptr[ibv.Ptr[ibv.CQEx]],
	userContext ibv.Ptr[uintptr], w *nap.Waiter) runtime.Errno {
	if queue == 0 || userContext == 0 {
		return syscall.EINVAL
	}
	ch := locked[Channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.Fabric().Unlock()
	c, errno := ch.Events.Wait(&ch.Fabric().Core, true, w)
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
	f := c.Fabric()
	defer f.Unlock()
	f.Acknowledged(&c.events, n)
	c.record.CompEventsCompleted += n
	return 0
}
