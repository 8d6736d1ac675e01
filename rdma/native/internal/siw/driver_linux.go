// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package siw

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// Open is a [driver.Driver].
func Open(f *driver.File, get driver.Command) (driver.Context, syscall.Errno) {
	if errno := get(nil, driver.Bytes(&uapi.SIWUrespAllocCtx{})); errno != 0 {
		return nil, errno
	}
	return &device{f}, 0
}

// device is an open device.
type device struct{ file *driver.File }

func (*device) AllocPD(send driver.Command) (uint32, syscall.Errno) { return 0, send(nil, nil) }

func (*device) RegMR(_ *uapi.IBUverbsRegMR, send driver.Command) syscall.Errno {
	return send(driver.Bytes(&uapi.SIWUreqRegMR{}), driver.Bytes(&uapi.SIWUrespRegMR{}))
}

func (*device) AHSize() uintptr { return 0 }

// CreateAH fails: iWARP has no datagrams.
func (*device) CreateAH(*ibv.AHAttr, unsafe.Pointer, driver.Command) syscall.Errno {
	return syscall.EOPNOTSUPP
}

func (*device) Close() {}

// ring is a mapped queue. Its users hold the lock.
type ring struct {
	mu      sync.Mutex
	mapping []byte // nil: the queue is closed, or does not exist
	size    uintptr
	mask    uint32
	next    uint32 // counts elements
}

// open maps a ring of n elements of size bytes with extra bytes behind it.
func (r *ring) open(f *driver.File, key uint64, n uint32, size, extra uintptr) syscall.Errno {
	const most = 1 << 24
	if key == uapi.SIW_INVAL_UOBJ_KEY || n == 0 || n&(n-1) != 0 || n > most {
		return syscall.EIO
	}
	length := int(uintptr(n)*size + extra)
	mapping, errno := f.Kernel.Mmap(f.FD, int64(key), length)
	if errno != 0 {
		return errno
	}
	r.mapping, r.size, r.mask = mapping, size, n-1
	return 0
}

func (r *ring) close(f *driver.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapping != nil {
		f.Kernel.Munmap(r.mapping)
	}
	r.mapping = nil
}

// element returns the next element.
func (r *ring) element() unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(r.mapping)), uintptr(r.next&r.mask)*r.size)
}

// The second word of an element has its flags. Go has no atomic operations on less.
const wordAt = 8

func wordOf(element unsafe.Pointer) *uint32 { return (*uint32)(unsafe.Add(element, wordAt)) }

// state is the second word of elements of send and receive queues.
type state struct {
	flags  uapi.SIWWQEFlags
	numSGE uint8
	opcode uapi.SIWOpcode
}

func load(element unsafe.Pointer) state {
	word := atomic.LoadUint32(wordOf(element))
	return *(*state)(unsafe.Pointer(&word))
}

func store(element unsafe.Pointer, s state) {
	atomic.StoreUint32(wordOf(element), *(*uint32)(unsafe.Pointer(&s)))
}

// result is the second word of a completion.
type result struct {
	flags  uint8
	opcode uapi.SIWOpcode
	status uapi.SIWWCStatus
}

// ending implements the end of queues without state.
type ending struct{}

func (ending) End(destroy func() syscall.Errno) syscall.Errno { return destroy() }

// completionQueue is a completion queue.
type completionQueue struct {
	ending
	ring
	file *driver.File
}

func (d *device) CreateCQ(_ *uapi.IBUverbsCreateCQ, _ *uapi.IBUverbsCreateCQResp, send driver.Command) (driver.CQ,
	syscall.Errno) {
	var own uapi.SIWUrespCreateCQ
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &completionQueue{file: d.file}
	errno := q.open(d.file, own.CQKey, own.NumCQE, unsafe.Sizeof(uapi.SIWCQE{}), unsafe.Sizeof(uapi.SIWCQCtrl{}))
	return q, errno
}

func (q *completionQueue) Path(*ibv.CQ) (driver.CQPath, syscall.Errno) { return q, 0 }

// Resize fails: the kernel does not resize.
func (*completionQueue) Resize(*uapi.IBUverbsResizeCQ, *uapi.IBUverbsResizeCQResp, driver.Command) syscall.Errno {
	return syscall.EOPNOTSUPP
}

func (q *completionQueue) Free() { q.close(q.file) }

var wcOpcodes = [uapi.SIW_NUM_OPCODES]ibv.WCOpcode{
	uapi.SIW_OP_WRITE: ibv.WC_RDMA_WRITE, uapi.SIW_OP_READ: ibv.WC_RDMA_READ,
	uapi.SIW_OP_READ_LOCAL_INV: ibv.WC_RDMA_READ, uapi.SIW_OP_SEND: ibv.WC_SEND, uapi.SIW_OP_SEND_WITH_IMM: ibv.WC_SEND,
	uapi.SIW_OP_SEND_REMOTE_INV: ibv.WC_SEND, uapi.SIW_OP_FETCH_AND_ADD: ibv.WC_FETCH_ADD,
	uapi.SIW_OP_COMP_AND_SWAP: ibv.WC_COMP_SWAP, uapi.SIW_OP_RECEIVE: ibv.WC_RECV,
}

var wcStatuses = [uapi.SIW_NUM_WC_STATUS]ibv.WCStatus{
	uapi.SIW_WC_SUCCESS: ibv.WC_SUCCESS, uapi.SIW_WC_LOC_LEN_ERR: ibv.WC_LOC_LEN_ERR,
	uapi.SIW_WC_LOC_PROT_ERR: ibv.WC_LOC_PROT_ERR, uapi.SIW_WC_LOC_QP_OP_ERR: ibv.WC_LOC_QP_OP_ERR,
	uapi.SIW_WC_WR_FLUSH_ERR: ibv.WC_WR_FLUSH_ERR, uapi.SIW_WC_BAD_RESP_ERR: ibv.WC_BAD_RESP_ERR,
	uapi.SIW_WC_LOC_ACCESS_ERR: ibv.WC_LOC_ACCESS_ERR, uapi.SIW_WC_REM_ACCESS_ERR: ibv.WC_REM_ACCESS_ERR,
	uapi.SIW_WC_REM_INV_REQ_ERR: ibv.WC_REM_INV_REQ_ERR, uapi.SIW_WC_GENERAL_ERR: ibv.WC_GENERAL_ERR,
}

// Poll implements [driver.CQPath].
func (q *completionQueue) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mapping == nil {
		return -1
	}
	for n := range wcs {
		e := (*uapi.SIWCQE)(q.element())
		word := atomic.LoadUint32(wordOf(unsafe.Pointer(e)))
		r := *(*result)(unsafe.Pointer(&word))
		if uapi.SIWWQEFlags(r.flags)&uapi.SIW_WQE_VALID == 0 {
			return int32(n)
		}
		wcs[n] = ibv.WC{WRID: e.ID, ByteLen: e.Bytes, QPNum: uint32(*e.QPID()), Status: ibv.WC_GENERAL_ERR}
		if int(r.opcode) < len(wcOpcodes) {
			wcs[n].Opcode = wcOpcodes[r.opcode]
		}
		if int(r.status) < len(wcStatuses) {
			wcs[n].Status = wcStatuses[r.status]
		}
		if uapi.SIWWQEFlags(r.flags)&uapi.SIW_WQE_REM_INVAL != 0 {
			wcs[n].WCFlags = ibv.WC_WITH_INV
			*wcs[n].InvalidatedRKey() = *e.InvalStag()
		}
		atomic.StoreUint32(wordOf(unsafe.Pointer(e)), 0)
		q.next++
	}
	return int32(len(wcs))
}

// Arm implements [driver.CQPath]: it stores the request behind the ring, where the kernel reads it.
func (q *completionQueue) Arm(_ *ibv.CQ, solicitedOnly bool) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mapping == nil {
		return int32(syscall.EINVAL)
	}
	flags := uapi.SIW_NOTIFY_SOLICITED
	if !solicitedOnly {
		flags |= uapi.SIW_NOTIFY_NEXT_COMPLETION
	}
	control := unsafe.Add(unsafe.Pointer(unsafe.SliceData(q.mapping)), uintptr(q.mask+1)*q.size)
	atomic.StoreUint32((*uint32)(control), uint32(flags))
	return 0
}

// receives is a receive queue.
type receives struct {
	ring
	sges uint32
}

func (r *receives) post(list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) (errno int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapping == nil {
		errno = int32(syscall.EINVAL)
	}
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		e := (*uapi.SIWRQE)(r.element())
		if load(unsafe.Pointer(e)).flags&uapi.SIW_WQE_VALID != 0 {
			errno = int32(syscall.ENOMEM)
			break
		}
		if list.NumSGE < 1 || uint32(list.NumSGE) > r.sges {
			errno = int32(syscall.EINVAL)
			break
		}
		e.ID = list.WRID
		copySGEs(&e.SGE, unsafe.Slice(list.SGList.Deref(), list.NumSGE))
		store(unsafe.Pointer(e), state{flags: uapi.SIW_WQE_VALID, numSGE: uint8(list.NumSGE),
			opcode: uapi.SIW_OP_RECEIVE})
		r.next++
	}
	if errno != 0 {
		*bad = ibv.PtrTo(list)
	}
	return errno
}

func copySGEs(to *[uapi.SIW_MAX_SGE]uapi.SIWSGE, sges []ibv.SGE) {
	for i := range sges {
		to[i].Laddr, to[i].Length, to[i].LKey = sges[i].Addr, sges[i].Length, sges[i].LKey
	}
}

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	ending
	receives
	file *driver.File
}

func (d *device) CreateSRQ(_ *uapi.IBUverbsCreateSRQ, out *uapi.IBUverbsCreateSRQResp, send driver.Command) (driver.SRQ,
	syscall.Errno) {
	var own uapi.SIWUrespCreateSRQ
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &sharedQueue{file: d.file}
	q.sges = min(out.MaxSGE, uapi.SIW_MAX_SGE)
	return q, q.open(d.file, own.SRQKey, own.NumRQE, unsafe.Sizeof(uapi.SIWRQE{}), 0)
}

func (q *sharedQueue) Path(*ibv.SRQ, ibv.SRQAttr) (driver.SRQPath, syscall.Errno) { return q, 0 }

func (*sharedQueue) Cap(cap ibv.SRQAttr) ibv.SRQAttr { return cap }

func (*sharedQueue) Modify(_ *uapi.IBUverbsModifySRQ, send driver.Command) syscall.Errno {
	return send(nil, nil)
}

func (q *sharedQueue) Free() { q.close(q.file) }

// PostSRQRecv implements [driver.SRQPath].
func (q *sharedQueue) PostSRQRecv(_ *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return q.post(list, bad)
}

// queuePair is a queue pair.
type queuePair struct {
	ending
	file     *driver.File
	sges     uint32 // of a send
	signals  uapi.SIWWQEFlags
	send     ring
	recv     receives // empty with a shared receive queue
	doorbell driver.Request
}

func (d *device) CreateQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
	syscall.Errno) {
	var own uapi.SIWUrespCreateQP
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &queuePair{file: d.file, sges: min(out.MaxSendSGE, uapi.SIW_MAX_SGE)}
	q.recv.sges = min(out.MaxRecvSGE, uapi.SIW_MAX_SGE)
	return q, q.create(&own, in.IsSRQ != 0 || out.MaxRecvWR == 0, out.QPHandle)
}

func (q *queuePair) create(own *uapi.SIWUrespCreateQP, noReceives bool, handle uint32) (errno syscall.Errno) {
	if errno = q.send.open(q.file, own.SQKey, own.NumSQE, unsafe.Sizeof(uapi.SIWSQE{}), 0); errno != 0 {
		return errno
	}
	if !noReceives {
		if errno = q.recv.open(q.file, own.RQKey, own.NumRQE, unsafe.Sizeof(uapi.SIWRQE{}), 0); errno != 0 {
			return errno
		}
	}
	q.doorbell, errno = q.file.Doorbell(handle)
	return errno
}

func (q *queuePair) Path(_ *ibv.QP, _ ibv.QPCap, everyOne bool) (driver.QPPath, syscall.Errno) {
	if everyOne {
		q.signals = uapi.SIW_WQE_SIGNALLED
	}
	return q, 0
}

func (*queuePair) Cap(cap ibv.QPCap) ibv.QPCap { return cap }

func (*queuePair) Reset() {}

func (q *queuePair) Free() {
	q.send.close(q.file)
	q.recv.close(q.file)
	q.file.Put(q.doorbell)
	q.doorbell = driver.Request{}
}

// PostSend implements [driver.QPPath]. The connection manager moves queue pairs to RTS, so their state is not checked
// here: the kernel rejects the doorbell of one that is not connected, and its requests stay in the queue.
func (q *queuePair) PostSend(_ *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) (errno int32) {
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mapping == nil {
		errno = int32(syscall.EINVAL)
	}
	n := 0
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		e := (*uapi.SIWSQE)(s.element())
		if load(unsafe.Pointer(e)).flags&uapi.SIW_WQE_VALID != 0 {
			errno = int32(syscall.ENOMEM)
			break
		}
		if !q.fill(e, list) {
			errno = int32(syscall.EINVAL)
			break
		}
		s.next++
		n++
	}
	if n > 0 {
		if e := q.file.Send(&q.doorbell); e != 0 && errno == 0 {
			errno = int32(e)
		}
	}
	if errno != 0 {
		*bad = ibv.PtrTo(list)
	}
	return errno
}

// fill hands a work request to the kernel. It reports false if the request is not supported or does not fit. iWARP has
// neither immediate data nor atomic operations.
func (q *queuePair) fill(e *uapi.SIWSQE, wr *ibv.SendWR) bool {
	if wr.NumSGE < 0 || uint32(wr.NumSGE) > q.sges {
		return false
	}
	e.ID, e.RKey, *e.RAddr() = wr.WRID, 0, 0
	var op uapi.SIWOpcode
	switch wr.Opcode {
	case ibv.WR_RDMA_WRITE:
		op = uapi.SIW_OP_WRITE
		*e.RAddr(), e.RKey = wr.WR.RDMA().RemoteAddr, wr.WR.RDMA().RKey
	case ibv.WR_RDMA_READ:
		op = uapi.SIW_OP_READ
		*e.RAddr(), e.RKey = wr.WR.RDMA().RemoteAddr, wr.WR.RDMA().RKey
	case ibv.WR_SEND:
		op = uapi.SIW_OP_SEND
	case ibv.WR_SEND_WITH_INV:
		op = uapi.SIW_OP_SEND_REMOTE_INV
		e.RKey = *wr.InvalidateRKey()
	default:
		return false
	}
	s := state{flags: uapi.SIW_WQE_VALID | q.signals, numSGE: uint8(wr.NumSGE), opcode: op}
	for _, f := range [...]struct {
		from ibv.SendFlags
		to   uapi.SIWWQEFlags
	}{{ibv.SEND_SIGNALED, uapi.SIW_WQE_SIGNALLED}, {ibv.SEND_SOLICITED, uapi.SIW_WQE_SOLICITED},
		{ibv.SEND_FENCE, uapi.SIW_WQE_READ_FENCE}} {
		if wr.SendFlags&f.from != 0 {
			s.flags |= f.to
		}
	}
	sges := unsafe.Slice(wr.SGList.Deref(), wr.NumSGE)
	if wr.SendFlags&ibv.SEND_INLINE == 0 {
		copySGEs(e.SGE(), sges)
		store(unsafe.Pointer(e), s)
		return true
	}
	// Inline data lies behind the first entry, which has its length.
	data, n := (*[uapi.SIW_MAX_INLINE]byte)(unsafe.Pointer(&e.SGE()[1])), uint64(0)
	for i := range sges {
		length, address := uint64(sges[i].Length), sges[i].Addr
		if n+length > uint64(len(data)) {
			return false
		}
		if length > 0 {
			copy(data[n:], unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), length))
		}
		n += length
	}
	e.SGE()[0] = uapi.SIWSGE{Length: uint32(n)}
	s.flags, s.numSGE = s.flags|uapi.SIW_WQE_INLINE, 1
	store(unsafe.Pointer(e), s)
	return true
}

// PostRecv implements [driver.QPPath].
func (q *queuePair) PostRecv(_ *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return q.recv.post(list, bad)
}
