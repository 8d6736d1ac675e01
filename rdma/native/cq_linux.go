// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// channel is a completion channel.
type channel struct {
	context *context
	record  *ibv.CompChannel
}

func (b *Backend) createChannel(a []uint64) (uint64, runtime.Errno) {
	c := find[context](b, a[0])
	if c == nil {
		return 0, syscall.EINVAL
	}
	out, errno := write[uapi.IBUverbsCreateCompChannelResp](c, uapi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
		&uapi.IBUverbsCreateCompChannel{})
	if errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.CompChannel](b)
	if errno != 0 {
		b.kernel.Close(int32(out.FD))
		return 0, errno
	}
	record.Context, record.FD = c.pointer(), int32(out.FD)
	c.uses.Add(1)
	b.enter(addressOf(record), &channel{context: c, record: record})
	return addressOf(record), 0
}

func (b *Backend) destroyChannel(address uint64) syscall.Errno {
	ch := find[channel](b, address)
	if ch == nil {
		return syscall.EINVAL
	}
	b.mu.Lock()
	if ch.record.Refcnt > 0 {
		b.mu.Unlock()
		return syscall.EBUSY
	}
	delete(b.objects, address)
	b.mu.Unlock()
	b.kernel.Close(ch.record.FD)
	ch.context.uses.Add(-1)
	free(b, ch.record)
	return 0
}

// reports counts events that a program has acknowledged. Backend.mu guards it.
type reports struct{ completions, async uint32 }

// acked returns the counters that an object of any kind has, or nil.
func acked(object any) *reports {
	switch o := object.(type) {
	case *completionQueue:
		return &o.acked
	case *queuePair:
		return &o.acked
	case *sharedQueue:
		return &o.acked
	}
	return nil
}

// settle waits until the program has acknowledged all events that the kernel reported, and forgets the object.
func (b *Backend) settle(address uint64, of *reports, completions, async uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for int32(completions-of.completions) > 0 || int32(async-of.async) > 0 {
		b.settled.Wait()
	}
	delete(b.objects, address)
}

func (b *Backend) getAsyncEvent(a []uint64) syscall.Errno {
	return b.ofContext(a[0], func(c *context) syscall.Errno {
		if a[1] == 0 {
			return syscall.EINVAL
		}
		var event [unsafe.Sizeof(uapi.IBUverbsAsyncEventDesc{})]byte
		n, errno := b.kernel.Read(c.asyncFD, event[:])
		if errno != 0 {
			return errno
		}
		if n != len(event) {
			return syscall.EIO
		}
		to := ibv.Ptr[ibv.AsyncEvent](a[1]).Deref()
		*to = ibv.AsyncEvent{EventType: ibv.EventType(binary.NativeEndian.Uint32(event[8:]))}
		element := binary.NativeEndian.Uint64(event[:])
		switch known, isObject := b.subject(to.EventType, element); {
		case known:
			*to.Element.QP() = ibv.Ptr[ibv.QP](element)
		case isObject:
			return syscall.EIO
		default:
			*to.Element.PortNum() = int32(element)
		}
		return 0
	})
}

// subject reports whether there is an object at an address of the kind that events of a type have, and whether they
// have one at all.
func (b *Backend) subject(kind ibv.EventType, address uint64) (known, isObject bool) {
	switch kind {
	case ibv.EVENT_CQ_ERR:
		return find[completionQueue](b, address) != nil, true
	case ibv.EVENT_QP_FATAL, ibv.EVENT_QP_REQ_ERR, ibv.EVENT_QP_ACCESS_ERR, ibv.EVENT_COMM_EST, ibv.EVENT_SQ_DRAINED,
		ibv.EVENT_PATH_MIG, ibv.EVENT_PATH_MIG_ERR, ibv.EVENT_QP_LAST_WQE_REACHED:
		return find[queuePair](b, address) != nil, true
	case ibv.EVENT_SRQ_ERR, ibv.EVENT_SRQ_LIMIT_REACHED:
		return find[sharedQueue](b, address) != nil, true
	}
	return false, false
}

func (b *Backend) ackAsyncEvent(a []uint64) {
	if a[0] == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := acked(b.objects[uint64(*ibv.Ptr[ibv.AsyncEvent](a[0]).Deref().Element.QP())]); r != nil {
		r.async++
		b.settled.Broadcast()
	}
}

// completionQueue is a completion queue.
type completionQueue struct {
	context *context
	record  *cqRecord
	channel *channel // or nil
	acked   reports
	own     driver.CQ
	path    driver.CQPath

	reads   sync.Mutex // from start_poll to end_poll; guards the following fields
	reading bool
	current [1]ibv.WC
}

type cqRecord struct {
	ibv.CQEx // begins with an ibv.CQ
	index    uint32
}

func (r *cqRecord) cq() *ibv.CQ { return (*ibv.CQ)(unsafe.Pointer(r)) }

// cqAt returns the queue whose record is at an address that a slot was called with, or nil after its destruction.
func (b *Backend) cqAt(address uint64) *completionQueue {
	q := b.cqs.get(ibv.Ptr[cqRecord](address).Deref().index)
	if q == nil || addressOf(q.record) != address {
		return nil
	}
	return q
}

func (b *Backend) createCQ(a []uint64) (uint64, runtime.Errno) {
	c := find[context](b, a[0])
	if c == nil || int32(a[1]) < 1 {
		return 0, syscall.EINVAL
	}
	return b.makeCQ(c, &ibv.CQInitAttrEx{CQE: uint32(a[1]), CQContext: uintptr(a[2]),
		Channel: ibv.Ptr[ibv.CompChannel](a[3]), CompVector: uint32(a[4])}, c.own.CreateCQ)
}

func (b *Backend) makeCQ(c *context, attr *ibv.CQInitAttrEx, create driver.CreateCQ) (uint64, syscall.Errno) {
	q := &completionQueue{context: c}
	fd := int32(-1)
	if attr.Channel != 0 {
		if q.channel = find[channel](b, uint64(attr.Channel)); q.channel == nil || q.channel.context != c {
			return 0, syscall.EINVAL
		}
		fd = q.channel.record.FD
	}
	record, errno := allocate[cqRecord](b)
	if errno != 0 {
		return 0, errno
	}
	q.record = record
	in := uapi.IBUverbsCreateCQ{UserHandle: addressOf(record), CQE: attr.CQE, CompVector: attr.CompVector,
		CompChannel: fd}
	var out uapi.IBUverbsCreateCQResp
	var sent bool
	fail := func() {
		if sent {
			c.destroyCQ(out.CQHandle)
		}
		if q.own != nil {
			q.own.Free()
		}
		free(b, record)
	}
	q.own, errno = create(&in, &out, command(c, uapi.IB_USER_VERBS_CMD_CREATE_CQ, &in, &out, &sent))
	if errno != 0 {
		fail()
		return 0, errno
	}
	*record.cq() = ibv.CQ{Context: c.pointer(), CQContext: attr.CQContext, Handle: out.CQHandle, CQE: int32(out.CQE)}
	if q.channel != nil {
		record.Channel = ibv.PtrTo(q.channel.record)
	}
	if q.path, errno = q.own.Path(record.cq()); errno != 0 {
		fail()
		return 0, errno
	}
	if q.channel != nil {
		b.mu.Lock()
		q.channel.record.Refcnt++
		b.mu.Unlock()
	}
	record.index = b.cqs.add(q)
	c.uses.Add(1)
	b.enter(addressOf(record), q)
	return addressOf(record), 0
}

func (c *context) destroyCQ(handle uint32) (uapi.IBUverbsDestroyCQResp, syscall.Errno) {
	return write[uapi.IBUverbsDestroyCQResp](c, uapi.IB_USER_VERBS_CMD_DESTROY_CQ,
		&uapi.IBUverbsDestroyCQ{CQHandle: handle})
}

func (b *Backend) destroyCQ(address uint64) syscall.Errno {
	q := find[completionQueue](b, address)
	if q == nil {
		return syscall.EINVAL
	}
	c := q.context
	var out uapi.IBUverbsDestroyCQResp
	if errno := q.own.End(func() (errno syscall.Errno) {
		out, errno = c.destroyCQ(q.record.Handle)
		return errno
	}); errno != 0 {
		return errno
	}
	b.settle(address, &q.acked, out.CompEventsReported, out.AsyncEventsReported)
	b.cqs.remove(q.record.index)
	q.own.Free()
	if q.channel != nil {
		b.mu.Lock()
		q.channel.record.Refcnt--
		b.mu.Unlock()
	}
	c.uses.Add(-1)
	free(b, q.record)
	return 0
}

func (b *Backend) resizeCQ(a []uint64) syscall.Errno {
	q := find[completionQueue](b, a[0])
	if q == nil {
		return syscall.EINVAL
	}
	c := q.context
	in := uapi.IBUverbsResizeCQ{CQHandle: q.record.Handle, CQE: uint32(a[1])}
	var out uapi.IBUverbsResizeCQResp
	var sent bool
	errno := q.own.Resize(&in, &out, command(c, uapi.IB_USER_VERBS_CMD_RESIZE_CQ, &in, &out, &sent))
	if errno == 0 {
		q.record.CQE = int32(out.CQE)
	}
	return errno
}

func (b *Backend) pollCQ(address, n, wcs, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.cqAt(address)
	if q == nil || int32(n) < 0 {
		return ^uint64(0), syscall.EINVAL
	}
	return uint64(int64(q.path.Poll(q.record.cq(), listAt[ibv.WC](wcs, int(int32(n)))))), 0
}

func (b *Backend) reqNotifyCQ(address, solicited, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q := b.cqAt(address)
	if q == nil {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(q.path.Arm(q.record.cq(), uint32(solicited) != 0)), 0
}

// CountsEvents reports whether requests for an event of a completion queue carry the number of events that were read,
// as on mlx5. Such a device sends no event until the previous one was read.
func (b *Backend) CountsEvents(cq *ibv.CQ) bool {
	q := find[completionQueue](b, addressOf(cq))
	if q == nil {
		return false
	}
	_, counts := q.path.(driver.EventCounter)
	return counts
}

func (b *Backend) getCQEvent(a []uint64) syscall.Errno {
	ch := find[channel](b, a[0])
	if ch == nil || a[1] == 0 || a[2] == 0 {
		return syscall.EINVAL
	}
	var event [unsafe.Sizeof(uapi.IBUverbsCompEventDesc{})]byte
	n, errno := b.kernel.Read(ch.record.FD, event[:])
	if errno != 0 {
		return errno
	}
	address := binary.NativeEndian.Uint64(event[:])
	q := find[completionQueue](b, address)
	if n != len(event) || q == nil {
		return syscall.EIO
	}
	if counter, ok := q.path.(driver.EventCounter); ok {
		counter.Event()
	}
	*ibv.Ptr[uint64](a[1]).Deref(), *ibv.Ptr[uintptr](a[2]).Deref() = address, q.record.CQContext
	return 0
}

func (b *Backend) ackCQEvents(a []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q, ok := b.objects[a[0]].(*completionQueue); ok {
		q.acked.completions += uint32(a[1])
		b.settled.Broadcast()
	}
}
