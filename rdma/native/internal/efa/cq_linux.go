// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// completionQueue is a completion queue: one ring, or one for sends and one for receives.
type completionQueue struct {
	device *device
	handle uint32
	bell   *uint32 // or nil

	mu     sync.Mutex
	maps   [2][]byte // nil: the queue is closed
	rings  []part
	turn   int    // the ring to read next
	size   uint32 // of a completion
	read   uint32 // completions
	events uint32

	own       *efadv.CQ      // or nil; forgotten releases it
	last      recvCompletion // for its functions
	forgotten func()
}

// part is a ring of completions.
type part struct {
	buffer []byte
	mask   uint32
	next   uint32
	skip   []bool // completions of queue pairs that are gone; nil: none
}

// pageSize is the unit of mappings.
var pageSize = syscall.Getpagesize()

// mapped maps memory of the device that a command has created.
func (d *device) mapped(key, size uint64) ([]byte, syscall.Errno) {
	const most = 1 << 30
	if size == 0 || size > most {
		return nil, syscall.EIO
	}
	return d.file.Kernel.Mmap(d.file.FD, int64(key), int(size)+pageSize-1&^(pageSize-1))
}

// word returns a doorbell in a mapping.
func word(mapping []byte, offset uint32) (*uint32, bool) {
	if offset%4 != 0 || int(offset)+4 > len(mapping) {
		return nil, false
	}
	return (*uint32)(unsafe.Pointer(&mapping[offset])), true
}

// CreateCQ implements [driver.Context].
func (d *device) CreateCQ(in *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send driver.Command) (driver.CQ,
	syscall.Errno) {
	return d.createCQ(in, out, send, 0)
}

func (d *device) createCQ(in *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send driver.Command,
	flags uapi.EFACreateCQFlags) (driver.CQ, syscall.Errno) {
	own := uapi.EFAIBVCreateCQ{CQEntrySize: uint32(shortCompletion), NumSubCqs: d.own.SubCqsPerCQ, Flags: flags}
	if d.has(uapi.EFA_QUERY_DEVICE_CAPS_RDMA_WRITE) || flags&uapi.EFA_CREATE_CQ_WITH_SGID != 0 {
		own.CQEntrySize = uint32(longCompletion)
	}
	if int32(in.CompChannel) >= 0 {
		if !d.has(uapi.EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS) {
			return nil, syscall.EOPNOTSUPP
		}
		own.Flags |= uapi.EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL
	}
	if d.has(capLongIDs) {
		own.Flags |= cqLongIDs
	}
	var answer uapi.EFAIBVCreateCQResp
	if errno := send(driver.Bytes(&own), driver.Bytes(&answer)); errno != 0 {
		return nil, errno
	}
	q := &completionQueue{device: d, size: own.CQEntrySize, handle: out.CQHandle}
	d.cqs.add(q)
	return q, q.open(&answer, out.CQE)
}

func (q *completionQueue) open(answer *uapi.EFAIBVCreateCQResp, count uint32) (errno syscall.Errno) {
	d := q.device
	if q.maps[0], errno = d.mapped(answer.QMmapKey, answer.QMmapSize); errno != 0 {
		return errno
	}
	bytes := uint64(count) * uint64(q.size)
	if count == 0 || count&(count-1) != 0 || bytes*uint64(d.own.SubCqsPerCQ) > uint64(len(q.maps[0])) {
		return syscall.EIO
	}
	for i := range uint64(d.own.SubCqsPerCQ) {
		q.rings = append(q.rings, part{buffer: q.maps[0][i*bytes:][:bytes], mask: count - 1})
	}
	if answer.CompMask&uapi.EFA_CREATE_CQ_RESP_DB_OFF == 0 {
		return 0
	}
	if q.maps[1], errno = d.mapped(answer.DBMmapKey, uint64(answer.DBOff)+4); errno != 0 {
		return errno
	}
	var ok bool
	if q.bell, ok = word(q.maps[1], answer.DBOff); !ok {
		return syscall.EIO
	}
	q.ringBell(0)
	return 0
}

// Path implements [driver.CQ].
func (q *completionQueue) Path(*ibv.CQ) (driver.CQPath, syscall.Errno) { return q, 0 }

// Resize fails: the device does not resize queues.
func (*completionQueue) Resize(*uapi.IBUverbsResizeCQ, *uapi.IBUverbsResizeCQResp, driver.Command) syscall.Errno {
	return syscall.EOPNOTSUPP
}

// End implements [driver.Queue].
func (*completionQueue) End(destroy func() syscall.Errno) syscall.Errno { return destroy() }

// Free implements [driver.Queue].
func (q *completionQueue) Free() {
	q.device.cqs.remove(q)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, m := range q.maps {
		if m != nil {
			q.device.file.Kernel.Munmap(m)
		}
		q.maps[i] = nil
	}
	if q.own != nil {
		q.forgotten()
	}
	q.own = nil
}

// ringBell rings the doorbell with the numbers of completions and events that were read. The caller holds mu.
func (q *completionQueue) ringBell(armed uint32) {
	if q.bell != nil {
		ring(q.bell, q.read&0xffff|(q.events&bellEvents)<<bellEventsAt|armed)
	}
}

// Arm implements [driver.CQPath]. The device has no events for solicited completions alone.
func (q *completionQueue) Arm(_ *ibv.CQ, solicitedOnly bool) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.maps[0] == nil:
		return int32(syscall.EINVAL)
	case solicitedOnly || q.bell == nil:
		return int32(syscall.EOPNOTSUPP)
	}
	q.ringBell(bellArmed)
	return 0
}

// Event implements [driver.EventCounter].
func (q *completionQueue) Event() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events++
}

// peek returns the completion at an index, or nil if the device has not written it. A lap inverts the phase.
func (r *part) peek(index, size uint32) *recvCompletion {
	e := (*recvCompletion)(unsafe.Pointer(&r.buffer[(index&r.mask)*size]))
	flags := atomic.LoadUint32((*uint32)(unsafe.Pointer(e))) >> 24
	if flags&donePhase == index/(r.mask+1)&1 {
		return nil
	}
	acquire()
	return e
}

// next returns the next completion, or nil.
func (q *completionQueue) next() *recvCompletion {
	for range q.rings {
		r := &q.rings[q.turn]
		if q.turn++; q.turn == len(q.rings) {
			q.turn = 0
		}
		for {
			e := r.peek(r.next, q.size)
			if e == nil {
				break
			}
			at := r.next & r.mask
			r.next++
			q.read++
			if r.skip == nil || !r.skip[at] {
				return e
			}
			r.skip[at] = false
		}
	}
	return nil
}

// Poll implements [driver.CQPath].
func (q *completionQueue) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.maps[0] == nil {
		return -1
	}
	n, before := 0, q.read
	for n < len(wcs) {
		e := q.next()
		if e == nil {
			break
		}
		if q.take(e, &wcs[n]) {
			n++
		}
	}
	if q.read != before {
		q.ringBell(0)
	}
	return int32(n)
}

// take translates a completion, and releases its request. It reports false for one of an unknown queue pair or request.
func (q *completionQueue) take(e *recvCompletion, wc *ibv.WC) bool {
	qp := q.device.qps.get(uint32(e.qpn))
	if qp == nil {
		return false
	}
	if q.own != nil {
		copy(driver.Bytes(&q.last), unsafe.Slice((*byte)(unsafe.Pointer(e)), q.size))
	}
	*wc = ibv.WC{Status: statusOf(e.status), VendorErr: uint32(e.status), QPNum: uint32(e.qpn)}
	op := operation(e.flags >> doneOperationAt & doneOperation)
	switch e.flags & doneQueue {
	case doneSend:
		wc.Opcode = ibv.WC_SEND
		if op == opWrite {
			wc.Opcode = ibv.WC_RDMA_WRITE
		}
		s := (*sendCompletion)(unsafe.Pointer(e))
		id, ok := qp.send.done(s)
		wc.WRID = id
		return ok
	case doneRecv:
		q.takeRecv(e, wc, op)
		if e.flags&doneUnsolicited != 0 {
			return true
		}
		id, ok := qp.recv.done(e.id)
		wc.WRID = id
		return ok
	}
	return false
}

func (q *completionQueue) takeRecv(e *recvCompletion, wc *ibv.WC, op operation) {
	wc.Opcode, wc.ByteLen, wc.SrcQP, wc.SLID = ibv.WC_RECV, uint32(e.length), uint32(e.srcQP), e.ah
	if op == opWrite {
		wc.Opcode = ibv.WC_RECV_RDMA_WITH_IMM
		if q.size == uint32(longCompletion) {
			wc.ByteLen |= uint32(*(*uint16)(unsafe.Pointer(&e.more))) << 16
		}
	}
	if e.flags&doneImm != 0 {
		wc.WCFlags = ibv.WC_WITH_IMM
		*wc.ImmData() = ibv.ToBE32(e.imm)
	}
}

// drop makes polls skip the completions of a queue pair that the device has written.
func (q *completionQueue) drop(number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.maps[0] == nil {
		return
	}
	for i := range q.rings {
		r := &q.rings[i]
		for at := r.next; at-r.next <= r.mask; at++ {
			e := r.peek(at, q.size)
			if e == nil {
				break
			}
			if uint32(e.qpn) == number {
				if r.skip == nil {
					r.skip = make([]bool, r.mask+1)
				}
				r.skip[at&r.mask] = true
			}
		}
	}
}
