// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

// fake is a Kernel with one device, of Soft-RoCE by default. It creates and destroys objects as the kernel does, executes no requests,
// and completes sends successfully when the doorbell rings.
type fake struct {
	Kernel   // nil: other calls panic
	mu       sync.Mutex
	files    map[int32]*fakeFile
	objects  map[string]map[uint32]*fakeObject // by kind and handle
	pending  map[uint64][]uint64               // memory that was not mapped yet, by offset
	mappings map[*byte]bool
	next     uint32 // handle, offset or descriptor
	lost     []string
	old      bool                        // Linux before 5.12
	caps     uapi.IBUverbsDeviceCapFlags // of the device
	driver   uapi.RDMADriverID
	last     *uapi.RXESendWQE // that was executed

	// tamper changes the answer to a command. core and driver are its two parts, which may be nil.
	tamper func(number uapi.IBUverbsWriteCmds, core, driver unsafe.Pointer)
}

type fakeFile struct {
	device bool
	async  int32 // of a device
	events [][]byte
	count  []*uint32 // of reported events, for each of events
}

type fakeObject struct {
	user         uint64 // address of the record
	channel      int32
	armed        bool
	comp, async  uint32 // events that were read
	queue, recvs *uapi.RXEQueueBuf
	cq           *fakeObject
	state        uint32
	qp           uapi.IBUverbsCreateQP
}

func newFake() *fake {
	return &fake{files: map[int32]*fakeFile{}, objects: map[string]map[uint32]*fakeObject{},
		pending: map[uint64][]uint64{}, mappings: map[*byte]bool{}, next: 100, driver: uapi.RDMA_DRIVER_RXE}
}

const (
	fakePort   = 1
	fakeDevice = "rxe0"
)

// left describes the objects that the process has not released.
func (k *fake) left() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all = slices.Clone(k.lost)
	for kind, objects := range k.objects {
		if n := len(objects); n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if n := len(k.files); n > 0 {
		all = append(all, fmt.Sprintf("%d descriptors", n))
	}
	if n := len(k.mappings); n > 0 {
		all = append(all, fmt.Sprintf("%d mappings", n))
	}
	slices.Sort(all)
	return all
}

func (k *fake) Devices() ([]DeviceInfo, error) {
	return []DeviceInfo{{Name: fakeDevice, Path: deviceDir + "uverbs0", Driver: uint32(k.driver),
		NodeType: uint8(ibv.NODE_CA), NodeGUID: 1}}, nil
}

func (k *fake) CopyOnFork() bool { return !k.old }

func (k *fake) number() uint32 {
	k.next++
	return k.next
}

func (k *fake) Open(string) (int32, syscall.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd := int32(k.number())
	k.files[fd] = &fakeFile{device: true}
	return fd, 0
}

func (k *fake) Close(fd int32) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		k.lost = append(k.lost, fmt.Sprintf("close of descriptor %d", fd))
		return syscall.EBADF
	}
	delete(k.files, fd)
	if f.device { // the kernel destroys what is left
		for kind, objects := range k.objects {
			if len(objects) > 0 {
				k.lost = append(k.lost, fmt.Sprintf("%d %s when the device was closed", len(objects), kind))
			}
		}
		clear(k.objects)
	}
	return 0
}

// Write fails: this kernel has no connection manager.
func (k *fake) Write(int32, []byte) (int, syscall.Errno) { return 0, syscall.EBADF }

func (k *fake) Read(fd int32, b []byte) (int, syscall.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		return 0, syscall.EBADF
	}
	if len(f.events) == 0 {
		return 0, syscall.EAGAIN
	}
	n := copy(b, f.events[0])
	if f.count[0] != nil {
		*f.count[0]++
	}
	f.events, f.count = f.events[1:], f.count[1:]
	return n, 0
}

func (k *fake) Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	words := k.pending[uint64(offset)]
	if k.files[fd] == nil || words == nil || length <= 0 || length > 8*len(words) {
		return nil, syscall.EINVAL
	}
	delete(k.pending, uint64(offset))
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), length)
	k.mappings[&b[0]] = true
	return b, 0
}

func (k *fake) Munmap(b []byte) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(b) == 0 || !k.mappings[&b[0]] {
		k.lost = append(k.lost, "unmapping of what is not mapped")
		return syscall.EINVAL
	}
	delete(k.mappings, &b[0])
	return 0
}

// fakeCommand is a decoded command.
type fakeCommand struct {
	header *uapi.IBUverbsIoctlHdr
	attrs  []uapi.IBUverbsAttr
}

func (c *fakeCommand) find(id uint16) *uapi.IBUverbsAttr {
	for i := range c.attrs {
		if c.attrs[i].AttrID == id {
			return &c.attrs[i]
		}
	}
	return nil
}

// pointer returns the data of an attribute, or nil.
func (c *fakeCommand) pointer(id uint16, input bool) unsafe.Pointer {
	a := c.find(id)
	if a == nil {
		return nil
	}
	if input && a.Len <= 8 {
		return unsafe.Pointer(a.Data())
	}
	return unsafe.Pointer(ibv.Ptr[byte](*a.Data()).Deref())
}

func coreIn[T any](c *fakeCommand) *T {
	return (*T)(c.pointer(uint16(uapi.UVERBS_ATTR_CORE_IN), true))
}

func coreOut[T any](c *fakeCommand) *T {
	return (*T)(c.pointer(uint16(uapi.UVERBS_ATTR_CORE_OUT), false))
}

func driverOut[T any](c *fakeCommand) *T {
	return (*T)(c.pointer(uapi.UVERBS_ATTR_UHW_OUT, false))
}

func (k *fake) Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil || !f.device || request != uapi.RDMA_VERBS_IOCTL {
		return syscall.ENOTTY
	}
	c := &fakeCommand{header: (*uapi.IBUverbsIoctlHdr)(command)}
	c.attrs = unsafe.Slice((*uapi.IBUverbsAttr)(unsafe.Add(command, unsafe.Sizeof(*c.header))), c.header.NumAttrs)
	object := uapi.UverbsDefaultObjects(c.header.ObjectID)
	if c.header.DriverID != uint32(k.driver) {
		return syscall.EPROTONOSUPPORT
	}
	if object == uapi.UVERBS_OBJECT_ASYNC_EVENT && !k.old {
		f.async = int32(k.number())
		k.files[f.async] = &fakeFile{}
		*c.find(uint16(uapi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)).Data() = uint64(f.async)
		return 0
	}
	if object != uapi.UVERBS_OBJECT_DEVICE {
		return syscall.EPROTONOSUPPORT
	}
	switch uapi.UverbsMethodsDevice(c.header.MethodID) {
	case uapi.UVERBS_METHOD_GET_CONTEXT:
		if k.old {
			return syscall.EPROTONOSUPPORT
		}
		*(*uint32)(c.pointer(uint16(uapi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS), false)) = 1
		return 0
	case uapi.UVERBS_METHOD_QUERY_GID_TABLE:
		e := (*uapi.IBUverbsGIDEntry)(c.pointer(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES), false))
		*e = uapi.IBUverbsGIDEntry{PortNum: fakePort, GIDType: uapi.IB_UVERBS_GID_TYPE_ROCE_V2, GID: [2]uint64{1, 2}}
		n := c.pointer(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES), false)
		*(*uint64)(n) = 1
		if k.tamper != nil {
			k.tamper(^uapi.IBUverbsWriteCmds(0), n, nil)
		}
		return 0
	case uapi.UVERBS_METHOD_INVOKE_WRITE:
	default:
		return syscall.EPROTONOSUPPORT
	}
	number := uapi.IBUverbsWriteCmds(*c.find(uint16(uapi.UVERBS_ATTR_WRITE_CMD)).Data())
	errno := k.write(f, number, c)
	if errno == 0 && k.tamper != nil {
		k.tamper(number, c.pointer(uint16(uapi.UVERBS_ATTR_CORE_OUT), false), c.pointer(uapi.UVERBS_ATTR_UHW_OUT, false))
	}
	return errno
}

func (k *fake) add(kind string, o *fakeObject) uint32 {
	if k.objects[kind] == nil {
		k.objects[kind] = map[uint32]*fakeObject{}
	}
	handle := k.number()
	k.objects[kind][handle] = o
	return handle
}

// remove destroys an object.
func (k *fake) remove(kind string, handle uint32) (*fakeObject, syscall.Errno) {
	o := k.objects[kind][handle]
	if o == nil {
		k.lost = append(k.lost, fmt.Sprintf("destruction of %s %d", kind, handle))
		return nil, syscall.ENOENT
	}
	delete(k.objects[kind], handle)
	return o, 0
}

func (k *fake) known(kind string, handles ...uint32) bool {
	return !slices.ContainsFunc(handles, func(h uint32) bool { return k.objects[kind][h] == nil })
}

// ring makes a queue of at least n elements of size bytes, which can be mapped once.
func (k *fake) ring(m *uapi.Mminfo, n uint32, size uintptr) *uapi.RXEQueueBuf {
	shift, mask := uint32(bits.Len64(uint64(size-1))), uint32(1)<<bits.Len32(n)-1
	length := unsafe.Sizeof(uapi.RXEQueueBuf{}) + uintptr(mask+1)<<shift
	words := make([]uint64, (length+4095)/4096*512)
	q := (*uapi.RXEQueueBuf)(unsafe.Pointer(unsafe.SliceData(words)))
	q.Log2ElemSize, q.IndexMask = shift, mask
	*m = uapi.Mminfo{Offset: uint64(k.number()) << 12, Size: uint32(length)}
	k.pending[m.Offset] = words
	return q
}

func fakeSend(sges, inline uint32) uintptr {
	return unsafe.Sizeof(uapi.RXESendWQE{}) + max(uintptr(sges)*unsafe.Sizeof(uapi.RXESGE{}), uintptr(inline))
}

func fakeRecv(sges uint32) uintptr {
	return unsafe.Sizeof(uapi.RXERecvWQE{}) + uintptr(sges)*unsafe.Sizeof(uapi.RXESGE{})
}

func (k *fake) event(fd int32, event []byte, count *uint32) {
	if f := k.files[fd]; f != nil {
		f.events, f.count = append(f.events, event), append(f.count, count)
	}
}

// asyncEvent reports an event of an object, or of a port if user is its number.
func (k *fake) asyncEvent(kind ibv.EventType, user uint64, count *uint32) {
	event := binary.NativeEndian.AppendUint64(nil, user)
	event = binary.NativeEndian.AppendUint32(event, uint32(kind))
	event = binary.NativeEndian.AppendUint32(event, 0)
	for _, f := range k.files {
		if f.device {
			k.event(f.async, event, count)
		}
	}
}

func (k *fake) write(f *fakeFile, number uapi.IBUverbsWriteCmds, c *fakeCommand) syscall.Errno {
	switch number {
	case uapi.IB_USER_VERBS_CMD_GET_CONTEXT:
		f.async = int32(k.number())
		k.files[f.async] = &fakeFile{}
		*coreOut[uapi.IBUverbsGetContextResp](c) = uapi.IBUverbsGetContextResp{AsyncFD: uint32(f.async),
			NumCompVectors: 1}
	case uapi.IB_USER_VERBS_CMD_QUERY_DEVICE:
		*coreOut[uapi.IBUverbsQueryDeviceResp](c) = uapi.IBUverbsQueryDeviceResp{MaxQP: 100, MaxSGE: 32, PhysPortCnt: 1}
	case extended(uapi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE):
		r := coreOut[uapi.IBUverbsExQueryDeviceResp](c)
		r.Base.MaxQP, r.DeviceCapFlagsEx = 100, k.caps
	case uapi.IB_USER_VERBS_CMD_QUERY_PORT:
		*coreOut[uapi.IBUverbsQueryPortResp](c) = uapi.IBUverbsQueryPortResp{State: uint8(ibv.PORT_ACTIVE),
			GIDTblLen: 16, PKeyTblLen: 1}
	case uapi.IB_USER_VERBS_CMD_ALLOC_PD:
		coreOut[uapi.IBUverbsAllocPDResp](c).PDHandle = k.add("pd", &fakeObject{})
	case uapi.IB_USER_VERBS_CMD_DEALLOC_PD:
		_, errno := k.remove("pd", coreIn[uapi.IBUverbsDeallocPD](c).PDHandle)
		return errno
	case uapi.IB_USER_VERBS_CMD_REG_MR:
		if !k.known("pd", coreIn[uapi.IBUverbsRegMR](c).PDHandle) {
			return syscall.EINVAL
		}
		h := k.add("mr", &fakeObject{})
		*coreOut[uapi.IBUverbsRegMRResp](c) = uapi.IBUverbsRegMRResp{MRHandle: h, LKey: h << 8, RKey: h << 8}
	case uapi.IB_USER_VERBS_CMD_REREG_MR:
		h := coreIn[uapi.IBUverbsReregMR](c).MRHandle
		if !k.known("mr", h) {
			return syscall.EINVAL
		}
		*coreOut[uapi.IBUverbsReregMRResp](c) = uapi.IBUverbsReregMRResp{LKey: h<<8 + 1, RKey: h<<8 + 1}
	case uapi.IB_USER_VERBS_CMD_DEREG_MR:
		_, errno := k.remove("mr", coreIn[uapi.IBUverbsDeregMR](c).MRHandle)
		return errno
	case uapi.IB_USER_VERBS_CMD_ALLOC_MW:
		h := k.add("mw", &fakeObject{})
		*coreOut[uapi.IBUverbsAllocMWResp](c) = uapi.IBUverbsAllocMWResp{MWHandle: h, RKey: h << 8}
	case uapi.IB_USER_VERBS_CMD_DEALLOC_MW:
		_, errno := k.remove("mw", coreIn[uapi.IBUverbsDeallocMW](c).MWHandle)
		return errno
	case uapi.IB_USER_VERBS_CMD_CREATE_AH:
		h := k.add("ah", &fakeObject{})
		coreOut[uapi.IBUverbsCreateAHResp](c).AHHandle = h
		driverOut[uapi.RXECreateAHResp](c).AHNum = h
	case uapi.IB_USER_VERBS_CMD_DESTROY_AH:
		_, errno := k.remove("ah", coreIn[uapi.IBUverbsDestroyAH](c).AHHandle)
		return errno
	case uapi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		fd := int32(k.number())
		k.files[fd] = &fakeFile{}
		coreOut[uapi.IBUverbsCreateCompChannelResp](c).FD = uint32(fd)
	case uapi.IB_USER_VERBS_CMD_CREATE_CQ:
		in := coreIn[uapi.IBUverbsCreateCQ](c)
		if in.CompChannel >= 0 && k.files[in.CompChannel] == nil {
			return syscall.EINVAL
		}
		o := &fakeObject{user: in.UserHandle, channel: in.CompChannel}
		o.queue = k.ring(&driverOut[uapi.RXECreateCQResp](c).Mi, in.CQE, unsafe.Sizeof(uapi.IBUverbsWC{}))
		*coreOut[uapi.IBUverbsCreateCQResp](c) = uapi.IBUverbsCreateCQResp{CQHandle: k.add("cq", o), CQE: in.CQE}
	case uapi.IB_USER_VERBS_CMD_RESIZE_CQ:
		in := coreIn[uapi.IBUverbsResizeCQ](c)
		o := k.objects["cq"][in.CQHandle]
		if o == nil {
			return syscall.EINVAL
		}
		o.queue = k.ring(&driverOut[uapi.RXEResizeCQResp](c).Mi, in.CQE, unsafe.Sizeof(uapi.IBUverbsWC{}))
		coreOut[uapi.IBUverbsResizeCQResp](c).CQE = in.CQE
	case uapi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:
		o := k.objects["cq"][coreIn[uapi.IBUverbsReqNotifyCQ](c).CQHandle]
		if o == nil {
			return syscall.EINVAL
		}
		o.armed = true
	case uapi.IB_USER_VERBS_CMD_DESTROY_CQ:
		o, errno := k.remove("cq", coreIn[uapi.IBUverbsDestroyCQ](c).CQHandle)
		if errno != 0 {
			return errno
		}
		*coreOut[uapi.IBUverbsDestroyCQResp](c) = uapi.IBUverbsDestroyCQResp{CompEventsReported: o.comp,
			AsyncEventsReported: o.async}
	case uapi.IB_USER_VERBS_CMD_CREATE_SRQ:
		in := coreIn[uapi.IBUverbsCreateSRQ](c)
		o, driver := &fakeObject{user: in.UserHandle}, driverOut[uapi.RXECreateSRQResp](c)
		o.queue = k.ring(&driver.Mi, in.MaxWR, fakeRecv(in.MaxSGE))
		*coreOut[uapi.IBUverbsCreateSRQResp](c) = uapi.IBUverbsCreateSRQResp{SRQHandle: k.add("srq", o), MaxWR: in.MaxWR,
			MaxSGE: in.MaxSGE}
	case uapi.IB_USER_VERBS_CMD_MODIFY_SRQ:
		in := coreIn[uapi.IBUverbsModifySRQ](c)
		o := k.objects["srq"][in.SRQHandle]
		if o == nil {
			return syscall.EINVAL
		}
		if in.AttrMask&uint32(ibv.SRQ_MAX_WR) != 0 {
			driver := (*uapi.RXEModifySRQCmd)(c.pointer(uapi.UVERBS_ATTR_UHW_IN, true))
			size := uintptr(1) << o.queue.Log2ElemSize
			o.queue = k.ring(ibv.Ptr[uapi.Mminfo](driver.MmapInfoAddr).Deref(), in.MaxWR, size)
		}
	case uapi.IB_USER_VERBS_CMD_QUERY_SRQ:
		coreOut[uapi.IBUverbsQuerySRQResp](c).MaxWR = 1
	case uapi.IB_USER_VERBS_CMD_DESTROY_SRQ:
		o, errno := k.remove("srq", coreIn[uapi.IBUverbsDestroySRQ](c).SRQHandle)
		if errno != 0 {
			return errno
		}
		coreOut[uapi.IBUverbsDestroySRQResp](c).EventsReported = o.async
	case uapi.IB_USER_VERBS_CMD_CREATE_QP:
		in, driver := coreIn[uapi.IBUverbsCreateQP](c), driverOut[uapi.RXECreateQPResp](c)
		if !k.known("pd", in.PDHandle) || !k.known("cq", in.SendCQHandle, in.RecvCQHandle) {
			return syscall.EINVAL
		}
		o := &fakeObject{user: in.UserHandle, cq: k.objects["cq"][in.SendCQHandle], qp: *in}
		o.queue = k.ring(&driver.SQMi, in.MaxSendWR, fakeSend(in.MaxSendSGE, in.MaxInlineData))
		if in.IsSRQ == 0 {
			o.recvs = k.ring(&driver.RQMi, in.MaxRecvWR, fakeRecv(in.MaxRecvSGE))
		}
		h := k.add("qp", o)
		*coreOut[uapi.IBUverbsCreateQPResp](c) = uapi.IBUverbsCreateQPResp{QPHandle: h, QPN: h, MaxSendWR: in.MaxSendWR,
			MaxRecvWR: in.MaxRecvWR, MaxSendSGE: in.MaxSendSGE, MaxRecvSGE: in.MaxRecvSGE,
			MaxInlineData: in.MaxInlineData}
	case uapi.IB_USER_VERBS_CMD_MODIFY_QP:
		in := coreIn[uapi.IBUverbsModifyQP](c)
		o := k.objects["qp"][in.QPHandle]
		if o == nil {
			return syscall.EINVAL
		}
		o.state = uint32(in.QPState)
		if ibv.QPState(in.QPState) == ibv.QPS_ERR {
			k.asyncEvent(ibv.EVENT_QP_FATAL, o.user, &o.async)
		}
	case uapi.IB_USER_VERBS_CMD_QUERY_QP:
		o := k.objects["qp"][coreIn[uapi.IBUverbsQueryQP](c).QPHandle]
		if o == nil {
			return syscall.EINVAL
		}
		coreOut[uapi.IBUverbsQueryQPResp](c).QPState = uint8(o.state)
	case uapi.IB_USER_VERBS_CMD_DESTROY_QP:
		o, errno := k.remove("qp", coreIn[uapi.IBUverbsDestroyQP](c).QPHandle)
		if errno != 0 {
			return errno
		}
		coreOut[uapi.IBUverbsDestroyQPResp](c).EventsReported = o.async
	case uapi.IB_USER_VERBS_CMD_ATTACH_MCAST, uapi.IB_USER_VERBS_CMD_DETACH_MCAST:
		if !k.known("qp", coreIn[uapi.IBUverbsAttachMcast](c).QPHandle) {
			return syscall.EINVAL
		}
	case uapi.IB_USER_VERBS_CMD_POST_SEND:
		o := k.objects["qp"][coreIn[uapi.IBUverbsPostSend](c).QPHandle]
		if o == nil {
			return syscall.EINVAL
		}
		k.complete(o)
	default:
		return syscall.EOPNOTSUPP
	}
	return 0
}

// complete completes the requests in a send queue.
func (k *fake) complete(qp *fakeObject) {
	element := func(q *uapi.RXEQueueBuf, index uint32) unsafe.Pointer {
		return unsafe.Add(unsafe.Pointer(q), unsafe.Sizeof(*q)+uintptr(index&q.IndexMask)<<q.Log2ElemSize)
	}
	for q := qp.queue; q.ConsumerIndex != q.ProducerIndex; q.ConsumerIndex = (q.ConsumerIndex + 1) & q.IndexMask {
		request := (*uapi.RXESendWQE)(element(q, q.ConsumerIndex))
		k.last = request
		if request.WR.SendFlags&uint32(ibv.SEND_SIGNALED) == 0 && qp.qp.SQSigAll == 0 {
			continue
		}
		to := qp.cq.queue
		*(*ibv.WC)(element(to, to.ProducerIndex)) = ibv.WC{WRID: request.WR.WRID, QPNum: qp.qp.PDHandle}
		to.ProducerIndex = (to.ProducerIndex + 1) & to.IndexMask
		if qp.cq.armed && qp.cq.channel >= 0 {
			qp.cq.armed = false
			k.event(qp.cq.channel, binary.NativeEndian.AppendUint64(nil, qp.cq.user), &qp.cq.comp)
		}
	}
}
