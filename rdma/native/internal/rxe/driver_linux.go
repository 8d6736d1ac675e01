// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package rxe

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// Open is a [driver.Driver].
func Open(f *driver.File, get driver.Command) (driver.Context, syscall.Errno) {
	if errno := get(nil, nil); errno != 0 {
		return nil, errno
	}
	return &device{f}, 0
}

// device is an open device.
type device struct{ file *driver.File }

func (*device) AllocPD(send driver.Command) (uint32, syscall.Errno) { return 0, send(nil, nil) }

func (*device) RegMR(_ *uapi.IBUverbsRegMR, send driver.Command) syscall.Errno { return send(nil, nil) }

// AHSize returns the size of the driver's part of an address handle: the handle's number.
func (*device) AHSize() uintptr { return unsafe.Sizeof(uapi.RXECreateAHResp{}) }

func (*device) CreateAH(_ *ibv.AHAttr, part unsafe.Pointer, send driver.Command) syscall.Errno {
	return send(nil, driver.Bytes((*uapi.RXECreateAHResp)(part)))
}

func (*device) Close() {}

// mapped is a queue that the kernel has created, with its mapping. mu guards the queue and its mapping.
type mapped struct {
	mu      sync.Mutex
	queue   Queue
	mapping []byte // nil: the queue is closed, or does not exist
}

// remap unmaps the previous queue, which the kernel no longer uses, and maps a new one.
func (r *mapped) remap(f *driver.File, m uapi.Mminfo, size uintptr) syscall.Errno {
	if r.mapping != nil {
		f.Kernel.Munmap(r.mapping)
	}
	r.queue, r.mapping = Queue{}, nil
	mapping, errno := f.Kernel.Mmap(f.FD, int64(m.Offset), int(m.Size))
	if errno != 0 {
		return errno
	}
	q, err := Of(mapping, size)
	if err != nil {
		f.Kernel.Munmap(mapping)
		return syscall.EIO
	}
	r.queue, r.mapping = q, mapping
	return 0
}

// unmap waits for operations in progress and unmaps the queue.
func (r *mapped) unmap(f *driver.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapping != nil {
		f.Kernel.Munmap(r.mapping)
	}
	r.queue, r.mapping = Queue{}, nil
}

// ending implements [driver.Queue] for queues that need no work before they are destroyed.
type ending struct{}

func (ending) End(destroy func() syscall.Errno) syscall.Errno { return destroy() }

// completionQueue is a completion queue.
type completionQueue struct {
	ending
	mapped
	file   *driver.File
	handle uint32
}

func (d *device) CreateCQ(_ *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send driver.Command) (driver.CQ,
	syscall.Errno) {
	var own uapi.RXECreateCQResp
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &completionQueue{file: d.file, handle: out.CQHandle}
	return q, q.remap(d.file, own.Mi, unsafe.Sizeof(ibv.WC{}))
}

func (q *completionQueue) Path(*ibv.CQ) (driver.CQPath, syscall.Errno) { return q, 0 }

func (q *completionQueue) Resize(_ *uapi.IBUverbsResizeCQ, _ *uapi.IBUverbsResizeCQResp,
	send driver.Command) syscall.Errno {
	q.mu.Lock()
	defer q.mu.Unlock()
	var own uapi.RXEResizeCQResp
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return errno
	}
	return q.remap(q.file, own.Mi, unsafe.Sizeof(ibv.WC{}))
}

func (q *completionQueue) Free() { q.unmap(q.file) }

// Poll implements [driver.CQPath].
func (q *completionQueue) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mapping == nil {
		return -1
	}
	return int32(q.queue.Poll(wcs))
}

// Arm implements [driver.CQPath].
func (q *completionQueue) Arm(_ *ibv.CQ, solicitedOnly bool) int32 {
	in := uapi.IBUverbsReqNotifyCQ{CQHandle: q.handle}
	if solicitedOnly {
		in.SolicitedOnly = 1
	}
	return int32(q.file.Write(uapi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, driver.Bytes(&in), nil, nil, nil))
}

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	ending
	mapped
	file *driver.File
	sges uint32
}

func (d *device) CreateSRQ(_ *uapi.IBUverbsCreateSRQ, out *uapi.IBUverbsCreateSRQResp, send driver.Command) (driver.SRQ,
	syscall.Errno) {
	var own uapi.RXECreateSRQResp
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &sharedQueue{file: d.file, sges: out.MaxSGE}
	return q, q.remap(d.file, own.Mi, RecvSize(q.sges))
}

func (q *sharedQueue) Path(*ibv.SRQ, ibv.SRQAttr) (driver.SRQPath, syscall.Errno) { return q, 0 }

func (*sharedQueue) Cap(cap ibv.SRQAttr) ibv.SRQAttr { return cap }

// Modify arms the limit or resizes the queue. The kernel writes the mapping of a resized queue to the address in the
// driver's part of the command.
func (q *sharedQueue) Modify(in *uapi.IBUverbsModifySRQ, send driver.Command) syscall.Errno {
	q.mu.Lock()
	defer q.mu.Unlock()
	space := q.file.Commands.Space
	at, err := space.Alloc(int(unsafe.Sizeof(uapi.Mminfo{})))
	if err != nil {
		return syscall.ENOMEM
	}
	defer space.Free(at)
	errno := send(driver.Bytes(&uapi.RXEModifySRQCmd{MmapInfoAddr: uint64(uintptr(at))}), nil)
	if errno != 0 || in.AttrMask&uint32(ibv.SRQ_MAX_WR) == 0 {
		return errno
	}
	return q.remap(q.file, *(*uapi.Mminfo)(at), RecvSize(q.sges))
}

func (q *sharedQueue) Free() { q.unmap(q.file) }

// PostSRQRecv implements [driver.SRQPath].
func (q *sharedQueue) PostSRQRecv(_ *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return q.post(q.sges, list, bad)
}

// post posts a list of receives.
func (r *mapped) post(sges uint32, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) (errno int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapping == nil {
		errno = int32(syscall.EINVAL)
	}
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		element := r.queue.Free()
		if element == nil {
			errno = int32(syscall.ENOMEM)
			break
		}
		if !FillRecv(element, list, sges) {
			errno = int32(syscall.EINVAL)
			break
		}
		r.queue.Push()
	}
	if errno != 0 {
		*bad = ibv.PtrTo(list)
	}
	return errno
}

// queuePair is a queue pair.
type queuePair struct {
	ending
	file       *driver.File
	limits     SendLimits
	sges       uint32 // of a receive
	send, recv mapped // recv is empty with a shared receive queue
	ssn        uint32
	doorbell   driver.Request
}

func (d *device) CreateQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
	syscall.Errno) {
	var own uapi.RXECreateQPResp
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return nil, errno
	}
	q := &queuePair{file: d.file, limits: SendLimits{SGEs: out.MaxSendSGE, Inline: out.MaxInlineData},
		sges: out.MaxRecvSGE}
	return q, q.create(&own, in.IsSRQ != 0, out.QPHandle)
}

func (q *queuePair) create(own *uapi.RXECreateQPResp, shared bool, handle uint32) (errno syscall.Errno) {
	if errno = q.send.remap(q.file, own.SQMi, SendSize(q.limits)); errno != 0 {
		return errno
	}
	if !shared {
		if errno = q.recv.remap(q.file, own.RQMi, RecvSize(q.sges)); errno != 0 {
			return errno
		}
	}
	q.doorbell, errno = q.file.Doorbell(handle)
	return errno
}

func (q *queuePair) Path(*ibv.QP, ibv.QPCap, bool) (driver.QPPath, syscall.Errno) { return q, 0 }

func (*queuePair) Cap(cap ibv.QPCap) ibv.QPCap { return cap }

func (*queuePair) Reset() {}

func (q *queuePair) Free() {
	q.send.unmap(q.file)
	q.recv.unmap(q.file)
	q.file.Put(q.doorbell)
	q.doorbell = driver.Request{}
}

// PostSend implements [driver.QPPath].
func (q *queuePair) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) (errno int32) {
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mapping == nil || qp.State < ibv.QPS_RTS { // the kernel would execute the requests later
		errno = int32(syscall.EINVAL)
	}
	n := 0
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		element := s.queue.Free()
		if element == nil {
			errno = int32(syscall.ENOMEM)
			break
		}
		number, ok := q.named(qp, list)
		if !ok || !FillSend(element, list, q.limits, qp.QPType, number, q.ssn) {
			errno = int32(syscall.EINVAL)
			break
		}
		q.ssn++
		n++
		s.queue.Push()
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

// named checks the objects that a request names. It returns the number of a datagram's address handle.
func (q *queuePair) named(qp *ibv.QP, wr *ibv.SendWR) (number uint32, ok bool) {
	if qp.QPType == ibv.QPT_UD {
		h := q.file.Core.AH(wr.WR.UD().AH)
		if h == nil {
			return 0, false
		}
		return (*uapi.RXECreateAHResp)(h).AHNum, true
	}
	if wr.Opcode == ibv.WR_BIND_MW {
		bind := wr.BindMW()
		mr := bind.BindInfo.MR
		return 0, q.file.Core.MW(bind.MW) && (mr == 0 || q.file.Core.MR(mr))
	}
	return 0, true
}

// PostRecv implements [driver.QPPath].
func (q *queuePair) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	if qp.State == ibv.QPS_RESET {
		*bad = ibv.PtrTo(list)
		return int32(syscall.EINVAL)
	}
	return q.recv.post(q.sges, list, bad)
}
