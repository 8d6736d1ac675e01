// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// report is an event that a program has not acknowledged yet.
type report struct {
	record *eventRecord
	id     *identifier
	group  *group // or nil; the kernel counts its events for the identifier, too
}

// eventRecord is C's record of an event, with its private data.
type eventRecord struct {
	rdmacm.CMEvent
	private [256]byte
}

// getEvent is rdma_get_cm_event. It waits unless the channel's file is nonblocking.
func (b *Backend) getEvent(a []uint64) syscall.Errno {
	ch := find[eventChannel](b, a[0])
	if ch == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	r, errno := ch.next()
	if errno == 0 {
		*ibv.Ptr[uint64](a[1]).Deref() = addressOf(r)
	}
	return errno
}

// next takes an event from the kernel, and does the library's part of handling it.
func (ch *eventChannel) next() (*rdmacm.CMEvent, syscall.Errno) {
	b := ch.backend
	record, errno := allocate[eventRecord](b)
	if errno != 0 {
		return nil, errno
	}
	for {
		var in uapi.RDMAUCMGetEvent
		e, errno := manage[uapi.RDMAUCMEventResp](b, ch, uapi.RDMA_USER_CM_CMD_GET_EVENT, &in, &in.Response)
		if errno != 0 {
			free(b, record)
			return nil, errno
		}
		r := b.take(record, &e)
		if r == nil {
			continue
		}
		b.enter(addressOf(&record.CMEvent), r)
		return &record.CMEvent, 0
	}
}

// take fills in the record of an event. It returns nil for an event that programs do not get.
func (b *Backend) take(record *eventRecord, e *uapi.RDMAUCMEventResp) *report {
	kind := rdmacm.CMEventType(e.Event)
	r := &report{record: record}
	record.CMEvent = rdmacm.CMEvent{Event: kind, Status: int32(e.Status)}
	if kind == rdmacm.CM_EVENT_MULTICAST_JOIN || kind == rdmacm.CM_EVENT_MULTICAST_ERROR {
		g := find[group](b, e.Uid)
		if g == nil {
			return nil
		}
		r.id, r.group, record.ID = g.id, g, ibv.PtrTo(g.id.record)
		record.setUD(e.Param.UD())
		record.Param.UD().PrivateData, record.Param.UD().PrivateDataLen = uintptr(g.context), 0
		if kind == rdmacm.CM_EVENT_MULTICAST_JOIN && record.Status == 0 {
			if g.attach(&e.Param.UD().AHAttr) != 0 {
				record.Event, record.Status = rdmacm.CM_EVENT_MULTICAST_ERROR, -1 // as in librdmacm
			}
		}
		return r
	}
	id := find[identifier](b, e.Uid) // an accepted request has none before rdma_accept, and no events for programs
	if id == nil {
		return nil
	}
	r.id, record.ID = id, ibv.PtrTo(id.record)
	fail := func(errno syscall.Errno, kind rdmacm.CMEventType) {
		if errno != 0 {
			record.Event, record.Status = kind, -int32(errno)
		}
	}
	switch kind {
	case rdmacm.CM_EVENT_ADDR_RESOLVED:
		fail(id.queryResolved(), rdmacm.CM_EVENT_ADDR_ERROR)
		return r
	case rdmacm.CM_EVENT_ROUTE_RESOLVED:
		fail(id.queryPaths(), rdmacm.CM_EVENT_ROUTE_ERROR)
		return r
	case rdmacm.CM_EVENT_INTERNAL:
		record.Event = rdmacm.CM_EVENT_ADDRINFO_RESOLVED
		return r
	case rdmacm.CM_EVENT_USER:
		*record.Param.Arg() = *(*uint64)(unsafe.Pointer(e.Param.Arg32()))
		return r
	}
	if id.datagrams() {
		record.setUD(e.Param.UD())
	} else {
		record.setConn(e.Param.Conn())
	}
	switch kind {
	case rdmacm.CM_EVENT_CONNECT_REQUEST:
		child, errno := id.admit(e)
		if errno != 0 {
			b.acknowledged(r)
			return nil
		}
		record.ID, record.ListenID = ibv.PtrTo(child.record), ibv.PtrTo(id.record)
	case rdmacm.CM_EVENT_CONNECT_RESPONSE:
		id.mu.Lock()
		id.peerECE = e.ECE
		id.mu.Unlock()
		if id.record.QP == 0 { // the program connects its own
			break
		}
		record.Event = rdmacm.CM_EVENT_ESTABLISHED
		if errno := id.finish(); errno != 0 {
			fail(errno, rdmacm.CM_EVENT_CONNECT_ERROR)
			id.mu.Lock()
			id.failed = true
			id.mu.Unlock()
		}
	case rdmacm.CM_EVENT_REJECTED, rdmacm.CM_EVENT_DISCONNECTED:
		id.mu.Lock()
		failed := id.failed
		id.mu.Unlock()
		if failed { // the program knows that since finish
			b.acknowledged(r)
			return nil
		}
		if kind == rdmacm.CM_EVENT_REJECTED {
			id.toError()
		}
	}
	return r
}

func (r *eventRecord) setConn(p *uapi.RDMAUCMConnParam) {
	to := r.Param.Conn()
	*to = rdmacm.ConnParam{PrivateDataLen: p.PrivateDataLen, ResponderResources: p.ResponderResources,
		InitiatorDepth: p.InitiatorDepth, FlowControl: p.FlowControl, RetryCount: p.RetryCount,
		RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ, QPNum: p.QPNum}
	to.PrivateData = r.setPrivate(p.PrivateData[:p.PrivateDataLen])
}

func (r *eventRecord) setUD(p *uapi.RDMAUCMUDParam) {
	to := r.Param.UD()
	*to = rdmacm.UDParam{PrivateDataLen: p.PrivateDataLen, AHAttr: fromAHAttr(&p.AHAttr), QPNum: p.QPNum, QKey: p.QKey}
	to.PrivateData = r.setPrivate(p.PrivateData[:p.PrivateDataLen])
}

// setPrivate returns the address of a copy, or 0 for no data.
func (r *eventRecord) setPrivate(data []byte) uintptr {
	if copy(r.private[:], data) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(&r.private))
}

// admit returns the identifier of a request to the listener.
func (id *identifier) admit(e *uapi.RDMAUCMEventResp) (child *identifier, errno syscall.Errno) {
	b := id.backend
	id.mu.Lock()
	ch, sync := id.channel, id.sync
	id.mu.Unlock()
	from := ch
	if sync {
		ch = nil
	}
	child, errno = b.newRecord(ch, uint64(id.record.Context), id.record.PS, id.record.QPType)
	if errno != 0 {
		in := uapi.RDMAUCMDestroyID{ID: e.ID}
		manage[uapi.RDMAUCMDestroyIDResp](b, from, uapi.RDMA_USER_CM_CMD_DESTROY_ID, &in, &in.Response)
		return nil, errno
	}
	child.number, child.peerECE = e.ID, e.ECE
	if !id.datagrams() {
		child.initiator, child.responder = e.Param.Conn().InitiatorDepth, e.Param.Conn().ResponderResources
	}
	if sync {
		in := uapi.RDMAUCMMigrateID{ID: e.ID, FD: uint32(from.fd)}
		_, errno = manage[uapi.RDMAUCMMigrateResp](b, child.channel, uapi.RDMA_USER_CM_CMD_MIGRATE_ID, &in, &in.Response)
	}
	if errno == 0 {
		errno = child.queryResolved()
	}
	if errno == 0 {
		errno = child.queryPaths()
	}
	if errno != 0 {
		child.destroy()
		return nil, errno
	}
	return child, 0
}

// finish connects the queue pair of the side that asked, and confirms the answer.
func (id *identifier) finish() syscall.Errno {
	errno := id.ready(rdmacm.MAX_INIT_DEPTH, rdmacm.MAX_RESP_RES)
	if errno == 0 {
		errno = id.confirm()
	}
	if errno != 0 {
		id.toError()
	}
	return errno
}

func (b *Backend) acknowledged(r *report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.id.acked.async++
	if r.group != nil {
		r.group.acked.async++
	}
	b.settled.Broadcast()
}

func (b *Backend) ackEvent(address uint64) syscall.Errno {
	b.mu.Lock()
	r, ok := b.objects[address].(*report)
	if ok {
		delete(b.objects, address)
	}
	b.mu.Unlock()
	if !ok {
		return syscall.EINVAL
	}
	free(b, r.record)
	b.acknowledged(r)
	return 0
}

// acknowledge acknowledges the event that a synchronous identifier keeps.
func (id *identifier) acknowledge() {
	if event := id.record.Event; event != 0 {
		id.record.Event = 0
		id.backend.ackEvent(uint64(event))
	}
}

// complete waits for the outcome of an operation if the identifier is synchronous.
func (id *identifier) complete() syscall.Errno {
	id.mu.Lock()
	ch, sync := id.channel, id.sync
	id.mu.Unlock()
	if !sync {
		return 0
	}
	id.acknowledge()
	e, errno := ch.next()
	if errno != 0 {
		return errno
	}
	id.record.Event = ibv.PtrTo(e)
	return outcome(e)
}

func outcome(e *rdmacm.CMEvent) syscall.Errno {
	switch {
	case e.Status == 0:
		return 0
	case e.Event == rdmacm.CM_EVENT_REJECTED:
		return syscall.ECONNREFUSED
	}
	return syscall.Errno(max(e.Status, -e.Status))
}

// getRequest is rdma_get_request.
func (id *identifier) getRequest(a []uint64) syscall.Errno {
	b := id.backend
	id.mu.Lock()
	ch, sync, passive := id.channel, id.sync, id.passive
	id.mu.Unlock()
	if !sync || a[0] == 0 {
		return syscall.EINVAL
	}
	id.acknowledge()
	e, errno := ch.next()
	if errno != 0 {
		return errno
	}
	if errno = outcome(e); errno == 0 && e.Event != rdmacm.CM_EVENT_CONNECT_REQUEST {
		errno = syscall.EINVAL
	}
	child := find[identifier](b, uint64(e.ID))
	if errno == 0 && child == nil {
		errno = syscall.EINVAL
	}
	if errno == 0 && passive != nil {
		own := *passive
		errno = child.createPlainQP(uint64(id.record.PD), &own)
	}
	if errno != 0 {
		id.record.Event = ibv.PtrTo(e)
		return errno
	}
	child.record.Event = ibv.PtrTo(e)
	*ibv.Ptr[uint64](a[0]).Deref() = uint64(e.ID)
	return 0
}

// writeEvent is rdma_write_cm_event.
func (id *identifier) writeEvent(a []uint64) syscall.Errno {
	if rdmacm.CMEventType(uint32(a[0])) != rdmacm.CM_EVENT_USER {
		return syscall.EINVAL
	}
	return id.writeAny(rdmacm.CM_EVENT_USER, uint32(a[1]), a[2])
}

func (id *identifier) writeAny(kind rdmacm.CMEventType, status uint32, arg uint64) syscall.Errno {
	in := uapi.RDMAUCMWriteCMEvent{ID: id.number, Event: uint32(kind), Status: status}
	*in.Param.Arg() = arg
	errno := order(id, uapi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, &in)
	if errno == syscall.EINVAL { // before Linux 7.2 there was no such command
		errno = syscall.EOPNOTSUPP
	}
	return errno
}

func (b *Backend) eventName(a []uint64) (uint64, runtime.Errno) {
	kind := rdmacm.CMEventType(uint32(a[0]))
	name := "UNKNOWN EVENT"
	if kind <= rdmacm.CM_EVENT_USER {
		name = kind.String()
	} else {
		kind = ^rdmacm.CMEventType(0)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := b.eventNames[kind]; at != 0 {
		return at, 0
	}
	memory, err := b.space.Alloc(len(name) + 1)
	if err != nil {
		return 0, syscall.ENOMEM
	}
	copy(unsafe.Slice((*byte)(memory), len(name)), name)
	b.eventNames[kind] = uint64(uintptr(memory))
	return b.eventNames[kind], 0
}

// group is a multicast group that an identifier has joined.
type group struct {
	id       *identifier
	record   *uint64 // its address names the group in events
	number   uint32
	address  rdmacm.SockaddrStorage
	context  uint64
	sendOnly bool
	acked    reports  // Backend.mu guards it
	attached *ibv.GID // in memory of the Backend, once the group has an address
	lid      uint16
}

func (id *identifier) joinMulticast(a []uint64) syscall.Errno {
	return id.join(a[0], rdmacm.MC_JOIN_FLAG_FULLMEMBER, a[1])
}

func (id *identifier) joinMulticastEx(a []uint64) syscall.Errno {
	if a[0] == 0 {
		return syscall.EINVAL
	}
	const needs = rdmacm.CM_JOIN_MC_ATTR_ADDRESS | rdmacm.CM_JOIN_MC_ATTR_JOIN_FLAGS
	attr := ibv.Ptr[rdmacm.CMJoinMCAttrEx](a[0]).Deref()
	switch {
	case attr.CompMask >= rdmacm.CM_JOIN_MC_ATTR_RESERVED:
		return syscall.EOPNOTSUPP
	case attr.CompMask != needs || attr.JoinFlags >= rdmacm.MC_JOIN_FLAG_RESERVED:
		return syscall.EINVAL
	}
	return id.join(uint64(attr.Addr), attr.JoinFlags, a[1])
}

func (id *identifier) join(address uint64, flags rdmacm.CMMCJoinFlags, context uint64) (errno syscall.Errno) {
	b := id.backend
	g := &group{id: id, context: context, sendOnly: flags == rdmacm.MC_JOIN_FLAG_SENDONLY_FULLMEMBER}
	size := readSockaddr(&g.address, address)
	if size == 0 {
		return syscall.EINVAL
	}
	if g.record, errno = allocate[uint64](b); errno != 0 {
		return errno
	}
	if g.attached, errno = allocate[ibv.GID](b); errno != 0 {
		free(b, g.record)
		return errno
	}
	b.enter(addressOf(g.record), g)
	id.mu.Lock()
	id.groups = append(id.groups, g)
	id.mu.Unlock()
	in := uapi.RDMAUCMJoinMcast{Uid: addressOf(g.record), ID: id.number, AddrSize: size,
		JoinFlags: uapi.RDMAMCJoinFlags(flags), Addr: kernelAddress(&g.address)}
	out, errno := manage[uapi.RDMAUCMCreateIDResp](b, id.channelNow(), uapi.RDMA_USER_CM_CMD_JOIN_MCAST, &in,
		&in.Response)
	if errno != 0 {
		id.forgetGroup(g)
		b.forget(addressOf(g.record))
		g.free()
		return errno
	}
	id.mu.Lock()
	g.number = out.ID
	id.mu.Unlock()
	return id.complete()
}

func (g *group) free() {
	free(g.id.backend, g.record)
	free(g.id.backend, g.attached)
}

func (id *identifier) forgetGroup(g *group) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.groups = slices.DeleteFunc(id.groups, func(other *group) bool { return other == g })
}

// attach attaches the identifier's queue pair, if any, to the group that the kernel has found.
func (g *group) attach(to *uapi.IBUverbsAHAttr) syscall.Errno {
	id := g.id
	id.mu.Lock()
	*g.attached.Raw(), g.lid = to.GRH.DGID, to.DLID
	id.mu.Unlock()
	if id.record.QP == 0 || g.sendOnly {
		return 0
	}
	return id.backend.mcast([]uint64{uint64(id.record.QP), addressOf(g.attached), uint64(to.DLID)}, true)
}

// leaveMulticast is rdma_leave_multicast, which waits until the program has acknowledged the group's events.
func (id *identifier) leaveMulticast(a []uint64) syscall.Errno {
	b := id.backend
	var address rdmacm.SockaddrStorage
	if readSockaddr(&address, a[0]) == 0 {
		return syscall.EINVAL
	}
	id.mu.Lock()
	i := slices.IndexFunc(id.groups, func(g *group) bool { return g.address == address })
	if i < 0 {
		id.mu.Unlock()
		return syscall.EADDRNOTAVAIL
	}
	g := id.groups[i]
	id.groups = slices.Delete(id.groups, i, i+1)
	number, lid := g.number, g.lid
	id.mu.Unlock()
	if id.record.QP != 0 && !g.sendOnly {
		b.mcast([]uint64{uint64(id.record.QP), addressOf(g.attached), uint64(lid)}, false)
	}
	in := uapi.RDMAUCMDestroyID{ID: number}
	out, errno := manage[uapi.RDMAUCMDestroyIDResp](b, id.channelNow(), uapi.RDMA_USER_CM_CMD_LEAVE_MCAST, &in,
		&in.Response)
	if errno != 0 {
		id.mu.Lock()
		defer id.mu.Unlock()
		id.groups = append(id.groups, g)
		return errno
	}
	b.settle(addressOf(g.record), &g.acked, 0, out.EventsReported)
	g.free()
	return 0
}
