// SPDX-License-Identifier: BSD-2-Clause

// Package rxe writes and reads the queues of Soft-RoCE, which the kernel maps into the process.
//
// A queue is a ring of elements of one size behind a header with two indexes. The process writes elements of send and
// receive queues and moves their producer index; it reads elements of completion queues and moves their consumer index.
// The kernel and the process do not trust each other's indexes: both are masked before use.
package rxe

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

// Queue is a mapped ring. Its methods need a lock of the caller.
type Queue struct {
	buf   *uapi.RXEQueueBuf
	data  unsafe.Pointer
	shift uint32 // of an element's size
	mask  uint32
}

// Of returns the queue in a mapping. Elements have at least size bytes.
func Of(mapping []byte, size uintptr) (Queue, error) {
	const header = unsafe.Sizeof(uapi.RXEQueueBuf{})
	if uintptr(len(mapping)) < header {
		return Queue{}, fmt.Errorf("rxe: a queue of %d bytes has no room for its header of %d", len(mapping), header)
	}
	buf := (*uapi.RXEQueueBuf)(unsafe.Pointer(unsafe.SliceData(mapping)))
	q := Queue{buf: buf, data: unsafe.Add(unsafe.Pointer(buf), header), shift: buf.Log2ElemSize, mask: buf.IndexMask}
	const maxShift = 16
	switch count := uint64(q.mask) + 1; {
	case q.shift > maxShift || uintptr(1)<<q.shift < size:
		return Queue{}, fmt.Errorf("rxe: elements of 1 << %d bytes, where %d are needed", q.shift, size)
	case count&uint64(q.mask) != 0 || count<<q.shift > uint64(len(mapping))-uint64(header):
		return Queue{}, fmt.Errorf("rxe: %d elements of %d bytes in a mapping of %d", count, 1<<q.shift, len(mapping))
	}
	return q, nil
}

func (q *Queue) at(index uint32) unsafe.Pointer {
	return unsafe.Add(q.data, uintptr(index&q.mask)<<q.shift)
}

// Free returns the next element to fill in, or nil if the queue is full. Push hands it to the kernel.
func (q *Queue) Free() unsafe.Pointer { return q.free(0) }

// free returns the element behind n others that have not been pushed yet.
func (q *Queue) free(n uint32) unsafe.Pointer {
	at := q.buf.ProducerIndex + n
	if n >= q.mask || (at+1-atomic.LoadUint32(&q.buf.ConsumerIndex))&q.mask == 0 {
		return nil
	}
	return q.at(at)
}

// Push moves the producer index behind the element of Free.
func (q *Queue) Push() { q.push(1) }

func (q *Queue) push(n uint32) {
	atomic.StoreUint32(&q.buf.ProducerIndex, (q.buf.ProducerIndex+n)&q.mask)
}

// Poll copies up to len(dst) completions and returns their number.
func (q *Queue) Poll(dst []ibv.WC) (n int) {
	consumer := q.buf.ConsumerIndex
	producer := atomic.LoadUint32(&q.buf.ProducerIndex)
	for n < len(dst) && (producer-consumer)&q.mask != 0 {
		dst[n] = *(*ibv.WC)(q.at(consumer)) // struct ib_uverbs_wc has the layout of struct ibv_wc
		consumer = (consumer + 1) & q.mask
		n++
	}
	if n > 0 {
		atomic.StoreUint32(&q.buf.ConsumerIndex, consumer)
	}
	return n
}

// SendLimits are the capacities of a send queue.
type SendLimits struct{ SGEs, Inline uint32 }

// SendSize and RecvSize are the sizes of elements with so many entries and inline bytes.
func SendSize(l SendLimits) uintptr {
	return unsafe.Sizeof(uapi.RXESendWQE{}) + max(uintptr(l.SGEs)*unsafe.Sizeof(uapi.RXESGE{}), uintptr(l.Inline))
}

// RecvSize is the size of an element of a receive queue.
func RecvSize(sges uint32) uintptr {
	return unsafe.Sizeof(uapi.RXERecvWQE{}) + uintptr(sges)*unsafe.Sizeof(uapi.RXESGE{})
}

// FillSend translates a work request to an element. It reports false if the request does not fit in limits. ah is the
// number of the address handle of a datagram; ssn counts requests. The kernel checks opcodes and flags: a request that
// it cannot execute completes with an error.
func FillSend(element unsafe.Pointer, wr *ibv.SendWR, l SendLimits, kind ibv.QPType, ah, ssn uint32) bool {
	if wr.NumSGE < 0 || uint32(wr.NumSGE) > l.SGEs {
		return false
	}
	w := (*uapi.RXESendWQE)(element)
	*w = uapi.RXESendWQE{Ssn: ssn}
	w.WR.WRID, w.WR.Opcode, w.WR.SendFlags = wr.WRID, uapi.IBUverbsWROpcode(wr.Opcode), uint32(wr.SendFlags)
	*w.WR.Ex.InvalidateRKey() = *wr.InvalidateRKey()
	length := uint64(0)
	sges := unsafe.Slice(wr.SGList.Deref(), wr.NumSGE)
	for i := range sges {
		length += uint64(sges[i].Length)
	}
	if length > math.MaxUint32 || wr.SendFlags&ibv.SEND_INLINE != 0 && length > uint64(l.Inline) {
		return false
	}
	switch wr.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		from, to := wr.WR.Atomic(), w.WR.WR.Atomic()
		if length < 8 || from.RemoteAddr&7 != 0 {
			return false
		}
		to.RemoteAddr, to.CompareAdd, to.Swap, to.RKey = from.RemoteAddr, from.CompareAdd, from.Swap, from.RKey
		w.IOVA = from.RemoteAddr
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ:
		from, to := wr.WR.RDMA(), w.WR.WR.RDMA()
		to.RemoteAddr, to.RKey = from.RemoteAddr, from.RKey
		w.IOVA = from.RemoteAddr
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		if kind == ibv.QPT_UD {
			from, to := wr.WR.UD(), w.WR.WR.UD()
			to.RemoteQPN, to.RemoteQKey, to.AHNum = from.RemoteQPN, from.RemoteQKey, ah
		}
	case ibv.WR_BIND_MW:
		from := wr.BindMW()
		if kind == ibv.QPT_UD {
			return false
		}
		fillBind(w, from.MW.Deref(), from.RKey, &from.BindInfo)
	}
	d := &w.DMA
	d.Length, d.Resid, d.NumSGE = uint32(length), uint32(length), uint32(wr.NumSGE)
	if wr.SendFlags&ibv.SEND_INLINE == 0 {
		copySGEs(d, sges)
		return true
	}
	to := d.InlineData(int(length))
	for i := range sges {
		to = to[copy(to, memory(sges[i].Addr, int(sges[i].Length))):]
	}
	return true
}

func fillBind(w *uapi.RXESendWQE, mw *ibv.MW, rkey uint32, info *ibv.MWBindInfo) {
	to := w.WR.WR.MW()
	to.Addr, to.Length, to.MWRKey, to.RKey = info.Addr, info.Length, mw.RKey, rkey
	to.Access = uapi.IBUverbsAccessFlags(info.MWAccessFlags)
	if mr := info.MR.Deref(); mr != nil {
		to.MRLKey = mr.LKey
	}
}

// memory returns n bytes of the process at an address.
func memory(address uint64, n int) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}

// FillRecv translates a receive to an element.
func FillRecv(element unsafe.Pointer, wr *ibv.RecvWR, maxSGEs uint32) bool {
	if wr.NumSGE < 0 || uint32(wr.NumSGE) > maxSGEs {
		return false
	}
	w := (*uapi.RXERecvWQE)(element)
	*w = uapi.RXERecvWQE{WRID: wr.WRID}
	sges := unsafe.Slice(wr.SGList.Deref(), wr.NumSGE)
	length := uint32(0)
	for i := range sges {
		length += sges[i].Length
	}
	w.DMA.Length, w.DMA.Resid, w.DMA.NumSGE = length, length, uint32(wr.NumSGE)
	copySGEs(&w.DMA, sges)
	return true
}

func copySGEs(d *uapi.RXEDMAInfo, sges []ibv.SGE) {
	to := d.SGE(len(sges))
	for i := range sges {
		to[i].Addr, to[i].Length, to[i].LKey = sges[i].Addr, sges[i].Length, sges[i].LKey
	}
}
