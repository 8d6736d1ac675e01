// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// requests are the numbers of requests that are in a queue. The upper bits of a number are those of the queue pair's
// generation, so that completions of an earlier queue pair with the same number are not taken for those of a later one.
type requests struct {
	count      uint32   // requests that the queue holds
	used       uint32   // requests that it has
	generation uint16   // in its place
	mask       uint16   // of a number without the generation
	ids        []uint64 // wr_id by number
	unused     []uint16 // numbers, from index used on
	taken      []bool   // by number
}

func (r *requests) open(count, generation uint32) {
	r.count = count
	r.mask = uint16(power(count) - 1)
	r.generation = uint16(generation * power(count))
	r.ids, r.unused, r.taken = make([]uint64, count), make([]uint16, count), make([]bool, count)
	r.reset()
}

func (r *requests) reset() {
	r.used = 0
	for i := range r.unused {
		r.unused[i], r.taken[i] = uint16(i), false
	}
}

// full reports whether the queue has no room for a request.
func (r *requests) full() bool { return r.used == r.count }

func (r *requests) take(id uint64) uint16 {
	n := r.unused[r.used]
	r.used++
	r.ids[n], r.taken[n] = id, true
	return r.generation | n
}

// put releases a number, and returns its wr_id. It reports false for a number that is not in use.
func (r *requests) put(number uint16) (id uint64, ok bool) {
	n := number & r.mask
	if number&^r.mask != r.generation || int(n) >= len(r.taken) || !r.taken[n] {
		return 0, false
	}
	r.used--
	r.unused[r.used], r.taken[n] = n, false
	return r.ids[n], true
}

// takeBack undoes the last calls of take.
func (r *requests) takeBack(calls uint32) {
	for range calls {
		r.used--
		r.taken[r.unused[r.used]] = false
	}
}

// queuePair is a queue pair.
type queuePair struct {
	device *device
	number uint32
	cqs    [2]*completionQueue
	send   sendQueue
	recv   recvQueue
	maps   [4][]byte
}

// Flags of queue pairs and completion queues whose requests have numbers of 64 bits. efa-abi.h lacks them.
const (
	qpLongIDs uapi.EFACreateQPFlags = 1 << 1
	cqLongIDs uapi.EFACreateCQFlags = 1 << 2
)

// qpOptions are those of efadv_create_qp_ex.
type qpOptions struct {
	flags        uapi.EFACreateQPFlags
	inlineWrites bool // inline data of writes follows their remote buffers
	level        uint8
}

// CreateQP implements [driver.Context].
func (d *device) CreateQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
	syscall.Errno) {
	if ibv.QPType(in.QPType) != ibv.QPT_UD {
		return nil, syscall.EINVAL
	}
	return d.createQP(in, out, send, qpOptions{})
}

func (d *device) createQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send driver.Command,
	o qpOptions) (driver.QP, syscall.Errno) {
	l := &d.limits
	size, ok := d.sendSize(in.MaxInlineData, o.inlineWrites)
	if !ok || in.IsSRQ != 0 || in.MaxSendSGE > min(uint32(l.MaxSQSGE), mostBuffers) || in.MaxRecvSGE > uint32(l.MaxRQSGE) ||
		in.MaxSendWR > d.mostSends(size) || in.MaxRecvWR > l.MaxRQWR/max(in.MaxRecvSGE, 1) {
		return nil, syscall.EINVAL
	}
	if d.has(capLongIDs) {
		o.flags |= qpLongIDs
	}
	q := &queuePair{device: d, cqs: d.cqs.find(in.SendCQHandle, in.RecvCQHandle)}
	sends, recvs := power(max(in.MaxSendWR, uint32(d.own.MinSQWR))), power(in.MaxRecvWR*in.MaxRecvSGE)
	in.MaxSendWR, in.MaxRecvWR = sends, recvs/max(in.MaxRecvSGE, 1)
	q.send.size, q.send.sges, q.send.inline = size, in.MaxSendSGE, in.MaxInlineData
	q.send.inlineWrites = o.inlineWrites
	q.send.long, q.send.everyOne = o.flags&qpLongIDs != 0, in.SQSigAll != 0
	q.recv.sges, q.recv.last = in.MaxRecvSGE, recvs-1
	own := uapi.EFAIBVCreateQP{SQRingSize: sends * size, RQRingSize: recvs * uint32(recvSize), Flags: o.flags,
		SL: o.level}
	var answer uapi.EFAIBVCreateQPResp
	if errno := send(driver.Bytes(&own), driver.Bytes(&answer)); errno != 0 {
		return nil, errno
	}
	q.number = out.QPN
	return q, q.open(&answer, sends, in.MaxRecvWR)
}

// sendSize returns the size of a request with a number of bytes of inline data.
func (d *device) sendSize(inline uint32, inlineWrites bool) (size uint32, ok bool) {
	size, most := uint32(narrow), uint32(d.own.InlineBufSize)
	if inlineWrites || inline > most {
		size, most = wide, uint32(d.own.InlineBufSizeEx)
	}
	return size, inline <= min(most, size-uint32(headSize))
}

// mostSends returns the largest number of requests in a send queue.
func (d *device) mostSends(size uint32) uint32 { return min(d.limits.MaxSQWR, d.own.MaxLlqSize/size) }

// open maps the queues and their doorbells.
func (q *queuePair) open(answer *uapi.EFAIBVCreateQPResp, sendCount, recvCount uint32) (errno syscall.Errno) {
	d := q.device
	sends := sendCount * q.send.size
	for i, m := range []struct{ key, size uint64 }{
		{answer.LlqDescMmapKey, uint64(answer.LlqDescOffset) + uint64(sends)}, {answer.SQDBMmapKey, uint64(answer.SQDBOffset) + 4}, {answer.RQMmapKey, answer.RQMmapSize},
		{answer.RQDBMmapKey, uint64(answer.RQDBOffset) + 4}} {
		if q.maps[i], errno = d.mapped(m.key, m.size); errno != 0 {
			return errno
		}
	}
	s, r := &q.send, &q.recv
	var ok, also bool
	s.bell, ok = word(q.maps[1], answer.SQDBOffset)
	r.bell, also = word(q.maps[3], answer.RQDBOffset)
	if !ok || !also || answer.LlqDescOffset%8 != 0 || uintptr(len(q.maps[2])) < uintptr(r.last+1)*recvSize {
		return syscall.EIO
	}
	s.device, s.local = q.maps[0][answer.LlqDescOffset:][:sends], make([]byte, sends)
	s.batch = uint32(d.own.MaxTXBatch) * narrow / s.size
	r.buffer = q.maps[2]
	generation := d.qps.add(q)
	s.open(sendCount, generation)
	r.open(recvCount, generation)
	return 0
}

// Path implements [driver.QP].
func (q *queuePair) Path(*ibv.QP, ibv.QPCap, bool) (driver.QPPath, syscall.Errno) { return q, 0 }

// Cap implements [driver.QP].
func (q *queuePair) Cap(cap ibv.QPCap) ibv.QPCap { return cap }

// Reset implements [driver.QP].
func (q *queuePair) Reset() {
	q.forget()
	s, r := &q.send, &q.recv
	s.mu.Lock()
	defer s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reset()
	r.reset()
	s.next, s.pending, r.next = 0, 0, 0
}

// forget drops the completions that the device has written.
func (q *queuePair) forget() {
	for _, cq := range q.cqs {
		if cq != nil {
			cq.drop(q.number)
		}
	}
}

// End implements [driver.Queue].
func (q *queuePair) End(destroy func() syscall.Errno) syscall.Errno {
	errno := destroy()
	if errno == 0 {
		q.forget()
		q.device.qps.remove(q)
	}
	return errno
}

// Free implements [driver.Queue].
func (q *queuePair) Free() {
	q.device.qps.remove(q)
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	q.send.bell, q.recv.bell = nil, nil
	for i, m := range q.maps {
		if m != nil {
			q.device.file.Kernel.Munmap(m)
		}
		q.maps[i] = nil
	}
}

// recvQueue is a receive queue.
type recvQueue struct {
	mu sync.Mutex
	requests
	buffer []byte
	bell   *uint32 // nil: the queue is closed
	last   uint32  // index of a buffer
	sges   uint32  // of a receive
	next   uint16  // buffer
}

func (r *recvQueue) done(n uint16) (id uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(n)
}

// PostRecv implements [driver.QPPath].
func (q *queuePair) PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) (errno int32) {
	r := &q.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bell == nil || qp.State == ibv.QPS_RESET || qp.State == ibv.QPS_ERR {
		errno = int32(syscall.EINVAL)
	}
	before := r.next
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		if errno = r.post(list); errno != 0 {
			break
		}
	}
	if r.next != before {
		ring(r.bell, uint32(r.next))
	}
	if errno != 0 {
		*bad = ibv.PtrTo(list)
	}
	return errno
}

func (r *recvQueue) post(wr *ibv.RecvWR) int32 {
	if wr.NumSGE < 1 || uint32(wr.NumSGE) > r.sges { // the device does not see a receive without buffers
		return int32(syscall.EINVAL)
	}
	if r.full() {
		return int32(syscall.ENOMEM)
	}
	sges := unsafe.Slice(wr.SGList.Deref(), wr.NumSGE)
	n := r.take(wr.WRID)
	for i := range sges {
		b := recvBuffer{low: uint32(sges[i].Addr), high: uint32(sges[i].Addr >> 32),
			length: uint16(min(sges[i].Length, recvLength)), key: sges[i].LKey & keyMask}
		if i == 0 {
			b.key |= recvFirst
			b.id = n
		}
		if i == len(sges)-1 {
			b.key |= recvLast
		}
		*(*recvBuffer)(unsafe.Pointer(&r.buffer[uintptr(uint32(r.next)&r.last)*recvSize])) = b
		r.next++
	}
	return 0
}
