// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// Functions returns the functions of libefa that there are.
func Functions(f driver.Finder) map[string]runtime.Func {
	l := &library{Finder: f, cqs: map[uint64]*completionQueue{}}
	number := func(g func(a []uint64) syscall.Errno) runtime.Func {
		return func(a []uint64) (uint64, runtime.Errno) { return uint64(g(a)), 0 }
	}
	return map[string]runtime.Func{
		"efadv_query_device":     number(l.queryDevice),
		"efadv_query_ah":         number(l.queryAH),
		"efadv_query_mr":         number(l.queryMR),
		"efadv_query_qp_wqs":     number(l.queryQP),
		"efadv_query_cq":         number(l.queryCQ),
		"efadv_create_driver_qp": l.createDriverQP,
		"efadv_create_qp_ex":     l.createQPEx,
		"efadv_create_cq":        l.createCQ,
		"efadv_get_max_sq_depth": l.mostSQ,
		"efadv_get_max_rq_depth": l.mostRQ,
		"efadv_cq_from_ibv_cq_ex": func(a []uint64) (uint64, runtime.Errno) {
			if q, ok := l.CQ(ibv.Ptr[ibv.CQ](a[0])).(*completionQueue); ok && q.own != nil {
				return uint64(uintptr(unsafe.Pointer(q.own))), 0
			}
			return 0, syscall.EOPNOTSUPP
		},
	}
}

type library struct {
	driver.Finder
	mu    sync.Mutex
	cqs   map[uint64]*completionQueue // by the address of their efadv.CQ
	slots [2]ibv.FuncPtr              // of an efadv.CQ, after the first one was created
}

func at[T any](address uint64) *T { return ibv.Ptr[T](address).Deref() }

// bytesAt returns memory of the program. Go 1.26 fails to compile copies of constant size to and from it if it is
// inlined.
//
//go:noinline
func bytesAt(address uint64, n uintptr) []byte { return unsafe.Slice(at[byte](address), n) }

// answer copies as much of a structure as the program has room for, which is at least the room of the first version.
func answer(to uint64, room uint64, v []byte, first uintptr) syscall.Errno {
	n := uintptr(uint32(room))
	if to == 0 || n < first {
		return syscall.EINVAL
	}
	given := bytesAt(to, n)
	clear(given[copy(given, v):])
	return 0
}

// input copies a structure of a program, which may be shorter or longer. It reports false if the program has set bytes
// that are unknown here, or if there are fewer than least.
func input[T any](v *T, from, size uint64, least uintptr) bool {
	n := uintptr(uint32(size))
	if from == 0 || n < least {
		return false
	}
	b, given := driver.Bytes(v), bytesAt(from, n)
	for _, unknown := range given[min(len(b), len(given)):] {
		if unknown != 0 {
			return false
		}
	}
	copy(b, given)
	return true
}

// lenient is input for structures of which libefa ignores bytes that are unknown.
func lenient[T any](v *T, from, size uint64) bool {
	return input(v, from, min(size, uint64(unsafe.Sizeof(*v))), unsafe.Sizeof(*v))
}

// device returns the device of a context, or nil if it is another driver's.
func (l *library) device(c ibv.Ptr[ibv.Context]) *device {
	d, _ := l.Context(c).(*device)
	return d
}

// deviceCaps are the names that programs have for capabilities.
var deviceCaps = []struct {
	from uapi.EFAQueryDeviceCaps
	to   efadv.DeviceAttrCaps
}{
	{uapi.EFA_QUERY_DEVICE_CAPS_RDMA_READ, efadv.DEVICE_ATTR_CAPS_RDMA_READ},
	{uapi.EFA_QUERY_DEVICE_CAPS_RNR_RETRY, efadv.DEVICE_ATTR_CAPS_RNR_RETRY},
	{uapi.EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID, efadv.DEVICE_ATTR_CAPS_CQ_WITH_SGID},
	{uapi.EFA_QUERY_DEVICE_CAPS_RDMA_WRITE, efadv.DEVICE_ATTR_CAPS_RDMA_WRITE},
	{uapi.EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV, efadv.DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV},
}

// queryDevice is efadv_query_device.
func (l *library) queryDevice(a []uint64) syscall.Errno {
	d := l.device(ibv.Ptr[ibv.Context](a[0]))
	if d == nil {
		return syscall.EOPNOTSUPP
	}
	has := &d.limits
	out := efadv.DeviceAttr{MaxSQWR: has.MaxSQWR, MaxRQWR: has.MaxRQWR, MaxSQSGE: has.MaxSQSGE, MaxRQSGE: has.MaxRQSGE,
		InlineBufSize: d.own.InlineBufSize, InlineBufSizeEx: d.own.InlineBufSizeEx, MaxRDMASize: has.MaxRDMASize}
	for _, c := range deviceCaps {
		if d.has(c.from) {
			out.DeviceCaps |= c.to
		}
	}
	return answer(a[1], a[2], driver.Bytes(&out), unsafe.Offsetof(out.DeviceCaps))
}

// queryAH is efadv_query_ah.
func (l *library) queryAH(a []uint64) syscall.Errno {
	ah := ibv.Ptr[ibv.AH](a[0])
	part := l.AH(ah)
	if part == nil || l.device(ah.Deref().Context) == nil {
		return syscall.EOPNOTSUPP
	}
	out := efadv.AHAttr{AHN: addressOf(part)}
	return answer(a[1], a[2], driver.Bytes(&out), unsafe.Sizeof(out))
}

// queryMR is efadv_query_mr, which asks the kernel.
func (l *library) queryMR(a []uint64) syscall.Errno {
	mr := ibv.Ptr[ibv.MR](a[0])
	if !l.MR(mr) {
		return syscall.EINVAL
	}
	d := l.device(mr.Deref().Context)
	if d == nil {
		return syscall.EOPNOTSUPP
	}
	r, errno := d.file.Request(uint16(uapi.UVERBS_OBJECT_MR), uint16(uapi.EFA_IB_METHOD_MR_QUERY))
	if errno != 0 {
		return errno
	}
	defer d.file.Put(r)
	r.Attr(uint16(uapi.EFA_IB_ATTR_QUERY_MR_HANDLE), 0, uint64(mr.Deref().Handle))
	var out [4][]byte
	for i, id := range []uapi.EFAQueryMRAttrs{uapi.EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
		uapi.EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, uapi.EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID,
		uapi.EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID} {
		out[i] = r.Output(uint16(id), 2)
	}
	if errno := d.file.Send(&r); errno != 0 {
		return errno
	}
	v := func(i int) uint16 { return *(*uint16)(unsafe.Pointer(unsafe.SliceData(out[i]))) }
	attr := efadv.MRAttr{ICIDValidity: efadv.MRAttrValidity(v(0)), RecvICID: v(1), RDMAReadICID: v(2), RDMARecvICID: v(3)}
	return answer(a[1], a[2], driver.Bytes(&attr), unsafe.Sizeof(attr))
}

// queryQP is efadv_query_qp_wqs.
func (l *library) queryQP(a []uint64) syscall.Errno {
	q, ok := l.QP(ibv.Ptr[ibv.QP](a[0])).(*queuePair)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	s, r := &q.send, &q.recv
	sends := efadv.WQAttr{Buffer: ibv.PtrTo(unsafe.SliceData(s.device)), EntrySize: s.size, NumEntries: s.count,
		Doorbell: ibv.PtrTo(s.bell), MaxBatch: s.batch}
	if s.long {
		sends.Caps = efadv.WQ_CAPS_64_BIT_REQ_ID
	}
	recvs := efadv.WQAttr{Buffer: ibv.PtrTo(unsafe.SliceData(r.buffer)), EntrySize: uint32(recvSize),
		NumEntries: r.last + 1, Doorbell: ibv.PtrTo(r.bell), MaxBatch: r.last + 1}
	if errno := answer(a[1], a[3], driver.Bytes(&sends), unsafe.Sizeof(sends)); errno != 0 {
		return errno
	}
	return answer(a[2], a[3], driver.Bytes(&recvs), unsafe.Sizeof(recvs))
}

// queryCQ is efadv_query_cq, for queues of one ring.
func (l *library) queryCQ(a []uint64) syscall.Errno {
	q, ok := l.CQ(ibv.Ptr[ibv.CQ](a[0])).(*completionQueue)
	if !ok || len(q.rings) != 1 {
		return syscall.EOPNOTSUPP
	}
	out := efadv.CQAttr{Buffer: ibv.PtrTo(unsafe.SliceData(q.rings[0].buffer)), EntrySize: q.size,
		NumEntries: q.rings[0].mask + 1}
	if q.bell != nil {
		out.Doorbell = ibv.PtrTo(q.bell)
	}
	room := min(uint64(uint32(a[2])), uint64(unsafe.Sizeof(out)))
	return answer(a[1], room, driver.Bytes(&out), unsafe.Offsetof(out.Doorbell))
}

// mostSQ is efadv_get_max_sq_depth.
func (l *library) mostSQ(a []uint64) (uint64, runtime.Errno) {
	var attr efadv.SQDepthAttr
	d := l.device(ibv.Ptr[ibv.Context](a[0]))
	switch {
	case d == nil:
		return negative(syscall.EOPNOTSUPP), 0
	case !lenient(&attr, a[1], a[2]) || attr.CompMask != 0 || attr.MaxSendSGE > uint32(d.limits.MaxSQSGE) ||
		attr.MaxRDMASGE > mostLocal:
		return negative(syscall.EINVAL), 0
	}
	size, ok := d.sendSize(attr.MaxInlineData, attr.Flags&efadv.SQ_DEPTH_ATTR_INLINE_WRITE != 0)
	if !ok {
		return negative(syscall.EINVAL), 0
	}
	return uint64(d.mostSends(size)), 0
}

// mostRQ is efadv_get_max_rq_depth.
func (l *library) mostRQ(a []uint64) (uint64, runtime.Errno) {
	var attr efadv.RQDepthAttr
	d := l.device(ibv.Ptr[ibv.Context](a[0]))
	switch {
	case d == nil:
		return negative(syscall.EOPNOTSUPP), 0
	case !lenient(&attr, a[1], a[2]) || attr.CompMask != 0 || attr.MaxRecvSGE == 0 ||
		attr.MaxRecvSGE > uint32(d.limits.MaxRQSGE):
		return negative(syscall.EINVAL), 0
	}
	return uint64(d.limits.MaxRQWR / attr.MaxRecvSGE), 0
}

func negative(errno syscall.Errno) uint64 { return uint64(-int64(errno)) }

// createDriverQP is efadv_create_driver_qp.
func (l *library) createDriverQP(a []uint64) (uint64, runtime.Errno) {
	pd, attr := ibv.Ptr[ibv.PD](a[0]), at[ibv.QPInitAttr](a[1])
	if _, ok := l.PD(pd); !ok || attr == nil {
		return 0, syscall.EINVAL
	}
	ex := ibv.QPInitAttrEx{QPContext: attr.QPContext, SendCQ: attr.SendCQ, RecvCQ: attr.RecvCQ, SRQ: attr.SRQ,
		Cap: attr.Cap, QPType: attr.QPType, SQSigAll: attr.SQSigAll, CompMask: ibv.QP_INIT_ATTR_PD, PD: pd}
	qp, errno := l.newQP(pd.Deref().Context, &ex, &efadv.QPInitAttr{DriverQPType: efadv.QPDriverType(uint32(a[2]))})
	attr.Cap = ex.Cap
	return qp, errno
}

// createQPEx is efadv_create_qp_ex.
func (l *library) createQPEx(a []uint64) (uint64, runtime.Errno) {
	attr, own := at[ibv.QPInitAttrEx](a[1]), efadv.QPInitAttr{}
	if attr == nil || !input(&own, a[2], a[3], unsafe.Offsetof(own.Flags)) {
		return 0, syscall.EINVAL
	}
	return l.newQP(ibv.Ptr[ibv.Context](a[0]), attr, &own)
}

func (l *library) newQP(c ibv.Ptr[ibv.Context], attr *ibv.QPInitAttrEx, own *efadv.QPInitAttr) (uint64, runtime.Errno) {
	d := l.device(c)
	const known = efadv.QP_FLAGS_UNSOLICITED_WRITE_RECV | efadv.QP_FLAGS_INLINE_WRITE
	switch {
	case d == nil:
		return 0, syscall.EOPNOTSUPP
	case own.CompMask != 0 || own.Reserved != 0 || attr.QPType != ibv.QPT_DRIVER ||
		own.DriverQPType != efadv.QP_DRIVER_TYPE_SRD || own.Flags&^known != 0:
		return 0, syscall.EINVAL
	case own.WRFlags != 0:
		return 0, syscall.EOPNOTSUPP
	}
	o := qpOptions{inlineWrites: own.Flags&efadv.QP_FLAGS_INLINE_WRITE != 0, level: own.SL}
	if own.Flags&efadv.QP_FLAGS_UNSOLICITED_WRITE_RECV != 0 {
		if !d.has(uapi.EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV) {
			return 0, syscall.EOPNOTSUPP
		}
		o.flags = uapi.EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV
	}
	qp, errno := l.NewQP(c, attr, func(_ driver.TD, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp,
		send driver.Command) (driver.QP, syscall.Errno) {
		return d.createQP(in, out, send, o)
	})
	return uint64(qp), errno
}

// createCQ is efadv_create_cq.
func (l *library) createCQ(a []uint64) (uint64, runtime.Errno) {
	attr, own := at[ibv.CQInitAttrEx](a[1]), efadv.CQInitAttr{}
	if attr == nil || !input(&own, a[2], a[3], unsafe.Offsetof(own.Flags)) {
		return 0, syscall.EINVAL
	}
	d := l.device(ibv.Ptr[ibv.Context](a[0]))
	const known = efadv.WC_EX_WITH_SGID | efadv.WC_EX_WITH_IS_UNSOLICITED
	switch {
	case d == nil:
		return 0, syscall.EOPNOTSUPP
	case own.CompMask != 0:
		return 0, syscall.EINVAL
	case own.WCFlags&^known != 0 || own.Flags != 0 ||
		own.WCFlags&efadv.WC_EX_WITH_SGID != 0 && !d.has(uapi.EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID) ||
		own.WCFlags&efadv.WC_EX_WITH_IS_UNSOLICITED != 0 && !d.has(uapi.EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV):
		return 0, syscall.EOPNOTSUPP
	}
	cq, errno := l.NewCQ(ibv.Ptr[ibv.Context](a[0]), attr, func(in *uapi.IBUverbsCreateCQ,
		out *uapi.IBUverbsCreateCQResp, send driver.Command) (driver.CQ, syscall.Errno) {
		flags := uapi.EFACreateCQFlags(0)
		if own.WCFlags&efadv.WC_EX_WITH_SGID != 0 {
			flags = uapi.EFA_CREATE_CQ_WITH_SGID
		}
		q, errno := d.createCQ(in, out, send, flags)
		if errno == 0 {
			errno = l.addReaders(q.(*completionQueue), own.WCFlags)
		}
		return q, errno
	})
	return uint64(cq), errno
}

// addReaders adds the functions that read EFA's fields of completions.
func (l *library) addReaders(q *completionQueue, flags efadv.CQWCFlags) syscall.Errno {
	l.mu.Lock()
	defer l.mu.Unlock()
	space := q.device.file.Commands.Space
	if l.slots[0] == 0 {
		for i, f := range []func(q *completionQueue, to uint64) uint64{(*completionQueue).readSGID,
			(*completionQueue).readUnsolicited} {
			address, err := space.Slot(func(of, to, _, _, _, _ uint64) (uint64, runtime.Errno) {
				l.mu.Lock()
				q := l.cqs[of]
				l.mu.Unlock()
				if q == nil {
					return uint64(syscall.EINVAL), 0
				}
				return f(q, to), 0
			})
			if err != nil {
				return syscall.ENOMEM
			}
			l.slots[i] = ibv.FuncPtr(address)
		}
	}
	memory, err := space.Alloc(int(unsafe.Sizeof(efadv.CQ{})))
	if err != nil {
		return syscall.ENOMEM
	}
	q.own = (*efadv.CQ)(memory)
	if flags&efadv.WC_EX_WITH_SGID != 0 {
		q.own.WCReadSGID = l.slots[0]
	}
	if flags&efadv.WC_EX_WITH_IS_UNSOLICITED != 0 {
		q.own.WCIsUnsolicited = l.slots[1]
	}
	address := uint64(uintptr(memory))
	l.cqs[address] = q
	q.forgotten = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.cqs, address)
		space.Free(memory)
	}
	return 0
}

// readSGID is the function of efadv_wc_read_sgid. It stores the GID of a sender without an address handle.
func (q *completionQueue) readSGID(to uint64) uint64 {
	if to == 0 {
		return uint64(syscall.EINVAL)
	}
	if q.last.ah != unknownAH || q.size != uint32(longCompletion) {
		return uint64(syscall.ENOENT)
	}
	*at[ibv.GID](to).Raw() = q.last.more
	return 0
}

// readUnsolicited is the function of efadv_wc_is_unsolicited.
func (q *completionQueue) readUnsolicited(uint64) uint64 {
	if q.last.flags&doneUnsolicited != 0 {
		return 1
	}
	return 0
}
