// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// managerPath is the file of the kernel's connection manager. Each event channel opens it.
const managerPath = deviceDir + "rdma_cm"

// eventChannel is a file of the connection manager.
type eventChannel struct {
	backend *Backend
	record  *rdmacm.EventChannel
	fd      int32 // -1 after its end, for identifiers that are left
}

// identifier is an rdma_cm_id. As in librdmacm, its record changes only during calls of the program.
type identifier struct {
	backend *Backend
	record  *rdmacm.CMID
	number  uint32     // by which the kernel knows it
	device  *cmDevice  // nil: not bound to one
	acked   reports    // Backend.mu guards it
	mu      sync.Mutex // guards the following fields

	channel              *eventChannel
	sync                 bool  // it waits for the outcome of its operations, on a channel of its own
	initiator, responder uint8 // initiator_depth and responder_resources of its queue pair
	failed               bool  // its queue pair could not be connected
	ece, peerECE         uapi.RDMAUCMECE
	groups               []*group
	passive              *ibv.QPInitAttr // of rdma_create_ep: for the queue pairs of requests
	addresses            *addrInfoRecord // of rdma_resolve_addrinfo, until the program takes them
}

// managerFunctions returns the exported functions of librdmacm by name, except rsockets.
func (b *Backend) managerFunctions() map[string]runtime.Func {
	all := map[string]runtime.Func{
		"rdma_create_event_channel":  b.createEventChannel,
		"rdma_destroy_event_channel": void(func(a []uint64) { b.destroyEventChannel(a[0]) }),
		"rdma_get_cm_event":          status(b.getEvent),
		"rdma_ack_cm_event":          status(func(a []uint64) syscall.Errno { return b.ackEvent(a[0]) }),

		"rdma_create_id":  status(b.createID),
		"rdma_destroy_id": b.ofID(func(id *identifier, _ []uint64) syscall.Errno { return id.destroy() }),
		"rdma_migrate_id": b.ofID((*identifier).migrate),
		"rdma_create_ep":  status(b.createEP),
		"rdma_destroy_ep": void(b.destroyEP),

		"rdma_bind_addr":      b.ofID((*identifier).bind),
		"rdma_resolve_addr":   b.ofID((*identifier).resolveAddr),
		"rdma_resolve_route":  b.ofID((*identifier).resolveRoute),
		"rdma_listen":         b.ofID((*identifier).listen),
		"rdma_get_request":    b.ofID((*identifier).getRequest),
		"rdma_connect":        b.ofID((*identifier).connect),
		"rdma_accept":         b.ofID((*identifier).accept),
		"rdma_reject":         b.ofID(func(id *identifier, a []uint64) syscall.Errno { return id.reject(a, 0) }),
		"rdma_reject_ece":     b.ofID(func(id *identifier, a []uint64) syscall.Errno { return id.reject(a, vendorOption) }),
		"rdma_establish":      b.ofID(func(id *identifier, _ []uint64) syscall.Errno { return id.establish() }),
		"rdma_notify":         b.ofID((*identifier).notify),
		"rdma_disconnect":     b.ofID(func(id *identifier, _ []uint64) syscall.Errno { return id.disconnect() }),
		"rdma_write_cm_event": b.ofID((*identifier).writeEvent),

		"rdma_join_multicast":    b.ofID((*identifier).joinMulticast),
		"rdma_join_multicast_ex": b.ofID((*identifier).joinMulticastEx),
		"rdma_leave_multicast":   b.ofID((*identifier).leaveMulticast),

		"rdma_create_qp":      b.ofID((*identifier).createQP),
		"rdma_create_qp_ex":   b.ofID((*identifier).createQPEx),
		"rdma_destroy_qp":     b.ofID(func(id *identifier, _ []uint64) syscall.Errno { id.destroyQP(); return 0 }),
		"rdma_create_srq":     b.ofID((*identifier).createSRQ),
		"rdma_create_srq_ex":  b.ofID((*identifier).createSRQEx),
		"rdma_destroy_srq":    b.ofID(func(id *identifier, _ []uint64) syscall.Errno { id.destroySRQ(); return 0 }),
		"rdma_init_qp_attr":   b.ofID((*identifier).initQPAttr),
		"rdma_set_option":     b.ofID((*identifier).setOption),
		"rdma_set_local_ece":  b.ofID((*identifier).setLocalECE),
		"rdma_get_remote_ece": b.ofID((*identifier).remoteECE),
		"rdma_get_src_port":   b.portOf((*rdmacm.Addr).SrcAddr),
		"rdma_get_dst_port":   b.portOf((*rdmacm.Addr).DstAddr),

		"rdma_get_devices":  b.managedDevices,
		"rdma_free_devices": void(func(a []uint64) { b.freeManagedDevices(a[0]) }),
		"rdma_getaddrinfo":  b.getAddrInfo,
		"rdma_freeaddrinfo": void(func(a []uint64) { b.freeAddrInfo(a[0]) }),
		"rdma_event_str":    b.eventName,

		"rdma_resolve_addrinfo": b.ofID((*identifier).resolveAddrInfo),
		"rdma_query_addrinfo":   b.ofID((*identifier).queryAddrInfo),
	}
	for name, f := range all {
		all[name] = guarded(f)
	}
	return all
}

// ofID is status for a function of an identifier, which gets the other arguments.
func (b *Backend) ofID(f func(id *identifier, a []uint64) syscall.Errno) runtime.Func {
	return status(func(a []uint64) syscall.Errno {
		id := find[identifier](b, a[0])
		if id == nil {
			return syscall.EINVAL
		}
		return f(id, a[1:])
	})
}

// manage sends a command of the connection manager's write interface. answer is the field of in for the address of the
// kernel's answer; with nil, the command has none. A kernel that knows fewer fields leaves the others zero.
func manage[Out, In any](b *Backend, ch *eventChannel, number uint32, in *In, answer *uint64) (out Out,
	errno syscall.Errno) {
	type request struct {
		uapi.RDMAUCMCmdHdr
		in  In
		out Out
	}
	r, errno := allocate[request](b) // outside Go's heap, because the kernel gets its address
	if errno != 0 {
		return out, errno
	}
	defer free(b, r)
	r.in = *in
	r.RDMAUCMCmdHdr = uapi.RDMAUCMCmdHdr{Cmd: number, In: uint16(unsafe.Sizeof(r.in))}
	if answer != nil {
		r.Out = uint16(unsafe.Sizeof(out))
		offset := uintptr(unsafe.Pointer(answer)) - uintptr(unsafe.Pointer(in))
		*(*uint64)(unsafe.Add(unsafe.Pointer(&r.in), offset)) = addressOf(&r.out)
	}
	size := int(unsafe.Offsetof(r.in) + unsafe.Sizeof(r.in))
	n, errno := b.kernel.Write(ch.fd, unsafe.Slice((*byte)(unsafe.Pointer(r)), size))
	if errno != 0 {
		return out, errno
	}
	if n != size {
		return out, syscall.EIO
	}
	return r.out, 0
}

// order is manage for commands without an answer, on the identifier's channel.
func order[In any](id *identifier, number uint32, in *In) syscall.Errno {
	_, errno := manage[none](id.backend, id.channelNow(), number, in, nil)
	return errno
}

func (id *identifier) channelNow() *eventChannel {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.channel
}

func (b *Backend) createEventChannel([]uint64) (uint64, runtime.Errno) {
	ch, errno := b.newEventChannel()
	if errno != 0 {
		return 0, errno
	}
	return addressOf(ch.record), 0
}

func (b *Backend) newEventChannel() (*eventChannel, syscall.Errno) {
	record, errno := allocate[rdmacm.EventChannel](b)
	if errno != 0 {
		return nil, errno
	}
	if record.FD, errno = b.kernel.Open(managerPath); errno != 0 {
		free(b, record)
		return nil, errno
	}
	ch := &eventChannel{backend: b, record: record, fd: record.FD}
	b.enter(addressOf(record), ch)
	return ch, 0
}

// destroyEventChannel closes the file. The kernel destroys the channel's remaining identifiers.
func (b *Backend) destroyEventChannel(address uint64) {
	if ch := find[eventChannel](b, address); ch != nil {
		ch.close()
	}
}

func (ch *eventChannel) close() {
	b := ch.backend
	b.forget(addressOf(ch.record))
	b.kernel.Close(ch.fd)
	ch.fd = -1
	free(b, ch.record)
}

// createID is rdma_create_id. Without a channel the identifier is synchronous.
func (b *Backend) createID(a []uint64) syscall.Errno {
	ch := find[eventChannel](b, a[0])
	if a[0] != 0 && ch == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	space, kind := rdmacm.PortSpace(uint32(a[3])), ibv.QPT_RC
	if space == rdmacm.PS_UDP || space == rdmacm.PS_IPOIB {
		kind = ibv.QPT_UD
	}
	id, errno := b.newID(ch, a[2], space, kind)
	if errno != 0 {
		return errno
	}
	*ibv.Ptr[uint64](a[1]).Deref() = addressOf(id.record)
	return 0
}

func (b *Backend) newID(ch *eventChannel, context uint64, space rdmacm.PortSpace, kind ibv.QPType) (*identifier,
	syscall.Errno) {
	id, errno := b.newRecord(ch, context, space, kind)
	if errno != 0 {
		return nil, errno
	}
	in := uapi.RDMAUCMCreateID{Uid: addressOf(id.record), PS: uapi.RDMAUCMPortSpace(space),
		QPType: uapi.IBUverbsQPType(kind)}
	out, errno := manage[uapi.RDMAUCMCreateIDResp](b, id.channel, uapi.RDMA_USER_CM_CMD_CREATE_ID, &in, &in.Response)
	if errno != 0 {
		b.forget(addressOf(id.record))
		id.release()
		return nil, errno
	}
	id.number = out.ID
	return id, 0
}

// newRecord returns an identifier that the kernel does not know yet, or knows as that of a request. Without a channel
// it is synchronous.
func (b *Backend) newRecord(ch *eventChannel, context uint64, space rdmacm.PortSpace, kind ibv.QPType) (id *identifier,
	errno syscall.Errno) {
	id = &identifier{backend: b, channel: ch, sync: ch == nil}
	if id.record, errno = allocate[rdmacm.CMID](b); errno != 0 {
		return nil, errno
	}
	if id.sync {
		if id.channel, errno = b.newEventChannel(); errno != 0 {
			free(b, id.record)
			return nil, errno
		}
	}
	r := id.record
	r.Channel, r.Context, r.PS, r.QPType = ibv.PtrTo(id.channel.record), uintptr(context), space, kind
	b.enter(addressOf(r), id)
	return id, 0
}

func (id *identifier) datagrams() bool { return id.record.QPType == ibv.QPT_UD }

// destroy is rdma_destroy_id, which waits until the program has acknowledged the events that it got.
func (id *identifier) destroy() syscall.Errno {
	b := id.backend
	id.acknowledge()
	in := uapi.RDMAUCMDestroyID{ID: id.number}
	out, errno := manage[uapi.RDMAUCMDestroyIDResp](b, id.channelNow(), uapi.RDMA_USER_CM_CMD_DESTROY_ID, &in,
		&in.Response)
	if errno != 0 {
		return errno
	}
	b.settle(addressOf(id.record), &id.acked, 0, out.EventsReported)
	for _, g := range id.groups {
		b.forget(addressOf(g.record))
		g.free()
	}
	if id.addresses != nil {
		free(b, id.addresses)
	}
	id.release()
	return 0
}

// release frees what belongs to an identifier that no function finds anymore.
func (id *identifier) release() {
	b := id.backend
	if id.device != nil {
		b.putDevice(id.device)
	}
	if id.record.Route.PathRec != 0 {
		free(b, id.record.Route.PathRec.Deref())
	}
	if id.sync {
		id.channel.close()
	}
	free(b, id.record)
}

// migrate is rdma_migrate_id: the identifier's events go to another channel, or to one of its own.
func (id *identifier) migrate(a []uint64) syscall.Errno {
	b := id.backend
	to := find[eventChannel](b, a[0])
	id.mu.Lock()
	from, wasSync := id.channel, id.sync
	id.mu.Unlock()
	if a[0] != 0 && to == nil || a[0] == 0 && wasSync {
		return syscall.EINVAL
	}
	sync, errno := to == nil, syscall.Errno(0)
	if sync {
		if to, errno = b.newEventChannel(); errno != 0 {
			return errno
		}
	}
	in := uapi.RDMAUCMMigrateID{ID: id.number, FD: uint32(from.fd)}
	out, errno := manage[uapi.RDMAUCMMigrateResp](b, to, uapi.RDMA_USER_CM_CMD_MIGRATE_ID, &in, &in.Response)
	if errno != 0 {
		if sync {
			to.close()
		}
		return errno
	}
	id.acknowledge()
	id.mu.Lock()
	id.channel, id.sync = to, sync
	id.mu.Unlock()
	id.record.Channel = ibv.PtrTo(to.record)
	if wasSync {
		from.close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for int32(out.EventsReported-id.acked.async) > 0 {
		b.settled.Wait()
	}
	return 0
}

// cmDevice is a device that the connection manager has opened for all identifiers on it.
type cmDevice struct {
	index   int
	guid    uint64 // as C has it
	context uint64
	pd      uint64 // 0: none
	xrcd    uint64 // 0: none
	uses    int    // identifiers and lists

	ib                   bool
	initiator, responder uint8 // limits of a connection's reads
}

// cmDevices are the open devices. As in librdmacm they stay open, because programs may use a context after they have
// destroyed the identifier or freed the list that it is from.
type cmDevices struct {
	mu  sync.Mutex
	all []*cmDevice
}

// takeDevice returns a device of the kernel, with another use, which putDevice ends.
func (b *Backend) takeDevice(guid uint64, index uint32) (*cmDevice, syscall.Errno) {
	b.managed.mu.Lock()
	defer b.managed.mu.Unlock()
	same := func(d *cmDevice) bool { return d.guid == guid && d.index == int(index) }
	if i := slices.IndexFunc(b.managed.all, same); i >= 0 {
		return b.managed.all[i], b.useDevice(b.managed.all[i])
	}
	all, errno := b.openDevices()
	if errno != 0 {
		return nil, errno
	}
	if i := slices.IndexFunc(all, same); i >= 0 {
		return all[i], b.useDevice(all[i])
	}
	return nil, syscall.ENODEV
}

func (b *Backend) useDevice(d *cmDevice) (errno syscall.Errno) {
	if d.pd == 0 {
		if d.pd, errno = b.allocPD([]uint64{d.context}); errno != 0 {
			return errno
		}
	}
	d.uses++
	return 0
}

func (b *Backend) putDevice(d *cmDevice) {
	b.managed.mu.Lock()
	defer b.managed.mu.Unlock()
	if d.uses--; d.uses > 0 {
		return
	}
	if b.deallocPD(d.pd) == 0 { // not while the program has objects in it
		d.pd = 0
	}
	if d.xrcd != 0 {
		if errno, _ := b.closeXRCD(d.xrcd, 0, 0, 0, 0, 0); errno == 0 {
			d.xrcd = 0
		}
	}
}

// managedXRCD returns the XRC domain of all identifiers on a device.
func (b *Backend) managedXRCD(d *cmDevice) (uint64, syscall.Errno) {
	if d == nil {
		return 0, syscall.EINVAL
	}
	b.managed.mu.Lock()
	defer b.managed.mu.Unlock()
	if d.xrcd != 0 {
		return d.xrcd, 0
	}
	attr, errno := allocate[ibv.XRCDInitAttr](b)
	if errno != 0 {
		return 0, errno
	}
	defer free(b, attr)
	*attr = ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1, Oflags: syscall.O_CREAT}
	d.xrcd, errno = b.openXRCD(d.context, addressOf(attr), 0, 0, 0, 0)
	return d.xrcd, errno
}

// openDevices opens the devices of the kernel that are not open yet, and returns all that could be opened. It closes
// those that are gone and not used.
func (b *Backend) openDevices() (all []*cmDevice, errno syscall.Errno) {
	list, errno := b.deviceList([]uint64{0})
	if errno != 0 {
		return nil, errno
	}
	defer b.freeDeviceList(list)
	var last syscall.Errno
	for _, of := range find[deviceList](b, list).devices {
		guid := wireGUID(of.NodeGUID)
		i := slices.IndexFunc(b.managed.all, func(d *cmDevice) bool { return d.index == of.Index && d.guid == guid })
		if i >= 0 {
			all = append(all, b.managed.all[i])
			continue
		}
		d := &cmDevice{index: of.Index, guid: guid}
		if errno := b.openManaged(d, of); errno != 0 {
			last = errno
			continue
		}
		all = append(all, d)
	}
	for _, d := range b.managed.all {
		if slices.Contains(all, d) {
			continue
		}
		if d.uses > 0 || d.pd != 0 || d.xrcd != 0 {
			all = append(all, d)
			continue
		}
		b.closeDevice(d.context)
	}
	b.managed.all = all
	if len(all) == 0 && last != 0 {
		return nil, last
	}
	return slices.Clone(all), 0
}

func (b *Backend) openManaged(d *cmDevice, of *device) (errno syscall.Errno) {
	if d.context, errno = b.openDevice([]uint64{addressOf(of.record)}); errno != 0 {
		return errno
	}
	var attr ibv.DeviceAttr
	if errno := find[context](b, d.context).queryDevice(&attr); errno != 0 {
		b.closeDevice(d.context)
		return errno
	}
	d.ib = of.record.TransportType == ibv.TRANSPORT_IB
	d.initiator, d.responder = uint8(min(attr.MaxQPInitRdAtom, 255)), uint8(min(attr.MaxQPRdAtom, 255))
	return 0
}

// managedList is a result of rdma_get_devices.
type managedList struct{ devices []*cmDevice }

func (b *Backend) managedDevices(a []uint64) (uint64, runtime.Errno) {
	b.managed.mu.Lock()
	all, errno := b.openDevices()
	l := &managedList{}
	for i := 0; errno == 0 && i < len(all); i++ {
		if errno = b.useDevice(all[i]); errno == 0 {
			l.devices = append(l.devices, all[i])
		}
	}
	b.managed.mu.Unlock()
	var memory unsafe.Pointer
	if errno == 0 {
		var err error
		if memory, err = b.space.Alloc(8 * (len(all) + 1)); err != nil {
			errno = syscall.ENOMEM
		}
	}
	if errno != 0 {
		for _, d := range l.devices {
			b.putDevice(d)
		}
		return 0, errno
	}
	for i, d := range all {
		unsafe.Slice((*uint64)(memory), len(all))[i] = d.context
	}
	if a[0] != 0 {
		*ibv.Ptr[int32](a[0]).Deref() = int32(len(all))
	}
	b.enter(uint64(uintptr(memory)), l)
	return uint64(uintptr(memory)), 0
}

func (b *Backend) freeManagedDevices(address uint64) {
	l := find[managedList](b, address)
	if l == nil {
		return
	}
	b.forget(address)
	for _, d := range l.devices {
		b.putDevice(d)
	}
	b.space.Free(unsafe.Pointer(ibv.Ptr[byte](address).Deref()))
}
