// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// addressSize returns the size of a C address, or 0 if its family is unknown.
func addressSize(family uint16) uint16 {
	switch family {
	case syscall.AF_INET:
		return uint16(unsafe.Sizeof(rdmacm.SockaddrIn{}))
	case syscall.AF_INET6:
		return uint16(unsafe.Sizeof(rdmacm.SockaddrIn6{}))
	case rdmacm.AF_IB:
		return uint16(unsafe.Sizeof(rdmacm.SockaddrIB{}))
	}
	return 0
}

// readSockaddr copies the address in an argument and returns its size, or 0 if there is none.
func readSockaddr(to *rdmacm.SockaddrStorage, from uint64) uint16 {
	if from == 0 {
		return 0
	}
	size := addressSize(ibv.Ptr[rdmacm.Sockaddr](from).Deref().SAFamily)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), size), listAt[byte](from, int(size)))
	return size
}

func kernelAddress(a *rdmacm.SockaddrStorage) uapi.KernelSockaddrStorage {
	return *(*uapi.KernelSockaddrStorage)(unsafe.Pointer(a))
}

// setAddress stores an address of the kernel, if it has one.
func setAddress(to *rdmacm.SockaddrStorage, from *uapi.KernelSockaddrStorage, size uint16) {
	if size != 0 {
		*to = *(*rdmacm.SockaddrStorage)(unsafe.Pointer(from))
	}
}

// portOf is rdma_get_src_port or rdma_get_dst_port.
func (b *Backend) portOf(of func(*rdmacm.Addr) *rdmacm.Sockaddr) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		id := find[identifier](b, a[0])
		if id == nil {
			return 0, 0
		}
		s := of(&id.record.Route.Addr)
		switch s.SAFamily {
		case syscall.AF_INET, syscall.AF_INET6: // the port is at the same place
			return uint64((*rdmacm.SockaddrIn)(unsafe.Pointer(s)).SinPort), 0
		case rdmacm.AF_IB:
			// The port is the last part of the service ID.
			service := (*[8]byte)(unsafe.Pointer(&(*rdmacm.SockaddrIB)(unsafe.Pointer(s)).SibSID))
			return uint64(binary.NativeEndian.Uint16(service[6:])), 0
		}
		return 0, 0
	}
}

func (id *identifier) query(option uint32) (uapi.RDMAUCMQueryAddrResp, syscall.Errno) {
	in := uapi.RDMAUCMQuery{ID: id.number, Option: option}
	return manage[uapi.RDMAUCMQueryAddrResp](id.backend, id.channelNow(), uapi.RDMA_USER_CM_CMD_QUERY, &in, &in.Response)
}

// queryAddress updates the addresses and the device in the record.
func (id *identifier) queryAddress() syscall.Errno {
	q, errno := id.query(uapi.RDMA_USER_CM_QUERY_ADDR)
	if errno != 0 {
		return errno
	}
	r := id.record
	setAddress(r.Route.Addr.SrcStorage(), &q.SrcAddr, q.SrcSize)
	setAddress(r.Route.Addr.DstStorage(), &q.DstAddr, q.DstSize)
	if q.NodeGUID == 0 {
		return 0
	}
	if id.device == nil {
		if id.device, errno = id.backend.takeDevice(q.NodeGUID, q.IBDevIndex); errno != 0 {
			return errno
		}
		r.Verbs, r.PD = ibv.Ptr[ibv.Context](id.device.context), ibv.Ptr[ibv.PD](id.device.pd)
	}
	r.PortNum = q.PortNum
	r.Route.Addr.Addr.IBAddr().PKey = ibv.BE16(q.PKey)
	return 0
}

// queryResolved updates the addresses, the device and the GIDs in the record.
func (id *identifier) queryResolved() syscall.Errno {
	if errno := id.queryAddress(); errno != 0 || id.device == nil || !id.device.ib {
		return errno
	}
	q, errno := id.query(uapi.RDMA_USER_CM_QUERY_GID)
	if errno != 0 {
		return errno
	}
	to := id.record.Route.Addr.Addr.IBAddr()
	gid := func(of *uapi.KernelSockaddrStorage) [16]uint8 {
		return *(*rdmacm.SockaddrIB)(unsafe.Pointer(of)).SibAddr.IBU.UibAddr8()
	}
	*to.SGID.Raw(), *to.DGID.Raw() = gid(&q.SrcAddr), gid(&q.DstAddr)
	return 0
}

// maxPaths is the largest number of paths that the kernel has for an identifier: a path and its alternatives.
const maxPaths = 6

// queryPaths updates the paths in the record.
func (id *identifier) queryPaths() syscall.Errno {
	if id.device == nil || !id.device.ib {
		return 0
	}
	type answer struct {
		uapi.RDMAUCMQueryPathResp
		paths [maxPaths]rdmacm.IBVPathData
	}
	b := id.backend
	in := uapi.RDMAUCMQuery{ID: id.number, Option: uapi.RDMA_USER_CM_QUERY_PATH}
	out, errno := manage[answer](b, id.channelNow(), uapi.RDMA_USER_CM_CMD_QUERY, &in, &in.Response)
	if errno != 0 {
		return errno
	}
	n := int(min(out.NumPaths, maxPaths))
	route := &id.record.Route
	if n == 0 {
		route.NumPaths = 0
		return 0
	}
	memory, err := b.space.Alloc(n * int(unsafe.Sizeof(rdmacm.IBVSAPathRec{})))
	if err != nil {
		return syscall.ENOMEM
	}
	for i := range n {
		unsafe.Slice((*rdmacm.IBVSAPathRec)(memory), n)[i] = pathRecord(&out.paths[i])
	}
	if route.PathRec != 0 {
		free(b, route.PathRec.Deref())
	}
	route.PathRec, route.NumPaths = ibv.PtrTo((*rdmacm.IBVSAPathRec)(memory)), int32(n)
	return 0
}

// pathRecord translates a path from the form that subnet administration sends.
func pathRecord(d *rdmacm.IBVPathData) rdmacm.IBVSAPathRec {
	const exactly, six = 2, 1<<6 - 1 // of selectors; the bits next to one
	p := &d.Path
	flow := p.FlowlabelHoplimit.Host()
	return rdmacm.IBVSAPathRec{DGID: p.DGID, SGID: p.SGID, DLID: p.DLID, SLID: p.SLID, FlowLabel: ibv.ToBE32(flow >> 8),
		HopLimit: uint8(flow), TrafficClass: p.TClass, Reversible: int32(p.ReversibleNumpath >> 7), NumbPath: 1,
		PKey: p.PKey, SL: uint8(p.QoSClassSL.Host() & 0xf), MTUSelector: exactly, MTU: p.MTU & six, RateSelector: exactly,
		Rate: ibv.Rate(p.Rate & six), PacketLifeTimeSelector: exactly, PacketLifeTime: p.Packetlifetime & six,
		Preference: uint8(d.Flags)} // as in librdmacm
}

func (id *identifier) bind(a []uint64) syscall.Errno {
	var address rdmacm.SockaddrStorage
	size := readSockaddr(&address, a[0])
	if size == 0 {
		return syscall.EINVAL
	}
	if errno := order(id, uapi.RDMA_USER_CM_CMD_BIND, &uapi.RDMAUCMBind{ID: id.number, AddrSize: size,
		Addr: kernelAddress(&address)}); errno != 0 {
		return errno
	}
	return id.queryResolved()
}

func (id *identifier) resolveAddr(a []uint64) syscall.Errno {
	var from, to rdmacm.SockaddrStorage
	in := uapi.RDMAUCMResolveAddr{ID: id.number, TimeoutMs: uint32(a[2]), DstSize: readSockaddr(&to, a[1]),
		SrcSize: readSockaddr(&from, a[0])}
	if in.DstSize == 0 || a[0] != 0 && in.SrcSize == 0 {
		return syscall.EINVAL
	}
	in.SrcAddr, in.DstAddr = kernelAddress(&from), kernelAddress(&to)
	if errno := order(id, uapi.RDMA_USER_CM_CMD_RESOLVE_ADDR, &in); errno != 0 {
		return errno
	}
	*id.record.Route.Addr.DstStorage() = to
	return id.complete()
}

func (id *identifier) resolveRoute(a []uint64) syscall.Errno {
	if errno := order(id, uapi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &uapi.RDMAUCMResolveRoute{ID: id.number,
		TimeoutMs: uint32(a[0])}); errno != 0 {
		return errno
	}
	return id.complete()
}

func (id *identifier) listen(a []uint64) syscall.Errno {
	if errno := order(id, uapi.RDMA_USER_CM_CMD_LISTEN, &uapi.RDMAUCMListen{ID: id.number,
		Backlog: uint32(a[0])}); errno != 0 {
		return errno
	}
	return id.queryAddress()
}

// readParam reads the parameters of rdma_connect and rdma_accept, which may be NULL, and limits the reads of the
// connection.
func (id *identifier) readParam(address uint64, initiator, responder uint8) (p uapi.RDMAUCMConnParam,
	errno syscall.Errno) {
	c := rdmacm.ConnParam{ResponderResources: rdmacm.MAX_RESP_RES, InitiatorDepth: rdmacm.MAX_INIT_DEPTH,
		RetryCount: 7, RNRRetryCount: 7}
	qp := ibv.Ptr[ibv.QP](uint64(id.record.QP)).Deref()
	if address != 0 {
		c = *ibv.Ptr[rdmacm.ConnParam](address).Deref()
	} else if qp == nil && !id.datagrams() {
		return p, syscall.EINVAL
	}
	if d := id.device; d != nil && !id.datagrams() &&
		(c.ResponderResources != rdmacm.MAX_RESP_RES && c.ResponderResources > d.responder ||
			c.InitiatorDepth != rdmacm.MAX_INIT_DEPTH && c.InitiatorDepth > d.initiator) {
		return p, syscall.EINVAL
	}
	if c.ResponderResources == rdmacm.MAX_RESP_RES {
		c.ResponderResources = responder
	}
	if c.InitiatorDepth == rdmacm.MAX_INIT_DEPTH {
		c.InitiatorDepth = initiator
	}
	p = uapi.RDMAUCMConnParam{QPNum: c.QPNum, SRQ: c.SRQ, ResponderResources: c.ResponderResources,
		InitiatorDepth: c.InitiatorDepth, FlowControl: c.FlowControl, RetryCount: c.RetryCount,
		RNRRetryCount: c.RNRRetryCount, Valid: 1}
	if qp != nil {
		p.QPNum, p.SRQ = qp.QPNum, 0
		if qp.SRQ != 0 {
			p.SRQ = 1
		}
	}
	if c.PrivateData != 0 {
		p.PrivateDataLen = c.PrivateDataLen
		copy(p.PrivateData[:], listAt[byte](uint64(c.PrivateData), int(c.PrivateDataLen)))
	}
	return p, 0
}

func (id *identifier) connect(a []uint64) syscall.Errno {
	in := uapi.RDMAUCMConnect{ID: id.number}
	var initiator, responder uint8
	if id.device != nil {
		initiator, responder = id.device.initiator, id.device.responder
	}
	var errno syscall.Errno
	if in.ConnParam, errno = id.readParam(a[0], initiator, responder); errno != 0 {
		return errno
	}
	id.mu.Lock()
	id.initiator, id.responder, in.ECE = in.ConnParam.InitiatorDepth, in.ConnParam.ResponderResources, id.ece
	id.mu.Unlock()
	if errno := order(id, uapi.RDMA_USER_CM_CMD_CONNECT, &in); errno != 0 {
		return errno
	}
	return id.complete()
}

// accept is rdma_accept: it moves the queue pair to RTS, then answers.
func (id *identifier) accept(a []uint64) syscall.Errno {
	in := uapi.RDMAUCMAccept{Uid: addressOf(id.record), ID: id.number}
	id.mu.Lock()
	initiator, responder := id.initiator, id.responder
	id.mu.Unlock()
	if id.device != nil {
		initiator, responder = min(initiator, id.device.initiator), min(responder, id.device.responder)
	}
	var errno syscall.Errno
	if in.ConnParam, errno = id.readParam(a[0], initiator, responder); errno != 0 {
		return errno
	}
	id.mu.Lock()
	id.initiator, id.responder, in.ECE = in.ConnParam.InitiatorDepth, in.ConnParam.ResponderResources, id.ece
	id.mu.Unlock()
	if !id.datagrams() {
		if errno := id.ready(in.ConnParam.InitiatorDepth, in.ConnParam.ResponderResources); errno != 0 {
			return errno
		}
	}
	if errno := order(id, uapi.RDMA_USER_CM_CMD_ACCEPT, &in); errno != 0 {
		id.toError()
		return errno
	}
	if id.datagrams() { // without an event
		return 0
	}
	return id.complete()
}

// confirm sends the RTU: an acceptance without parameters.
func (id *identifier) confirm() syscall.Errno {
	return order(id, uapi.RDMA_USER_CM_CMD_ACCEPT, &uapi.RDMAUCMAccept{ID: id.number, Uid: addressOf(id.record)})
}

func (id *identifier) establish() syscall.Errno {
	if id.record.QP != 0 {
		return syscall.EINVAL
	}
	return id.confirm()
}

// vendorOption is IBTA's reason for a rejection because of ECE; 0 stands for the consumer's.
const vendorOption = 35

func (id *identifier) reject(a []uint64, reason uint8) syscall.Errno {
	in := uapi.RDMAUCMReject{ID: id.number, Reason: reason}
	if a[0] != 0 {
		in.PrivateDataLen = uint8(a[1])
		copy(in.PrivateData[:], listAt[byte](a[0], int(in.PrivateDataLen)))
	}
	return order(id, uapi.RDMA_USER_CM_CMD_REJECT, &in)
}

func (id *identifier) notify(a []uint64) syscall.Errno {
	return order(id, uapi.RDMA_USER_CM_CMD_NOTIFY, &uapi.RDMAUCMNotify{ID: id.number, Event: uint32(a[0])})
}

func (id *identifier) disconnect() syscall.Errno {
	if id.record.Verbs == 0 {
		return syscall.EINVAL
	}
	end := ibv.QPS_ERR
	if id.device != nil && !id.device.ib { // iWARP sends what was posted
		end = ibv.QPS_SQD
	}
	if errno := id.moveTo(end); errno != 0 {
		return errno
	}
	if errno := order(id, uapi.RDMA_USER_CM_CMD_DISCONNECT, &uapi.RDMAUCMDisconnect{ID: id.number}); errno != 0 {
		return errno
	}
	return id.complete()
}

// maxOption is the largest size of an option: paths have a few hundred bytes.
const maxOption = 4096

func (id *identifier) setOption(a []uint64) syscall.Errno {
	b, size := id.backend, a[3]
	if a[2] == 0 || size > maxOption {
		return syscall.EINVAL
	}
	value, err := b.space.Alloc(int(size))
	if err != nil {
		return syscall.ENOMEM
	}
	defer b.space.Free(value)
	copy(unsafe.Slice((*byte)(value), size), listAt[byte](a[2], int(size)))
	return order(id, uapi.RDMA_USER_CM_CMD_SET_OPTION, &uapi.RDMAUCMSetOption{Optval: uint64(uintptr(value)),
		ID: id.number, Level: uint32(a[0]), Optname: uint32(a[1]), Optlen: uint32(size)})
}

func (id *identifier) setLocalECE(a []uint64) syscall.Errno {
	if id.record.QP != 0 || a[0] == 0 {
		return syscall.EINVAL
	}
	ece := ibv.Ptr[ibv.ECE](a[0]).Deref()
	if ece.VendorID == 0 || ece.CompMask != 0 {
		return syscall.EINVAL
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.ece = uapi.RDMAUCMECE{VendorID: ece.VendorID, AttrMod: ece.Options}
	return 0
}

func (id *identifier) remoteECE(a []uint64) syscall.Errno {
	if id.record.QP != 0 || a[0] == 0 {
		return syscall.EINVAL
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	*ibv.Ptr[ibv.ECE](a[0]).Deref() = ibv.ECE{VendorID: id.peerECE.VendorID, Options: id.peerECE.AttrMod}
	return 0
}

// createEP is rdma_create_ep: a synchronous identifier, bound or resolved.
func (b *Backend) createEP(a []uint64) syscall.Errno {
	i := find[addrInfo](b, a[1])
	if i == nil || a[0] == 0 {
		return syscall.EINVAL
	}
	info := &i.record.AddrInfo
	id, errno := b.newID(nil, 0, info.AiPortSpace, info.AiQPType)
	if errno != 0 {
		return errno
	}
	attr := ibv.Ptr[ibv.QPInitAttr](a[3]).Deref()
	if info.AiFlags&rdmacm.RAI_PASSIVE != 0 {
		errno = id.passiveEP(info, a[2], attr)
	} else {
		errno = id.activeEP(info, a[2], attr)
	}
	if errno != 0 {
		id.destroy()
		return errno
	}
	*ibv.Ptr[uint64](a[0]).Deref() = addressOf(id.record)
	return 0
}

func (id *identifier) passiveEP(info *rdmacm.AddrInfo, pd uint64, attr *ibv.QPInitAttr) syscall.Errno {
	if errno := id.bind([]uint64{uint64(info.AiSrcAddr)}); errno != 0 {
		return errno
	}
	if pd != 0 {
		id.record.PD = ibv.Ptr[ibv.PD](pd)
	}
	if attr != nil {
		own := *attr
		own.QPType = info.AiQPType
		id.passive = &own
	}
	return 0
}

func (id *identifier) activeEP(info *rdmacm.AddrInfo, pd uint64, attr *ibv.QPInitAttr) syscall.Errno {
	const timeout = 2000 // ms
	if errno := id.resolveAddr([]uint64{uint64(info.AiSrcAddr), uint64(info.AiDstAddr), timeout}); errno != 0 {
		return errno
	}
	if errno := id.resolveRoute([]uint64{timeout}); errno != 0 || attr == nil {
		return errno
	}
	attr.QPType = info.AiQPType
	return id.createPlainQP(pd, attr)
}

func (b *Backend) destroyEP(a []uint64) {
	id := find[identifier](b, a[0])
	if id == nil {
		return
	}
	if id.record.QP != 0 {
		id.destroyQP()
	}
	if id.record.SRQ != 0 {
		id.destroySRQ()
	}
	id.destroy()
}
